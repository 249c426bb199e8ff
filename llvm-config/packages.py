"""Makes the CMake packages of an LLVM free of the folders that it was built in.

    packages.py FOLDER PATH...

Reads every `*.cmake` below FOLDER. The packages of older LLVMs set variables to folders of the build and of the source,
which no consumer has: the one for generated headers becomes the installed headers' folder, the others go. Exit code 3
when a file names one of the PATHs in another way.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# What means the same in an installed LLVM, by variable.
INSTALLED = {"MLIR_INCLUDE_DIR": "${MLIR_INCLUDE_DIRS}"}
_SET = re.compile(r'set\(([A-Za-z0-9_]+) "[^"]*"\)')


def cleaned(text: str, named: re.Pattern[str]) -> tuple[str, list[str]]:
    """The text without lines that `named` matches, and those of them that are not a plain `set(NAME "VALUE")`."""
    kept, strange = [], []
    for line in text.splitlines(keepends=True):
        if not named.search(line):
            kept.append(line)
        elif (match := _SET.fullmatch(line.strip())) is None:
            strange.append(line.strip())
        elif match[1] in INSTALLED:
            kept.append(f'set({match[1]} "{INSTALLED[match[1]]}")\n')
    return "".join(kept), strange


def main(arguments: list[str]) -> int:
    """Run as a program."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    paths = "|".join(re.escape(path) for path in arguments[1:])
    named = re.compile(rf"(?:^|[^A-Za-z0-9_./>}})-])(?:{paths})(?:[^A-Za-z0-9_.-]|$)")
    failed = 0
    for file in sorted(Path(arguments[0]).rglob("*.cmake")):
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
        clean, strange = cleaned(text, named)
        for line in strange:
            print(f"toolchain: {file.name} names a folder of the build: {line}", file=sys.stderr)
            failed = 3
        if clean != text:
            file.write_text(clean, encoding="utf-8", errors="surrogateescape")
            print(f"{file.name}: no folder of the build is named any more")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
