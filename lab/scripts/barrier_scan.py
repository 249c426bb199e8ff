"""Find barriers that do not wait for an LDS store, in compiled AMD kernels, without running them.

    python lab/scripts/barrier_scan.py FOLDER|FILE.hsaco…

The script follows all paths of a kernel, and prints each barrier that a path reaches while an LDS store is outstanding.
The emulator finds such barriers only on the path that it executes. docs/lab/llvm-barrier.md describes the bug in LLVM
that causes these barriers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from toolchain_lab.bridge import disassembler, load  # noqa: E402
from toolchain_lab.emulator.control import branch, wait  # noqa: E402
from toolchain_lab.emulator.errors import EmulatorError  # noqa: E402
from toolchain_lab.emulator.program import Program  # noqa: E402
from toolchain_lab.emulator.scoreboard import BARRIERS, LDS_STORE  # noqa: E402
from toolchain_lab.emulator.syntax import Instruction, parse  # noqa: E402

_SAME_COUNTER = re.compile(r"ds_|s_load|s_buffer_load|s_sendmsg")
_NONE = 1 << 20


def barriers(instructions: Sequence[Instruction]) -> list[tuple[int, str]]:
    """Return the address and the name of each barrier that a path reaches while an LDS store is outstanding."""
    places = {instruction.address: number for number, instruction in enumerate(instructions)}
    # For each instruction, the smallest number of accesses that a path has begun since its last LDS store.
    younger = [_NONE + 1] * len(instructions)
    found, pending = set(), [(0, _NONE)]
    while pending:
        number, count = pending.pop()
        if number >= len(instructions) or count >= younger[number]:
            continue
        younger[number] = count
        instruction = instructions[number]
        if instruction.name in BARRIERS and count < _NONE:
            found.add((instruction.address, instruction.name))
        pending += [(after, _counted(instruction, count)) for after in _following(instruction, number, places)]
    return sorted(found)


def _counted(instruction: Instruction, count: int) -> int:
    if LDS_STORE.match(instruction.name):
        return 0
    if _SAME_COUNTER.match(instruction.name):
        return min(count + 1, _NONE)
    if instruction.name.startswith("s_wait"):
        waits = wait(instruction)
        if min(waits.get("lgkm", _NONE), waits.get("ds", _NONE)) <= count:
            return _NONE
    return count


def _following(instruction: Instruction, number: int, places: dict[int, int]) -> Iterator[int]:
    if instruction.name == "s_endpgm":
        return
    jump = branch(instruction)
    if jump is not None and jump.target in places:
        yield places[jump.target]
    if instruction.name != "s_branch":
        yield number + 1


def main(*given: str) -> None:
    decode, count, bad, skipped = disassembler(), 0, 0, 0
    for place in map(Path, given):
        for path in sorted(place.rglob("*.hsaco")) if place.is_dir() else [place]:
            count += 1
            try:
                lines = Program.of(load(path), decode).lines
                found = barriers([parse(line) for line in lines])
            except EmulatorError as error:
                skipped += 1
                print(f"{path.name}: the file was not read: {error.what}")
                continue
            bad += bool(found)
            for address, name in found:
                print(f"{path.name}: {name} at {address:#x} does not wait for an LDS store")
    print(f"{count} files, {bad} with such a barrier, {skipped} not read")


if __name__ == "__main__":
    main(*sys.argv[1:])
