#!/usr/bin/env python3
"""What cross-compiling saves against emulation: compiles sampled files of a cross-compiled tree twice.

    cross_measure.py BUILD ROOT EMULATOR FILES [SEED]

Once by this machine's clang for the other machine, once by the other machine's own clang under EMULATOR (qemu-
aarch64-static, say). ROOT is a system of the other machine with the same clang unpacked in it. Runs where BUILD was
configured and built: inside the base, with the tree, the sources and the sysroot at the places they were built at. No
precompiled header, ccache or launcher takes part: an emulated build would have to make its own. Which of the two
comes first alternates. Prints a JSON object a file, then one with the sums: CPU seconds (user and system) both ways,
and the objects whose bytes differ. Exit code 1 when one differs.
"""

from __future__ import annotations

import json
import random
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path


def words(command: str) -> list[str]:
    """The compiler's own words: from the compiler on, without dependency file and precompiled header."""
    given = shlex.split(command)
    kept: list[str] = []
    rest = iter(given[next(i for i, word in enumerate(given) if Path(word).name.startswith("clang")) :])
    for word in rest:
        if word in {"-MD", "-MMD"}:
            continue
        if word in {"-MT", "-MF", "-MQ"}:
            next(rest)
        elif word == "-Xclang":
            option = next(rest)
            if option in {"-include-pch", "-include"}:
                next(rest), next(rest)  # -Xclang FILE
            else:
                kept += [word, option]
        elif word != "-fpch-preprocess":
            kept.append(word)
    return kept


def compiled(command: list[str], directory: str, target: Path) -> tuple[float, bytes]:
    """CPU seconds and the object's bytes.

    Raises:
        CalledProcessError: it does not compile.
    """
    command = list(command)
    command[command.index("-o") + 1] = str(target)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=directory, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, target.read_bytes()


def main(build: Path, root: Path, emulator: str, count: int, seed: int) -> int:
    """Run as a program."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    entries = [one for one in entries if one["file"].endswith(".cpp") and (build / one["output"]).is_file()]
    entries = [one for one in entries if "toolchain-pch" not in one["output"]]
    entries.sort(key=lambda one: str(one["output"]))
    random.Random(seed).shuffle(entries)  # noqa: S311 - a sample, no secret
    sums = {"cross": 0.0, "emulated": 0.0}
    different = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, entry in enumerate(entries[:count]):
            cross, target = words(entry["command"]), Path(scratch) / "object.o"
            (own,) = sorted(root.glob(f"usr/lib/llvm-*/bin/{Path(cross[0]).name}"))
            ways = {"cross": cross, "emulated": [emulator, "-L", str(root), str(own), *cross[1:]]}
            results = {
                way: compiled(ways[way], entry["directory"], target)
                for way in (list(ways) if number % 2 else list(reversed(ways)))
            }
            same = results["cross"][1] == results["emulated"][1]
            if not same:
                different.append(entry["output"])
            for way, (seconds, _) in results.items():
                sums[way] += seconds
            shown = {way: round(seconds, 2) for way, (seconds, _) in results.items()}
            print(json.dumps({"object": entry["output"], **shown, "same": same}), flush=True)
    total = {way: round(seconds, 1) for way, seconds in sums.items()}
    print(json.dumps({"objects": len(entries[:count]), **total, "different": different}))
    return 1 if different else 0


if __name__ == "__main__":
    if len(sys.argv) not in {5, 6}:
        sys.exit((__doc__ or "").strip())
    seed_word = sys.argv[5] if len(sys.argv) > 5 else "1"
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(seed_word)))
