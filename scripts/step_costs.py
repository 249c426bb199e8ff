"""Write a table of `toolchain/data/step_costs.toml` from logs of one build: what ninja's steps cost, in their order.

    python scripts/step_costs.py [--quiet] NAME TOTAL LOG...

With `--quiet` nothing else was at work on the machine, and the steps cost what they took. Otherwise the logs are those
of one build in their order, each going on where the one before it was killed. The machine's load changes while it
builds: within each quarter of an hour, what the steps took is set in relation to what their kind takes on an idle
machine, and the rest is held for load. Steps that came from the compiler cache count as their kind.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

_LINE = re.compile(r"^@ninja (\d+)/(\d+) +(\d+) +([\d.]+)@ ?(.*)$")
_OBJECT = re.compile(r"^Building (CXX|C|ASM) object (.*?)/CMakeFiles/")
# Seconds of one core by kind, LLVM 22.1.8 on an idle machine (a Xeon of 2.5 GHz): 13,751 s of 4,279 steps in all, 415 s
# of the 107 of the table generators, 294 s of the 189 of LLVMSupport.
_KINDS = (
    (r"(lib/Support|lib/Demangle)$", 1.5),
    (r"utils/TableGen/Common", 4.2),
    (r"utils/TableGen$", 6.0),
    (r"(lib/TableGen|utils/TableGen/Basic|tools/mlir/lib/TableGen)", 3.4),
    (r"tools/mlir/tools/mlir-tblgen", 2.2),
    (r"tools/mlir", 7.2),
    (r"C ", 0.4),
    (r"", 4.5),
)
_GENERATED, _OTHER = 0.2, 0.2
_HALF_WINDOW = 450.0
_BLOCK = 8
_CACHED = 6.0
_ROW = 25


def place(label: str) -> str:
    """The folder that a step compiles in, or what else it does."""
    if found := _OBJECT.match(label):
        return found[2] if found[1] == "CXX" else f"C {found[2]}"
    return "generated" if label.startswith("Building") else "other"


def usual(label: str) -> float:
    """Seconds of one core that a step of this kind takes."""
    where = place(label)
    if where in {"generated", "other"}:
        return _GENERATED if where == "generated" else _OTHER
    return next(seconds for pattern, seconds in _KINDS if re.match(pattern, where))


def compiling(text: str) -> str:
    """A log from its compile step on: a cross build's configure step has a ninja of its own."""
    return text[max(0, text.find("@step compile\n")) :]


def steps(log: Path) -> Iterator[tuple[str, float, float]]:
    """Label, when it ended, and the seconds of cores since the step before it, of the first run of ninja."""
    before, last = 0.0, 0
    for line in compiling(log.read_text(encoding="utf-8", errors="replace")).splitlines():
        if found := _LINE.match(line):
            if int(found[1]) < last:
                return  # the install step runs ninja again
            now, label, last = float(found[4]), found[5], int(found[1])
            if not label.startswith("Re-running"):
                yield label, now, (now - before) * max(1, int(found[3]))
            before = now


def without_load(log: Path) -> Iterator[tuple[str, float]]:
    """Label and seconds of one core on an idle machine, of each step of a log."""
    taken = list(steps(log))
    cached: set[int] = set()
    for begin in range(0, len(taken), _BLOCK):
        block = taken[begin : begin + _BLOCK]
        if sum(usual(label) for label, _, _ in block) > _CACHED * sum(seconds for _, _, seconds in block):
            cached.update(range(begin, begin + len(block)))
    own = [(label, now, seconds) for at, (label, now, seconds) in enumerate(taken) if at not in cached]
    times = [now for _, now, _ in own]
    spent = [0.0, *accumulate(seconds for _, _, seconds in own)]
    expected = [0.0, *accumulate(usual(label) for label, _, _ in own)]
    for at, (label, now, seconds) in enumerate(taken):
        first, last = bisect_left(times, now - _HALF_WINDOW), bisect_right(times, now + _HALF_WINDOW)
        load = (spent[last] - spent[first]) / (expected[last] - expected[first]) if last > first else 1.0
        yield label, usual(label) if at in cached or not load else seconds / max(load, 1.0)


def rows(found: Sequence[tuple[str, float]]) -> Iterator[tuple[int, float, str]]:
    """How many in a row, seconds of each, and the folder that most of them are of."""
    at = 0
    while at < len(found):
        end = at + _ROW
        while end < len(found) and place(found[end][0]) == place(found[end - 1][0]):
            end += 1
        part = found[at:end]
        yield (
            len(part),
            sum(seconds for _, seconds in part) / len(part),
            Counter(place(one) for one, _ in part).most_common(1)[0][0],
        )
        at = end


def as_taken(log: Path) -> Iterator[tuple[str, float]]:
    """Label and seconds of one core of each step of a log whose machine did nothing else."""
    for label, _, seconds in steps(log):
        yield label, seconds


def main(*words: str) -> None:
    read = as_taken if words[0] == "--quiet" else without_load
    name, total, *logs = words[1:] if words[0] == "--quiet" else words
    found = [one for log in logs for one in read(Path(log))]
    print(f"[{name}]\nsteps = [")
    for count, seconds, where in rows(found):
        print(f'  [{count}, {seconds:.2f}, "{where}"],')
    if (rest := int(total) - len(found)) > 0:
        mean = sum(seconds for _, seconds in found[-500:]) / len(found[-500:])
        print(f'  [{rest}, {mean:.2f}, "not seen: the mean of those before"],')
    print("]")


if __name__ == "__main__":
    main(*sys.argv[1:])
