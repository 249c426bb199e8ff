"""Print the libraries of an LLVM build tree that a consumer needs, as names for LLVM_DISTRIBUTION_COMPONENTS.

    closure.py BUILD KEEP DROP ROOT...

The program reads the CMake packages below BUILD/lib/cmake, which name every library and what it links. KEEP and DROP
are comma-separated globs; a library that matches KEEP and not DROP is also a root. The exit code is 3 if a ROOT is
not a library of this tree.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path

_LIBRARY = re.compile(r"add_library\((\S+) (?:STATIC|SHARED|INTERFACE|OBJECT|MODULE) IMPORTED\)")
_PROPERTIES = re.compile(r"set_target_properties\((\S+) PROPERTIES(.*?)\n\)", re.DOTALL)
_LINKS = re.compile(r'INTERFACE_LINK_LIBRARIES "([^"]*)"')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def libraries(build: Path) -> dict[str, set[str]]:
    """Return the names that each library of the tree links, by library."""
    found: dict[str, set[str]] = {}
    for file in sorted((build / "lib" / "cmake").glob("*/*.cmake")):
        text = file.read_text(encoding="utf-8", errors="replace")
        for name in _LIBRARY.findall(text):
            found.setdefault(name, set())
        for name, properties in _PROPERTIES.findall(text):
            links = _LINKS.search(properties)
            if name in found and links:
                found[name] |= set(_NAME.findall(links[1]))
    return found


def closure(known: dict[str, set[str]], roots: set[str]) -> set[str]:
    """Return the roots and all libraries that they link, directly or indirectly."""
    seen: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += [word for word in known[name] if word in known]
    return seen


def main(arguments: list[str]) -> int:
    """Print the libraries and return the exit code."""
    if len(arguments) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    build, keep, drop = Path(arguments[0]), arguments[1].split(","), arguments[2].split(",")
    known = libraries(build)
    roots = set(arguments[3:])
    if lacking := sorted(roots - set(known)):
        print(f"toolchain: this LLVM has no library {', '.join(lacking)}", file=sys.stderr)
        return 3
    for name in known:
        if any(fnmatch.fnmatchcase(name, k) for k in keep) and not any(fnmatch.fnmatchcase(name, d) for d in drop):
            roots.add(name)
    print(";".join(sorted(closure(known, roots))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
