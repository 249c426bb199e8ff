"""Remove the folders of the build from the CMake packages of an LLVM.

    packages.py FOLDER PATH...

The program edits every `*.cmake` below FOLDER. The packages of older LLVMs set variables to folders of the build and of
the source, which a consumer does not have. The program sets the variable for generated headers to the folder of the
installed headers, and removes the other variables. The exit code is 3 if a file contains one of the PATHs elsewhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# The variables that are set to another folder instead of being removed.
INSTALLED = {"MLIR_INCLUDE_DIR": "${MLIR_INCLUDE_DIRS}"}
_SET = re.compile(r'set\(([A-Za-z0-9_]+) "[^"]*"\)')


def cleaned(text: str, named: re.Pattern[str]) -> tuple[str, list[str]]:
    """Remove the lines that match `named`; return the text, and the removed lines that are not `set(NAME "VALUE")`."""
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
    """Clean the packages and return the exit code."""
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
            print(f"{file.name}: removed the folders of the build")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
