"""Which part of a large source tree is taken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Part:
    """A selection of a tree's files.

    Args:
        taken: as in a lock: names at the top that are taken, and with `!` before them names right below those that
            are not, in any of them; without any name all is taken.
    """

    taken: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the store; empty for the whole."""
        return ",".join(self.taken)

    @cached_property
    def only(self) -> frozenset[str]:
        """Names at the top; empty for all of them."""
        return frozenset(name for name in self.taken if not name.startswith("!"))

    @cached_property
    def without(self) -> frozenset[str]:
        """Names right below those that are left out."""
        return frozenset(name[1:] for name in self.taken if name.startswith("!"))

    def holds(self, path: str) -> bool:
        """Whether a path below the tree's top, with `/`, is of it."""
        if not self.only:
            return True
        top, _, rest = path.partition("/")
        return top in self.only and rest.partition("/")[0] not in self.without


WHOLE: Final = Part()
