#!/usr/bin/env python3
"""Measure the CPU time that precompiled headers save, by compiling sampled objects with them and without.

    pch-measure.py BUILD OBJECTS [SEED]

The program runs inside the base, with the tree and the sources at the paths where they were built, and samples from the
objects that exist. It calls the compiler without ccache and the launcher, and alternates which of the two ways comes
first. It prints a JSON object for each source, and then one with the sums: the CPU seconds (user and system) without
and with the headers, and the objects whose bytes differ. The exit code is 1 if an object differs.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PCH = "-include-pch"


def words(command: str) -> list[str]:
    """Return the words of a command, without the launchers and the options for a dependency file."""
    all_words = shlex.split(command)
    start = next(i for i, word in enumerate(all_words) if Path(word).name.startswith("clang"))
    kept, skip = [], 0
    for word in all_words[start:]:
        if skip:
            skip -= 1
        elif word in {"-MD", "-MMD"}:
            pass
        elif word in {"-MT", "-MF", "-MQ"}:
            skip = 1
        else:
            kept.append(word)
    return kept


def without_pch(command: list[str]) -> list[str]:
    """Return the command without `-Xclang -include-pch -Xclang FILE -Xclang -include -Xclang FILE`."""
    at = command.index(PCH) - 1
    return command[:at] + command[at + 8 :]


def compiled(command: list[str], directory: str, target: Path) -> tuple[float, bytes] | None:
    """Return the CPU seconds and the bytes of the object, or None if the source does not compile."""
    command = list(command)
    command[command.index("-o") + 1] = str(target)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=directory, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return None
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, target.read_bytes()


def main(build: Path, count: int, seed: int) -> int:
    """Measure the sample and print the results."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    # The objects that only own a precompiled header are not part of LLVM.
    entries = [entry for entry in entries if PCH in entry["command"] and "/toolchain-pch/" not in entry["output"]]
    entries = [entry for entry in entries if (build / entry["output"]).is_file()]
    entries.sort(key=lambda entry: str(entry["output"]))
    random.Random(seed).shuffle(entries)  # noqa: S311 - a sample, no secret
    sums: dict[str, list[float]] = {}
    different, fell_back, done = [], [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for entry in entries:
            if done == count:
                break
            command, target = words(entry["command"]), Path(scratch) / "object.o"
            ways = {"with": command, "without": without_pch(command)}
            order = list(ways) if done % 2 else list(reversed(ways))
            results = {way: compiled(ways[way], entry["directory"], target) for way in order}
            name = os.path.relpath(build / entry["output"], build)
            first, second = results["without"], results["with"]
            if first is None or second is None:
                fell_back.append(name)
                continue
            done += 1
            if first[1] != second[1]:
                different.append(name)
            row = sums.setdefault("mlir" if "mlir" in name.lower() else "llvm", [0, 0.0, 0.0])
            row[0] += 1
            row[1] += first[0]
            row[2] += second[0]
            shown = {
                "object": name,
                "without": round(first[0], 2),
                "with": round(second[0], 2),
                "same": first[1] == second[1],
            }
            print(json.dumps(shown), flush=True)
    families = {
        name: {
            "objects": int(row[0]),
            "without": round(row[1], 1),
            "with": round(row[2], 1),
            "saved": round(1 - row[2] / row[1], 3),
        }
        for name, row in sorted(sums.items())
    }
    print(json.dumps({"objects": done, "families": families, "different": different, "do_not_compile": fell_back}))
    return 1 if different else 0


if __name__ == "__main__":
    if len(sys.argv) not in {3, 4}:
        sys.exit((__doc__ or "").strip())
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
