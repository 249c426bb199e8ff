"""Show which parts of the code import which other parts, as rooms, floors and arrows.

A room is a folder of a package, or a module that is in no folder. An arrow means that a module of one room imports
another room; imports that are only for type annotations count too. A room's floor is the length of the longest path of
arrows that starts at it.

    python scripts/house.py            # prints the figures and the rooms, floor by floor

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
_NO_ROOMS = {"__init__", "__main__"}


def room_of(module: str) -> str:
    """Return the room of the module with this dotted name; empty for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(source: str, modules: frozenset[str]) -> set[str]:
    """Return the modules that a source imports; `from a import b` gives `a.b` if that is in `modules`, else `a`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & modules) or {node.module}
    return found


def sources(top: Path = TOP, package: str = PACKAGE) -> dict[str, Path]:
    """Return the source files of a package by the dotted names of their modules."""
    folder = top / package
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts): path
        for path in sorted(folder.rglob("*.py"))
        if "_recipes" not in path.parts
    }


def arrows(top: Path = TOP, package: str = PACKAGE) -> dict[str, set[str]]:
    """Return the rooms that each room of a package imports."""
    files = sources(top, package)
    own = Path(package).name
    modules = frozenset(files)
    rooms: dict[str, set[str]] = {}
    for module, path in files.items():
        room = room_of(module)
        if room in _NO_ROOMS or not room:
            continue
        names = imported(path.read_text(encoding="utf-8"), modules)
        others = {room_of(name) for name in names if name.split(".")[0] == own}
        rooms.setdefault(room, set()).update(others - {room, "", *_NO_ROOMS})
    return rooms


def floors(rooms: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the floor of each room; the lowest floor is 0. Raise CycleError if rooms import each other in a cycle."""
    where: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        where[room] = 1 + max((where[other] for other in rooms.get(room, ())), default=-1)
    return where


def drawn(rooms: Mapping[str, set[str]]) -> str:
    """Return a text with the figures, followed by the floors from the highest down."""
    where = floors(rooms)
    lines = [f"{len(rooms)} rooms, {max(where.values()) + 1} floors, {sum(map(len, rooms.values()))} arrows"]
    for number in sorted(set(where.values()), reverse=True):
        lines.append(f"{number:2}  {'  '.join(sorted(room for room in rooms if where[room] == number))}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show which parts of the code import which.")
    parser.add_argument("top", type=Path, nargs="?", default=TOP, help="folder of a checkout; by default this checkout")
    top = parser.parse_args().top
    for package in (PACKAGE, LAB):
        print(f"{Path(package).name}: {drawn(arrows(top, package))}")


if __name__ == "__main__":
    main()
