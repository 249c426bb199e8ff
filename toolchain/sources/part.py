"""Select a part of a large source tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Part:
    """A part of a source tree.

    Args:
        taken: the part in the form that locks contain: the names in the top folder that belong to the part, and, with
            the prefix `!`, the names that are excluded from each of these folders; empty for the whole tree.
    """

    taken: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the part in the store; an empty string stands for the whole tree."""
        return ",".join(self.taken)

    @cached_property
    def only(self) -> frozenset[str]:
        """Return the names in the top folder that belong to the part; an empty set stands for all names."""
        return frozenset(name for name in self.taken if not name.startswith("!"))

    @cached_property
    def without(self) -> frozenset[str]:
        """Return the names that are excluded from each folder in `only`."""
        return frozenset(name[1:] for name in self.taken if name.startswith("!"))

    def holds(self, path: str) -> bool:
        """Return whether a path, relative to the top of the tree, belongs to the part."""
        if not self.only:
            return True
        top, _, rest = path.partition("/")
        return top in self.only and rest.partition("/")[0] not in self.without


WHOLE: Final = Part()
