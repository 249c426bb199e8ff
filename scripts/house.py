"""The house drawn from its imports: rooms, floors, arrows and circles.

A room is a folder of `toolchain/`, or a module that is in none. An arrow is one room's import of another, whichever
of its modules does it; imports only for types are included. A room's floor is the longest way down from it.

    python scripts/house.py            # the figures and the rooms, floor by floor
    python scripts/house.py --check    # exit code 1 where a circle is

docs/develop.md shows what it prints.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections.abc import Mapping
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGE = "toolchain"
_SAID_NOTHING = {"__init__", "__main__"}


def room_of(module: str) -> str:
    """The room of a dotted module name; empty for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(source: str, modules: frozenset[str]) -> set[str]:
    """The package's own modules that a source imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & modules) or {node.module}
    return {name for name in found if name.split(".")[0] == PACKAGE}


def arrows(top: Path = TOP) -> dict[str, set[str]]:
    """Every room with the rooms that it imports."""
    files = {
        ".".join(path.relative_to(top).with_suffix("").parts): path
        for path in sorted((top / PACKAGE).rglob("*.py"))
        if "_recipes" not in path.parts
    }
    modules = frozenset(files)
    rooms: dict[str, set[str]] = {}
    for module, path in files.items():
        room = room_of(module)
        if room in _SAID_NOTHING or not room:
            continue
        others = {room_of(name) for name in imported(path.read_text(encoding="utf-8"), modules)}
        rooms.setdefault(room, set()).update(others - {room, "", *_SAID_NOTHING})
    return rooms


def circles(rooms: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Groups of rooms that reach one another, sorted."""
    reach: dict[str, set[str]] = {}
    for room in rooms:
        seen: set[str] = set()
        todo = list(rooms[room])
        while todo:
            step = todo.pop()
            if step not in seen:
                seen.add(step)
                todo += rooms.get(step, ())
        reach[room] = seen
    groups = {tuple(sorted({room, *(other for other in reach[room] if room in reach[other])})) for room in rooms}
    return sorted(group for group in groups if len(group) > 1)


def floors(rooms: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room, 0 at the ground. Rooms of a circle are on one floor."""
    circle = {room: group for group in circles(rooms) for room in group}

    @functools.cache
    def floor(room: str) -> int:
        group = circle.get(room, (room,))
        under = {other for member in group for other in rooms.get(member, ())} - set(group)
        return 1 + max((floor(other) for other in under), default=-1)

    return {room: floor(room) for room in rooms}


def drawn(rooms: Mapping[str, set[str]]) -> str:
    """The figures, then the floors from the roof down."""
    where, found = floors(rooms), circles(rooms)
    lines = [
        (
            f"{len(rooms)} rooms, {max(where.values()) + 1} floors, {sum(map(len, rooms.values()))} arrows,"
            f" {len(found)} circles"
        )
    ]
    lines += [f"circle: {' - '.join(group)}" for group in found]
    for number in sorted(set(where.values()), reverse=True):
        lines.append(f"{number:2}  {'  '.join(sorted(room for room in rooms if where[room] == number))}")
    return "\n".join(lines)


def main() -> int:
    """Print the house; with --check fail where rooms form a circle."""
    parser = argparse.ArgumentParser(description="The house drawn from its imports.")
    parser.add_argument("top", type=Path, nargs="?", default=TOP, help="a checkout; this one by default")
    parser.add_argument("--check", action="store_true", help="exit code 1 where rooms import one another in a circle")
    asked = parser.parse_args()
    rooms = arrows(asked.top)
    print(drawn(rooms))
    return 1 if asked.check and circles(rooms) else 0


if __name__ == "__main__":
    sys.exit(main())
