"""Starts worker.py with the kernels' sources last on the module path, inside the Triton image.

    start.py FIRST LAST      each some folders, with `:` between

FIRST are folders of the image and of the recipe, Triton's among them. They come before Python's own modules, which come
before LAST and before the root of the kernels. A kernel's source can therefore replace no module of Python or Triton.
The process is started without PYTHONPATH, and so runs no sitecustomize.py of a source tree.

The module path is set here and not in worker.py because worker.py is an input of images, and the order changes no byte
of an object that it compiles.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = os.fspath(Path(__file__).resolve().parent)


def arrange(first: list[str], last: list[str]) -> None:
    """Set the module path."""
    sys.path[:] = [*first, *(place for place in sys.path if os.path.realpath(place) != HERE), *last]


def main(arguments: list[str]) -> int:
    """Run as a program."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    os.chdir("/")
    sys.dont_write_bytecode = True
    sys.path.insert(0, HERE)
    import worker  # noqa: PLC0415 - beside this file, which is on the module path only now

    arrange(*(text.split(":") if text else [] for text in arguments))

    class Modules(worker._Modules):
        """Kernel modules below the one root that this process serves."""

        def load(self, root: str, source: str) -> Any:
            own = os.path.realpath(root)
            if not self._root:
                sys.path.append(own)
                self._root = own
            if own != self._root:
                raise ValueError(f"this process compiles what is below {self._root}, not below {own}")
            return super().load(root, source)

    worker._Modules = Modules  # type: ignore[misc]
    return worker.main([])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
