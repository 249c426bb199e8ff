"""A tag that several publishers keep: each reads what is there, adds its own and writes.

No registry known here can do that in one step, so a publisher reads back what it wrote until the
list has stayed whole for a while. It never writes a list that it read long ago.
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
# Seconds after which the list is read again; it must be whole each time. Together longer than any publisher takes
# between reading and writing it.
CALM = (0.1, 0.3, 0.6)
_ROUNDS = 20

Value = dict[str, Any]


@dataclass(frozen=True)
class SharedTag:
    """The content of a tag, and the content to add.

    Args:
        media_type: of what is there.
        read: gives it, None for nothing.
        change: the same with what is ours; None when it is there already.
    """

    registry: Registry
    repository: str
    tag: str
    media_type: str
    read: Callable[[], Value | None]
    change: Callable[[Value | None], Value | None]

    def missing(self) -> Value | None:
        """The content to write; None if all of ours is there."""
        return self.change(self.read())

    def add(self, retries: Retries) -> bool:
        """Write what is missing; whether anything was.

        After a failure that may pass it only waits: sent again as it is, the content might be stale by then.
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
    """Write to each tag what it lacks, and read all back until they stay; what others replace is added again."""
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
        # Not in step with the other; and what was read before the wait would be stale, so it is read again.
        time.sleep(random.uniform(0.0, 0.1 * 2 ** min(attempt + 1, 4)))  # noqa: S311 - no secret
    raise RegistryError(
        f"{tags[0].repository}:{tags[0].tag} keeps changing",
        why=f"in {_ROUNDS} rounds others kept replacing it",
        fix="publish again when no other publisher is at this image",
    )
