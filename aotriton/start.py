"""Start worker.py inside the Triton image, with the kernels' sources last on the module path.

    start.py FIRST LAST      lists of folders, separated by `:`

FIRST lists Triton's folder and folders of the recipe, and LAST lists folders of the kernels' sources. The module path
consists of FIRST, the folders of Python's own modules, LAST, and the root of the kernels, in this order, so a kernel's
source cannot replace a module of Python or Triton. Python does not run a sitecustomize.py from the folders in FIRST and
LAST, because they are added after Python has started.

This file, not worker.py, sets the module path, because a change of worker.py would change the input digests of images.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = os.fspath(Path(__file__).resolve().parent)


def arrange(first: list[str], last: list[str]) -> None:
    """Prepend `first` to the module path, append `last`, and remove the folder of this file."""
    sys.path[:] = [*first, *(place for place in sys.path if os.path.realpath(place) != HERE), *last]


def main(arguments: list[str]) -> int:
    """Set the module path, run the worker and return its exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    os.chdir("/")
    sys.dont_write_bytecode = True
    sys.path.insert(0, HERE)
    import worker  # noqa: PLC0415 - `sys.path.insert` makes it importable

    arrange(*(text.split(":") if text else [] for text in arguments))

    class Modules(worker._Modules):
        """The imported kernel modules, which must all be below one root."""

        def load(self, root: str, source: str) -> Any:
            own = os.path.realpath(root)
            if not self._root:
                sys.path.append(own)
                self._root = own
            if own != self._root:
                raise ValueError(f"this process compiles what is below {self._root}, not below {own}")
            return super().load(root, source)

    worker._Modules = Modules  # type: ignore[misc]
    return worker.serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
