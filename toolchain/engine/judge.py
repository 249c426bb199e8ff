"""Check the tree of a build, and find the first error in the log of a failed build."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from toolchain.core import process
from toolchain.core.errors import BuildError, HostileInputError

_PROGRESS = ("@ninja ", "@count ", "@step ")
_FIRST_STEP = "@step configure"
# buildah adds these lines after the output of a failed command.
_NOISE = re.compile(r"^(subprocess exited with status \d+|Error: building at STEP .*|time=\".*)$")
_ERROR = re.compile(r"(^|[\s:])(fatal )?error: |^CMake Error|undefined (reference|symbol)")
_EXCEPTION = re.compile(r"([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b")  # the last line of a Python traceback
_SHOWN, _ENDING = 12, 6  # numbers of lines: from the first error on, and from the end of the log


def require_inside(tree: Path, name: str) -> None:
    """Raise a HostileInputError unless a built tree contains only regular files, folders, and links to paths in it.

    Args:
        name: the name of the recipe, for the message.
    """
    top = os.path.realpath(tree)
    for folder, names, files in os.walk(tree):
        for entry in (*names, *files):
            path = os.path.join(folder, entry)  # noqa: PTH118 - pathlib is slow
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                if f"{os.path.realpath(path)}/".startswith(f"{top}/"):
                    continue
                why = f"the link /{os.path.relpath(path, tree)} leads to {os.readlink(path)}"  # noqa: PTH115
            elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                continue
            else:
                why = f"/{os.path.relpath(path, tree)} is not a file, link or folder"
            raise HostileInputError(
                "build-tree-hostile",
                f"the build of {name} wrote a file that is refused",
                why=why,
                fix="check the install rules of the source",
            )


def build_error(name: str, error: process.CommandError) -> BuildError:
    # A script that tries again prints its first step again. Only the last try counts.
    last = max((number for number, line in enumerate(error.tail) if line == _FIRST_STEP), default=0)
    lines = [line for line in error.tail[last:] if not line.startswith(_PROGRESS) and not _NOISE.match(line)]
    what = f"building {name} failed"
    # If a recipe's script recognizes the cause of a failure, it prints `toolchain: ` and the cause.
    messages = [line.removeprefix("toolchain: ") for line in lines if line.startswith("toolchain: ")]
    if messages:
        what = f"{what}: {messages[-1]}"
    return BuildError("build-failed", what, why=first_error(lines), fix="read the end of the log")


def first_error(lines: Sequence[str]) -> str:
    """Return the first error of a compiler, linker or CMake with the lines after it, and the last lines of the log.

    If the error is CMake's and a Python traceback precedes it, the lines begin with the exception, because a failed
    Python script is the likely cause. If there is no error, only the last lines are returned.
    """
    at = next((number for number, line in enumerate(lines) if _ERROR.search(line)), None)
    if at is None:
        return "\n".join(lines[-process.TAIL_LINES :])
    if lines[at].startswith("CMake Error"):
        at = next((number for number in range(1, at) if _ends_traceback(lines, number)), at)
    shown = list(lines[at : at + _SHOWN])
    rest = [line for line in lines[at + _SHOWN :] if not line.startswith("FAILED: ")][-_ENDING:]
    return "\n".join([*shown, *(["…"] if rest else []), *rest])


def _ends_traceback(lines: Sequence[str], number: int) -> bool:
    return lines[number - 1].startswith("  ") and _EXCEPTION.match(lines[number]) is not None
