"""The house drawn from its imports: rooms, floors and arrows.

A room is a folder of a package, or a module that is in none. An arrow is one room's import of another, whichever
of its modules does it; imports only for types are included. A room's floor is the longest way down from it.

    python scripts/house.py            # the figures and the rooms, floor by floor

docs/concepts.md shows the picture.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGE = "toolchain"
LAB = "lab/src/toolchain_lab"
_SAID_NOTHING = {"__init__", "__main__"}


def room_of(module: str) -> str:
    """The room of a dotted module name; empty for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(source: str, modules: frozenset[str]) -> set[str]:
    """The modules that a source imports anywhere; of those outside `modules` it may name only the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & modules) or {node.module}
    return found


def sources(top: Path = TOP, package: str = PACKAGE) -> dict[str, Path]:
    """The files of a package by their dotted module names."""
    folder = top / package
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts): path
        for path in sorted(folder.rglob("*.py"))
        if "_recipes" not in path.parts
    }


def arrows(top: Path = TOP, package: str = PACKAGE) -> dict[str, set[str]]:
    """Every room of a package with the rooms of that package that it imports."""
    files = sources(top, package)
    own = Path(package).name
    modules = frozenset(files)
    rooms: dict[str, set[str]] = {}
    for module, path in files.items():
        room = room_of(module)
        if room in _SAID_NOTHING or not room:
            continue
        names = imported(path.read_text(encoding="utf-8"), modules)
        others = {room_of(name) for name in names if name.split(".")[0] == own}
        rooms.setdefault(room, set()).update(others - {room, "", *_SAID_NOTHING})
    return rooms


def floors(rooms: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room, 0 at the ground.

    Raises:
        CycleError: rooms import one another in a circle.
    """
    where: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        where[room] = 1 + max((where[other] for other in rooms.get(room, ())), default=-1)
    return where


def drawn(rooms: Mapping[str, set[str]]) -> str:
    """The figures, then the floors from the roof down."""
    where = floors(rooms)
    lines = [f"{len(rooms)} rooms, {max(where.values()) + 1} floors, {sum(map(len, rooms.values()))} arrows"]
    for number in sorted(set(where.values()), reverse=True):
        lines.append(f"{number:2}  {'  '.join(sorted(room for room in rooms if where[room] == number))}")
    return "\n".join(lines)


def main() -> None:
    """Print the house."""
    parser = argparse.ArgumentParser(description="The house drawn from its imports.")
    parser.add_argument("top", type=Path, nargs="?", default=TOP, help="a checkout; this one by default")
    top = parser.parse_args().top
    for package in (PACKAGE, LAB):
        print(f"{Path(package).name}: {drawn(arrows(top, package))}")


if __name__ == "__main__":
    main()
