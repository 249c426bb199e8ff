"""Print the sources that must be compiled without a precompiled header. pch.cmake runs this program.

A PCH adds its headers to every source. One of these headers, llvm/Config/abi-breaking.h, defines a variable, so a
source that does not include it would get a symbol that it does not have without the PCH. Such sources include few
headers and would not profit from a PCH.

usage: pch-scan.py LIST FOLDER...
    LIST is a file with the path of a source on each line. Headers are searched for in the FOLDERs.
The program reads only the unconditional #include lines of a source, because some sources are one large #ifdef. It
ignores conditions in headers, so it may keep a source whose include of the header is switched off.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MARKER = "llvm/Config/abi-breaking.h"
# pch-measure.py found that these objects differ with a PCH, because the compiler numbers a private label differently or
# emits an unused inline function. The source does not show this.
NAMED = ("llvm/lib/Analysis/ConstantFolding.cpp", "llvm/lib/Support/Timer.cpp")
_CONDITION = re.compile(rb"^[ \t]*#[ \t]*(if|endif)")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def unconditional(content: bytes) -> bytes:
    """Return the lines of a source that are not inside an #if."""
    kept, depth = [], 0
    for line in content.splitlines(keepends=True):
        if found := _CONDITION.match(line):
            depth += 1 if found[1] == b"if" else -1
        elif depth <= 0:
            kept.append(line)
    return b"".join(kept)


class Includes:
    """The graph of includes of a set of sources."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._found: dict[str, Path | None] = {}
        self._names: dict[Path, set[Path]] = {}
        self._direct: set[Path] = set()

    def _resolve(self, name: str, includer: Path) -> Path | None:
        beside = includer.parent / name
        if beside.is_file():
            return beside
        if name not in self._found:
            self._found[name] = next((f / name for f in self._folders if (f / name).is_file()), None)
        return self._found[name]

    def add(self, sources: list[Path]) -> None:
        """Read the sources and all headers that they include."""
        todo, own = list(sources), set(sources)
        while todo:
            path = todo.pop()
            if path in self._names:
                continue
            below: set[Path] = set()
            self._names[path] = below
            try:
                content = path.read_bytes()
            except OSError:
                continue
            for raw in _INCLUDE.findall(unconditional(content) if path in own else content):
                name = raw.decode(errors="replace")
                if name == MARKER:
                    self._direct.add(path)
                elif (found := self._resolve(name, path)) is not None:
                    below.add(found)
            todo.extend(below)

    def reaching(self) -> set[Path]:
        """Return every file that includes the marker, directly or indirectly."""
        includers: dict[Path, list[Path]] = {}
        for path, below in self._names.items():
            for one in below:
                includers.setdefault(one, []).append(path)
        seen = set(self._direct)
        todo = list(seen)
        while todo:
            for path in includers.get(todo.pop(), ()):
                if path not in seen:
                    seen.add(path)
                    todo.append(path)
        return seen


def main(arguments: list[str]) -> None:
    """Print the sources that must not use a PCH."""
    sources = [Path(line) for line in Path(arguments[0]).read_text().splitlines() if line]
    graph = Includes([Path(folder) for folder in arguments[1:]])
    graph.add(sources)
    reaching = graph.reaching()
    for source in sources:
        if source not in reaching or source.as_posix().endswith(NAMED):
            print(source)


if __name__ == "__main__":
    main(sys.argv[1:])
