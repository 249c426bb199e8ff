"""Add entries to the content of a tag that several publishers may change at the same time.

A publisher reads the content, adds its entries and writes the result. These steps are not atomic, so the publisher
reads the tag several times after writing, and adds its entries again if another publisher replaced them.
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
# These are the waits in seconds before the content is read again. Their sum should be longer than the time that any
# publisher takes between reading and writing the content.
CALM = (0.1, 0.3, 0.6)
_ROUNDS = 20

Value = dict[str, Any]


@dataclass(frozen=True)
class SharedTag:
    """A tag, and the functions that read and extend its content.

    Args:
        read: a function that returns the content, or None if the tag does not exist.
        change: a function that returns the content with the additions, or None if the content already has them.
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
        """Write the additions if they are missing; return whether they were missing.

        After a transient failure the function waits and returns, so that the caller reads the content again. After too
        many failures, it raises the error.
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
    """Write each tag with its additions, and repeat this until no other publisher overwrites the additions.

    RegistryError is raised if other publishers still overwrite them after `_ROUNDS` repetitions.
    """
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
            LOG.info("%s: another publisher replaced %s; adding the entries again", tag.registry.host, tag.tag)
        # The wait is random, so that publishers do not stay synchronized.
        time.sleep(random.uniform(0.0, 0.1 * 2 ** min(attempt + 1, 4)))  # noqa: S311 - the wait is not a secret
    raise RegistryError(
        "tag-keeps-changing",
        f"{tags[0].repository}:{tags[0].tag} keeps changing",
        why=f"other publishers replaced it in each of {_ROUNDS} rounds",
        fix="publish again when no other publisher changes this image",
    )
