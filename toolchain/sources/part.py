"""Which part of a large source tree is taken."""

from __future__ import annotations

from collections.abc import Sequence


class Part:
    """What is taken of a tree.

    Args:
        taken: names at the top that are taken, and with `!` before them names right below those that are not, in any
            of them; without any name all is taken.
    """

    def __init__(self, taken: Sequence[str]) -> None:
        self.only = frozenset(name for name in taken if not name.startswith("!"))
        self.without = frozenset(name[1:] for name in taken if name.startswith("!"))

    def holds(self, path: str) -> bool:
        """Whether a path below the tree's top, with `/`, is of it."""
        if not self.only:
            return True
        top, _, rest = path.partition("/")
        return top in self.only and rest.partition("/")[0] not in self.without
