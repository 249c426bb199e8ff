"""A tag whose content several publishers add to: each reads it, adds its own and writes.

No known registry can do that in one step. So a publisher reads back what it wrote until it has stayed whole for a
while, and never writes content that it read long ago.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.core.digest import canonical
from toolchain.core.errors import RegistryError
from toolchain.core.web import Retries, TryAgainError
from toolchain.oci.registry import Registry

LOG = logging.getLogger(__name__)
# Seconds after which the content is read again; it must be complete each time. Together they are longer than any
# publisher takes between reading and writing.
CALM = (0.1, 0.3, 0.6)
_ROUNDS = 20

Value = dict[str, Any]


@dataclass(frozen=True)
class SharedTag:
    """A tag, and what to add to it.

    Args:
        media_type: the media type of the content.
        read: returns the content; None if the tag does not exist.
        change: returns the content with the additions; None if they are there.
    """

    registry: Registry
    repository: str
    tag: str
    media_type: str
    read: Callable[[], Value | None]
    change: Callable[[Value | None], Value | None]

    def missing(self) -> Value | None:
        """Return the content to write; None if nothing is missing."""
        return self.change(self.read())

    def add(self, retries: Retries) -> bool:
        """Write what is missing, and return whether anything was.

        After a transient failure it only waits, because the content may be stale by the next attempt.
        """
        value = self.missing()
        if value is None:
            return False
        try:
            self.registry.put_once(
                self.repository, self.tag, canonical(value), self.media_type, failures=retries.failures
            )
        except TryAgainError as failure:
            retries.failed(failure)
        return True


def add_to_all(tags: Sequence[SharedTag]) -> None:
    """Add to each tag what it lacks, and read all back until they stay; what others overwrote is added again."""
    retries = {tag.tag: tag.registry.retries() for tag in tags}
    for attempt in range(_ROUNDS + 1):
        written = [tag for tag in tags if tag.add(retries[tag.tag])]
        tags = []
        for wait in CALM if written else ():
            time.sleep(wait)
            tags += [tag for tag in written if tag.missing() is not None]
            written = [tag for tag in written if tag not in tags]
        if not tags:
            return
        for tag in tags:
            LOG.info("%s: another publisher replaced %s; adding again", tag.registry.host, tag.tag)
        # A random wait, so that publishers do not stay in step. The content is read again after it.
        time.sleep(random.uniform(0.0, 0.1 * 2 ** min(attempt + 1, 4)))  # noqa: S311 - no secret
    raise RegistryError(
        "tag-keeps-changing",
        f"{tags[0].repository}:{tags[0].tag} keeps changing",
        why=f"other publishers replaced it in each of {_ROUNDS} rounds",
        fix="publish again when no other publisher is at this image",
    )
