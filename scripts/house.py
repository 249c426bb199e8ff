"""Show the packages of the code by level, and count the imports between them.

Here, a package is a folder or a module that is directly in `toolchain` or `toolchain_lab`. Imports that are only for
type annotations are included. The level of a package is the number of imports in the longest chain that starts at the
package.

    python scripts/house.py            # prints the counts, and the packages of each level
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
_NO_PACKAGES = {"__init__", "__main__"}


def package_of(module: str) -> str:
    """Return the package of a module, or an empty string for `toolchain` and `toolchain_lab` themselves."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported(source: str, modules: frozenset[str]) -> set[str]:
    """Return the modules that `source` imports; `from a import b` gives `a.b` if that is in `modules`, else `a`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & modules) or {node.module}
    return found


def sources(top: Path = TOP, package: str = PACKAGE) -> dict[str, Path]:
    """Return the source files in the folder `package`, except those in `_recipes`, by dotted module name."""
    folder = top / package
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts): path
        for path in sorted(folder.rglob("*.py"))
        if "_recipes" not in path.parts
    }


def imports(top: Path = TOP, package: str = PACKAGE) -> dict[str, set[str]]:
    """Return the packages in the folder `package`, each with the other packages that it imports."""
    files = sources(top, package)
    own = Path(package).name
    modules = frozenset(files)
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        name = package_of(module)
        if name in _NO_PACKAGES or not name:
            continue
        targets = imported(path.read_text(encoding="utf-8"), modules)
        others = {package_of(target) for target in targets if target.split(".")[0] == own}
        found.setdefault(name, set()).update(others - {name, "", *_NO_PACKAGES})
    return found


def levels(packages: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the level of each package, from 0. Raise CycleError if packages import each other in a cycle.

    Args:
        packages: the packages that each package imports.
    """
    where: dict[str, int] = {}
    for name in TopologicalSorter(packages).static_order():
        where[name] = 1 + max((where[other] for other in packages.get(name, ())), default=-1)
    return where


def drawn(packages: Mapping[str, set[str]]) -> str:
    """Return a string with the numbers of packages, levels and imports, and then the packages of each level."""
    where = levels(packages)
    count = sum(map(len, packages.values()))
    lines = [f"{len(packages)} packages, {max(where.values()) + 1} levels, {count} imports"]
    for number in sorted(set(where.values()), reverse=True):
        lines.append(f"{number:2}  {'  '.join(sorted(name for name in packages if where[name] == number))}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show which packages of the code import which.")
    parser.add_argument("top", type=Path, nargs="?", default=TOP, help="folder of a checkout; by default this checkout")
    top = parser.parse_args().top
    for package in (PACKAGE, LAB):
        print(f"{Path(package).name}: {drawn(imports(top, package))}")


if __name__ == "__main__":
    main()
