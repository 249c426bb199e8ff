"""Run the table generators of an LLVM build under other heaps and conditions, and compare what they write.

    python -m scripts.generator_variation BUILD --results FILE [--at PATH=FOLDER]... [--seeds N] [--long N] [--jobs N]

BUILD is a Ninja build folder of LLVM that contains the compiled generators. If the build ran in a container, `--at`
maps a path of the container to the local folder with its files, for example `--at /src=tree/src`. The program runs each
call once as usual, once under other conditions (variables, locale, time zone, umask, no address randomization), and
once for each seed with the allocator of `reproduce --vary`. A call that takes five seconds or more runs only with the
first `--long` seeds. The program appends a JSON line for each call to FILE, and skips the calls that FILE already
contains. It prints a summary, and exits with 1 if the output of a call differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from scripts.heaps import compile_heap

# CMake appends `&& cmake -E cmake_transform_depfile …` to the calls of LLVM 20 and newer.
CALL = re.compile(r"^ +COMMAND = cd (\S+) && (\S+/bin/\S+-tblgen (?:(?! && ).)*)", re.MULTILINE)
LONG = 5.0  # seconds
CONDITIONS = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "HOME": "/nowhere", "USER": "other", "COLUMNS": "41"}


class Row(NamedTuple):
    """The result of a call.

    Args:
        out: the output as Ninja names it.
        program: the name of the generator.
        seconds: the duration of the usual run.
        seeds: the number of seeds that the call ran with.
        conditions: whether the files were the same under the other conditions.
        differing: the number of seeds for which the files differed.
    """

    out: str
    program: str
    seconds: float
    seeds: int
    conditions: bool
    differing: int


class Call(NamedTuple):
    """A call of a generator: the output as Ninja names it, the working folder, and the command line."""

    out: str
    folder: Path
    words: list[str]


def calls(build: Path, at: Mapping[str, str]) -> list[Call]:
    """Return the calls of a build, with the paths in `at` replaced by local folders."""

    def here(word: str) -> str:
        for path, folder in at.items():
            word = re.sub(rf"^(-I)?{re.escape(path)}(?=/|$)", rf"\g<1>{folder}", word)
        return word

    found = []
    for folder, line in CALL.findall((build / "build.ninja").read_text(errors="surrogateescape")):
        words = [word for word in shlex.split(line.replace("$$", "$")) if word != "--write-if-changed"]
        found.append(Call(words[words.index("-o") + 1], Path(here(folder)), [here(word) for word in words]))
    return found


def digest(call: Call, before: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run a call with its outputs in a temporary folder, and return the digest of all files except the dependency file.

    Args:
        before: words to put before the command line.
        variables: environment variables to add or replace.
    """
    with tempfile.TemporaryDirectory() as name:
        words = list(call.words)
        for option in ("-o", "-d"):
            if option in words:
                place = words.index(option) + 1
                words[place] = str(Path(name) / Path(words[place]).name)
        # The dependency file is not compared, because it contains the name of the temporary folder.
        depends = Path(words[words.index("-d") + 1]) if "-d" in words else None
        subprocess.run([*before, *words], cwd=call.folder, env={**os.environ, **variables}, check=True)
        total = hashlib.sha256()
        for path in sorted(Path(name).iterdir()):
            if path != depends:
                total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


def examine(call: Call, heaps: Sequence[Path], long: int) -> Row:
    """Run a call as usual, under the other conditions and with each heap, and return its row.

    Args:
        heaps: the compiled allocators, one for each seed.
        long: the number of heaps for a call that takes `LONG` seconds or more.
    """
    start = time.monotonic()
    usual = digest(call, (), {})
    seconds = time.monotonic() - start
    other = digest(call, ("setarch", "--addr-no-randomize", "sh", "-c", 'umask 027; exec "$@"', "sh"), CONDITIONS)
    used = heaps if seconds < LONG else heaps[:long]
    differing = sum(digest(call, (), {"LD_PRELOAD": str(heap)}) != usual for heap in used)
    name = Path(call.words[0]).name
    return Row(call.out, name, round(seconds, 2), len(used), conditions=other == usual, differing=differing)


def main(argv: Sequence[str]) -> int:
    """Run all calls that have no row in the file of results, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--at", action="append", default=[], metavar="PATH=FOLDER")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--long", type=int, default=6, help="the number of seeds for slow calls")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(argv)
    build = given.build.resolve()
    at = {path: str(Path(folder).resolve()) for path, folder in (one.split("=", 1) for one in given.at)}
    rows = (
        [Row(**json.loads(line)) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    )
    planned = calls(build, at)
    left = [call for call in planned if call.out not in {row.out for row in rows}]
    with tempfile.TemporaryDirectory() as name, given.results.open("a") as results:
        heaps = [compile_heap(Path(name), seed) for seed in range(1, given.seeds + 1)]
        with ThreadPoolExecutor(given.jobs) as pool:
            running = [pool.submit(examine, call, heaps, given.long) for call in left]
            for done in as_completed(running):
                row = done.result()
                results.write(json.dumps(row._asdict()) + "\n")
                results.flush()
                rows.append(row)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    differing = sorted(row.out for row in rows if row.differing or not row.conditions)
    summary = {
        "calls": len(planned),
        "rows": len(rows),
        "differing": differing,
        "seconds": round(sum(row.seconds for row in rows), 1),
        "cpu": round(used.ru_utime + used.ru_stime, 1),
    }
    sys.stdout.write(json.dumps(summary) + "\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
