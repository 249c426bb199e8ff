"""The part of a large source tree that is taken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Part:
    """A selection of a tree's files.

    Args:
        taken: as in a lock: names at the top that are taken, and with `!` in front names one level below that are left
            out of each; empty for the whole tree.
    """

    taken: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its name in the store; empty for the whole."""
        return ",".join(self.taken)

    @cached_property
    def only(self) -> frozenset[str]:
        """Return the names at the top; empty for all of them."""
        return frozenset(name for name in self.taken if not name.startswith("!"))

    @cached_property
    def without(self) -> frozenset[str]:
        """Return the names one level below that are left out."""
        return frozenset(name[1:] for name in self.taken if name.startswith("!"))

    def holds(self, path: str) -> bool:
        """Return whether a path below the tree's top, with `/`, belongs to the part."""
        if not self.only:
            return True
        top, _, rest = path.partition("/")
        return top in self.only and rest.partition("/")[0] not in self.without


WHOLE: Final = Part()
