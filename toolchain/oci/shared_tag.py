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

from toolchain.digest import canonical
from toolchain.errors import RegistryError
from toolchain.oci.registry import Registry
from toolchain.web import Retries, TryAgainError

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

    def add(self) -> bool:
        """Write what is missing, once; whether anything was. Another publisher may replace it at once: see `keep`."""
        value = self.missing()
        if value is not None:
            self._put_once(canonical(value), self.registry.retries())
        return value is not None

    def keep(self, *, wrote: bool = False) -> None:
        """Read, add, write, read back; again when another publisher's list replaced ours.

        Args:
            wrote: whether it has been written before (`add`).

        Raises:
            RegistryError: it is refused, or others keep replacing it.
            UnreachableError: no answer.
        """
        waited, retries = False, self.registry.retries()
        calm = rounds = 0
        while rounds <= _ROUNDS:
            value = self.missing()
            if value is None:
                if not wrote or calm == len(CALM):
                    return
                time.sleep(CALM[calm])
                calm += 1
            elif wrote and not waited:
                LOG.info("%s: another publisher replaced %s; adding again", self.registry.host, self.tag)
                rounds, calm, waited = rounds + 1, 0, True
                # Not in step with the other; and what was read before the wait would be stale, so it is read again.
                time.sleep(random.uniform(0.0, 0.1 * 2 ** min(rounds, 4)))  # noqa: S311 - no secret
            else:
                self._put_once(canonical(value), retries)
                wrote, waited, calm = True, False, 0
        raise RegistryError(
            f"{self.repository}:{self.tag} keeps changing",
            why=f"in {_ROUNDS} rounds others kept replacing it",
            fix="publish again when no other publisher is at this image",
        )

    def _put_once(self, content: bytes, retries: Retries) -> None:
        """Write it. After a failure that may pass it only waits: sent again as it is, it might be stale by then."""
        try:
            self.registry.put_once(self.repository, self.tag, content, self.media_type, failures=retries.failures)
        except TryAgainError as failure:
            retries.failed(failure)


def keep_all(tags: Sequence[SharedTag]) -> None:
    """Like `keep` for each, with one wait for all of them.

    Raises:
        RegistryError, UnreachableError: as `SharedTag.keep`.
    """
    written = [tag for tag in tags if tag.add()]
    for wait in CALM if written else ():
        time.sleep(wait)
        for tag in tuple(written):
            if tag.missing() is not None:
                written.remove(tag)
                tag.keep(wrote=True)
