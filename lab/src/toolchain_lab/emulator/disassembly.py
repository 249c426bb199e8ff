"""Disassembly of code objects with llvm-objdump."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from toolchain_lab.emulator.errors import DisassemblerError, NotEmulatedError, ProgramError

VARIABLE = "TOOLCHAIN_LLVM_OBJDUMP"
# The newest version is first, because a new GPU needs a new disassembler.
_NAMES = (*(f"llvm-objdump-{version}" for version in range(30, 18, -1)), "llvm-objdump")
# LLVM 19 is the oldest supported version, because LLVM 18 prints a different syntax. Some GPUs need a newer version.
_OLDEST = 19
_OLDEST_FOR = {"gfx950": 20}
# On gfx11 and later, a 16-bit instruction can access one half of a register. Versions of LLVM before 22 print the whole
# register instead, and LLVM 22 prints the whole register for gfx12 unless the attribute real-true16 is given.
_RDNA = re.compile("gfx1[12]")
_OLDEST_RDNA = 22
_HALVES = "--mattr=+real-true16"
_LINE = re.compile(r"\t(\S.*?)\s*// ([0-9A-F]{12}): ([0-9A-F]{8}(?: [0-9A-F]{8})*)(?: <[^>]*>)?$")
_VERSION = re.compile(r"LLVM version (\d+)\.(\d+)\.(\d+)")
_LIMIT = 300.0  # seconds that llvm-objdump may take for a code object
# This is a function that runs a command with a timeout in seconds, and returns the command's output. It raises
# ProgramError if the command fails or exceeds the timeout.
Run = Callable[[Sequence[str | Path], float], str]


@dataclass(frozen=True)
class Disassembler:
    """An installed llvm-objdump."""

    path: Path
    version: tuple[int, int, int]
    run: Run

    @property
    def label(self) -> str:
        """The program's name and version, such as `llvm-objdump 22.1.8`."""
        return "llvm-objdump " + ".".join(str(part) for part in self.version)


@dataclass(slots=True)
class Line:
    """An instruction in a disassembly: its address, its text and its encoding in words of 32 bits."""

    address: int
    text: str
    words: tuple[int, ...]


def find_disassembler(run: Run, given: Path | None = None) -> Disassembler:
    """Find llvm-objdump.

    The path `given` takes precedence over the one in the environment variable TOOLCHAIN_LLVM_OBJDUMP. If neither is
    set, the newest version from 19 to 30 that is found as `llvm-objdump-VERSION` on PATH or as
    /usr/lib/llvm-VERSION/bin/llvm-objdump is used, or `llvm-objdump` on PATH if no such version is found.
    """
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        return _disassembler(str(named), run)
    # Relative entries of PATH are ignored, because a program found through them, such as one in the current folder, may
    # not be trustworthy.
    folders = os.pathsep.join(at for at in os.environ.get("PATH", "").split(os.pathsep) if at.startswith("/"))
    for name in _NAMES:
        path = shutil.which(name, path=folders) or next((str(p) for p in _packaged(name) if p.is_file()), None)
        if path is not None:
            return _disassembler(path, run)
    raise DisassemblerError(
        "disassembler-missing",
        "llvm-objdump is not installed",
        why="the emulator disassembles code objects with it",
        fix=f"run apt-get install llvm-22, or give the path of an llvm-objdump with --objdump or {VARIABLE}",
    )


def _packaged(name: str) -> list[Path]:
    version = name.rpartition("-")[2]
    return [Path(f"/usr/lib/llvm-{version}/bin/llvm-objdump")] if version.isdigit() else []


@lru_cache(maxsize=8)
def _disassembler(path: str, run: Run) -> Disassembler:
    try:
        printed = run([path, "--version"], 60)
    except ProgramError as error:
        raise DisassemblerError(
            "disassembler-unusable",
            f"{path} does not run",
            why=str(error),
            fix="give the path of an llvm-objdump that runs: --objdump PATH",
        ) from error
    match = _VERSION.search(printed)
    if match is None:
        raise DisassemblerError(
            "disassembler-unusable",
            f"{path} is not llvm-objdump",
            fix="give the path of an llvm-objdump: --objdump PATH",
        )
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version[0] < _OLDEST:
        raise DisassemblerError(
            "disassembler-too-old",
            f"{path} is too old",
            why=f"it is LLVM {'.'.join(map(str, version))}, and the oldest supported version is {_OLDEST}",
            fix="run apt-get install llvm-22, or give the path of a newer one: --objdump PATH",
        )
    return Disassembler(Path(path), version, run)


def disassemble(path: Path, gpu: str, disassembler: Disassembler) -> tuple[Line, ...]:
    """Return the instructions of a code object, in the order in which llvm-objdump prints them.

    NotEmulatedError is raised if the disassembler is too old for the GPU, fails, or prints an unexpected line.
    """
    (lines,) = disassemble_all([path], gpu, disassembler)
    return lines


def disassemble_all(
    paths: Sequence[Path], gpu: str, disassembler: Disassembler, *, stop: int | None = None
) -> list[tuple[Line, ...]]:
    """Return the instructions of each code object as `disassemble` does, with one call of llvm-objdump.

    Args:
        paths: the code objects, which must all be for `gpu`.
        stop: the address at which to stop; the last instruction before it may be cut. By default all are returned.
    """
    rdna = _RDNA.match(gpu) is not None
    oldest = _OLDEST_RDNA if rdna else _OLDEST_FOR.get(gpu, _OLDEST)
    if disassembler.version[0] < oldest:
        raise NotEmulatedError(
            "disassembler-lacks-gpu",
            f"{disassembler.label} is too old for {gpu}",
            why=f"the oldest supported version for this GPU is LLVM {oldest}",
            fix="give the path of a newer one: --objdump PATH",
        )
    options = [*([_HALVES] if rdna else []), *([f"--stop-address={stop:#x}"] if stop is not None else [])]
    try:
        printed = disassembler.run([disassembler.path, "-d", *options, *paths], _LIMIT)
    except ProgramError as error:
        raise NotEmulatedError(
            "object-not-decoded",
            f"{disassembler.label} could not decode {paths[0].name}",
            why=str(error),
            fix="compile the object again",
        ) from error
    # A line with the path precedes the instructions of each code object. The first such line is not needed.
    listed: dict[str, list[Line]] = {f"{path.absolute()}:\tfile format elf64-amdgpu": [] for path in paths}
    lines = next(iter(listed.values()))
    for text in printed.splitlines():
        if match := _LINE.match(text):
            words = tuple(int(word, 16) for word in match[3].split())
            lines.append(Line(int(match[2], 16), match[1], words))
        elif text.startswith("\t"):
            raise NotEmulatedError(
                "disassembly-unknown",
                f"{disassembler.label} printed an unexpected line",
                why=text.strip()[:200],
                fix="report it with the code object",
            )
        else:
            lines = listed.get(text, lines)
    return [tuple(each) for each in listed.values()]
