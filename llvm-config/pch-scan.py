"""Which sources must go without a precompiled header. Called by pch.cmake.

A PCH puts all its headers into every file. That is meant to change nothing but the time, and it does not, but for one
header: llvm/Config/abi-breaking.h defines a variable, so a source that does not include it by itself would get a symbol
it does not have without the PCH. Those few sources include next to nothing and gain nothing from a PCH either.

usage: pch-scan.py LIST FOLDER...
    LIST holds a source's path on each line; FOLDERs are searched for headers. Prints the sources to leave out.
The search reads #include lines and knows no conditions, so it may take a source for one that includes the header though
a condition keeps it out; a source that it prints certainly does not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MARKER = "llvm/Config/abi-breaking.h"
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def includes(path: Path, known: dict[Path, list[str]]) -> list[str]:
    """The names that a file includes."""
    if path not in known:
        try:
            known[path] = [name.decode(errors="replace") for name in _INCLUDE.findall(path.read_bytes())]
        except OSError:
            known[path] = []
    return known[path]


def reaches(source: Path, folders: list[Path], known: dict[Path, list[str]], where: dict[str, Path | None]) -> bool:
    """Whether `source` includes the marker, directly or through others."""
    seen: set[Path] = set()
    todo = [source]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in includes(path, known):
            if name == MARKER:
                return True
            beside = path.parent / name
            if beside.is_file():
                todo.append(beside)
                continue
            if name not in where:
                where[name] = next((folder / name for folder in folders if (folder / name).is_file()), None)
            found = where[name]
            if found is not None:
                todo.append(found)
    return False


def main(arguments: list[str]) -> None:
    """Print the sources to leave out."""
    folders = [Path(folder) for folder in arguments[1:]]
    known: dict[Path, list[str]] = {}
    where: dict[str, Path | None] = {}
    for line in Path(arguments[0]).read_text().splitlines():
        if line and not reaches(Path(line), folders, known, where):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
