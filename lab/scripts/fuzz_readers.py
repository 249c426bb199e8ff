"""Read mutants of every kind of file that can contain kernels, and report the mutants that the tool cannot handle.

    python lab/scripts/fuzz_readers.py [--each 2000] [--seed 1] [--kinds aks2,wheel,…] [--json FILE] [--keep DIR]

The script compiles two code objects, and makes the files from them. A mutant is a file with a few changed places, or a
container that is packed again after its content has been changed. The script reads each mutant as the verbs read it,
without a separate process. A mutant passes if it is read, or if the tool raises an error of its own. The script reports
a fault if a mutant causes another exception, or if reading it takes more than 5 seconds or more than 1 GB of memory.
`--keep` writes the mutants with faults to a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from lab.scripts.damaged_files import Caches, library, mutated, mutated_aks2, mutated_bundle, mutated_zip  # noqa: E402
from toolchain.core.cache import Cache  # noqa: E402
from toolchain.core.errors import ToolchainError  # noqa: E402
from toolchain.kernels.aks2 import read_archive  # noqa: E402
from toolchain.kernels.cache_image import read_cache  # noqa: E402
from toolchain.kernels.ledger import Entry, Ledger, look  # noqa: E402
from toolchain.stages.triton_wheel import unzip  # noqa: E402
from toolchain_lab.bridge import load, translation  # noqa: E402
from toolchain_lab.examine.audit import audit  # noqa: E402
from toolchain_lab.examine.diff import compare  # noqa: E402
from toolchain_lab.examine.kernels import kernels_in  # noqa: E402
from toolchain_lab.examine.places import opened  # noqa: E402
from toolchain_lab.numbers.collect import collect  # noqa: E402

LIMIT_SECONDS = 5.0
LIMIT_BYTES = 1 << 30


class TooSlowError(BaseException):
    """Reading a mutant took longer than `LIMIT_SECONDS`."""


# --- readers ---


def read_place(path: Path, scratch: Path) -> None:
    """Read a file as `audit`, `kernels diff` and `kernels check` do."""
    faults: list[ToolchainError] = []
    cache = Cache(scratch / "cache")
    with _noted(faults):
        result = audit(str(path), cache, gpus=["gfx942"])
        json.dumps({**result.as_json(), "problems": result.problems()})
        for kernel in result.kernels:
            json.dumps(kernel.facts.as_json() if kernel.facts is not None else None)
    with _noted(faults):
        kernels = kernels_in(str(path), cache)
        json.dumps(compare(kernels, kernels).as_json())
    with _noted(faults), opened(str(path), cache) as files:
        collect(files, scratch / "objects", label="it", planned=lambda _, shared: {"shared": shared})
    if faults:
        raise faults[0]


@contextlib.contextmanager
def _noted(faults: list[ToolchainError]) -> Iterator[None]:
    try:
        yield
    except ToolchainError as error:
        str(error)
        json.dumps(error.as_json())
        faults.append(error)


def read_code(path: Path, scratch: Path) -> None:
    """Read a code object as the emulator does, and then as `read_place` does."""
    faults: list[ToolchainError] = []
    with _noted(faults), translation():
        load(path)
    read_place(path, scratch)


def read_pack(path: Path, scratch: Path) -> None:
    """Read a pack as the check in a build does, and then as `read_place` does."""
    faults: list[ToolchainError] = []
    with _noted(faults):
        for _, kernels in read_archive(path):
            for kernel in kernels:
                kernel.read()
    read_place(path, scratch)


def read_wheel(path: Path, scratch: Path) -> None:
    """Unpack a wheel, and then read it as `read_place` does."""
    faults: list[ToolchainError] = []
    with _noted(faults):
        unzip(path, scratch / "unpacked")
    read_place(path, scratch)


# --- the run ---


@dataclass
class Kind:
    """A kind of file.

    Args:
        suffix: the end of the file's name.
        make: a function that returns a mutant.
        read: a function that reads a file, given its path and a folder for temporary files.
    """

    suffix: str
    make: Callable[[random.Random], bytes]
    read: Callable[[Path, Path], None]


@dataclass
class Outcome:
    """The results for the mutants of a kind."""

    mutants: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    peak: int = 0
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "mutants": self.mutants, "answers": dict(self.answers.most_common()),
            "slowest_seconds": round(self.slowest, 3), "peak_bytes": self.peak, "faults": self.faults,
        }  # fmt: skip


def kinds(codes: Mapping[str, bytes], scratch: Path) -> dict[str, Kind]:
    """Return all kinds of files by name.

    Args:
        codes: a code object for each GPU, from which the files are made.
    """
    objects = list(codes.values())
    caches = Caches.of(codes, scratch)
    with Ledger(scratch / "ledger") as ledger:
        for at in range(20):
            id_, out, status = f"{at:064x}", f"{at}.hsaco", ("done", "failed", "timeout")[at % 3]
            entry = Entry(id=id_, kernel="add", target="gfx942", out=out, cluster="c", status=status, bitcode=("b.bc",))
            ledger.record(entry)
            ledger.note_check(id_, {"status": "right", "name": out})
    rows = (scratch / "ledger").read_bytes()
    sound = {f"{gpu}/add.hsaco": code for gpu, code in codes.items()}

    def flatzip(draw: random.Random) -> bytes:
        members = {f"Q='fp16',n={at}": mutated_aks2(objects, draw) for at in range(2)}
        return mutated_zip(members, draw, zipfile.ZIP_STORED)

    def wheel(draw: random.Random) -> bytes:
        content = library(mutated_bundle(codes, draw))
        return mutated_zip(
            {"a/__init__.py": b"", "a/lib.so": mutated(content, draw), **sound}, draw, zipfile.ZIP_DEFLATED
        )

    def bundle_(draw: random.Random) -> bytes:
        content = mutated_bundle(codes, draw)
        return library(content) if draw.random() < 0.3 else content

    def cache(draw: random.Random) -> bytes:
        return (
            gzip.compress(mutated(caches.tar, draw), 1)
            if draw.random() < 0.7
            else mutated(gzip.compress(caches.tar), draw)
        )

    def read_mcv(path: Path, scratch: Path) -> None:
        changed = dict(caches.image_labels)
        draw = random.Random(zlib.crc32(path.read_bytes()))  # noqa: S311 - reproducible
        if draw.random() < 0.3:
            name = draw.choice(sorted(changed))
            changed[name] = mutated(changed[name].encode(), draw).decode("utf-8", "replace")
        json.dumps(read_cache(*caches.written(path.read_bytes(), changed, scratch / "image")).as_json())

    def read_ledger(path: Path, scratch: Path) -> None:
        del scratch
        look(path)
        with Ledger(path) as ledger:
            ledger.checks()
            ledger.get("0" * 64)

    return {
        "aks2": Kind(".aks2", lambda draw: mutated_aks2(objects, draw), read_pack),
        "flatzip": Kind(".zip", flatzip, read_pack),
        "wheel": Kind("-1-py3-none-any.whl", wheel, read_wheel),
        "zip": Kind(".zip", lambda draw: mutated_zip(sound, draw, zipfile.ZIP_DEFLATED), read_place),
        "bundle": Kind(".hsaco", bundle_, read_code),
        "object": Kind(".hsaco", lambda draw: mutated(draw.choice(objects), draw), read_code),
        "mcv": Kind(".tar.gz", cache, read_mcv),
        "ledger": Kind(".sqlite", lambda draw: mutated(rows, draw), read_ledger),
    }


def fuzz(kind: Kind, count: int, seed: str, keep: Path | None = None) -> Outcome:
    """Make and read `count` mutants of a kind, and copy the mutants with faults to the folder `keep`."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="toolchain-fuzz-") as folder:
        for number in range(count):
            scratch = Path(folder, "s")
            scratch.mkdir()
            name = "lib.so" if kind.suffix == ".hsaco" and number % 7 == 6 else f"m{kind.suffix}"
            path = Path(folder, name)
            path.write_bytes(kind.make(random.Random(f"{seed}-{number}")))  # noqa: S311 - reproducible
            answer, seconds, peak = _measured(kind, path, scratch)
            outcome.mutants += 1
            outcome.slowest, outcome.peak = max(outcome.slowest, seconds), max(outcome.peak, peak)
            fault = ""
            if answer.startswith("!"):
                fault = answer[1:]
            elif peak > LIMIT_BYTES:
                fault = f"{peak} bytes of memory"
            if fault:
                outcome.faults.append(f"{number}: {fault}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, keep / f"{number}-{name}")
            outcome.answers["fault" if fault else answer] += 1
            path.unlink()
            shutil.rmtree(scratch)
    return outcome


def _measured(kind: Kind, path: Path, scratch: Path) -> tuple[str, float, int]:
    """Read a mutant, and return the result, the seconds, and the peak memory in bytes.

    The result is `read`, the name of the tool's error, or `!` followed by a description of the fault.
    """

    def too_slow(*_: object) -> None:
        raise TooSlowError

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory
    before = signal.signal(signal.SIGALRM, too_slow)
    timer = signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    began = time.perf_counter()
    try:
        kind.read(path, scratch)
        answer = "read"
    except ToolchainError as error:
        answer = type(error).__name__
    except TooSlowError:
        answer = f"!more than {LIMIT_SECONDS} seconds:\n{traceback.format_exc(-6)}"
    except (Exception, RecursionError):  # noqa: BLE001 - these are the faults
        answer = f"!{traceback.format_exc(-6)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    return answer, seconds, peak


def bound_memory() -> None:
    """Limit the address space, so that an allocation far beyond the limit fails before the machine swaps."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * LIMIT_BYTES, resource.RLIM_INFINITY))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from lab.tests.emulated_objects import compile_all, rule  # noqa: PLC0415 - needs Triton

    results: dict[str, Any] = {"seed": given.seed, "kinds": {}}
    with tempfile.TemporaryDirectory(prefix="toolchain-fuzz-") as folder:
        gpus = ("gfx942", "gfx1100")
        paths = compile_all([rule(Path(folder), "add", gpu) for gpu in gpus])
        codes = {gpu: path.read_bytes() for gpu, path in zip(gpus, paths, strict=True)}
        known = kinds(codes, Path(folder))
        bound_memory()
        for name in given.kinds.split(",") if given.kinds else known:
            began = time.perf_counter()
            outcome = fuzz(known[name], given.each, f"{given.seed}-{name}", given.keep and given.keep / name)
            results["kinds"][name] = outcome.as_json()
            answers = ", ".join(f"{count} {answer}" for answer, count in outcome.answers.most_common())
            print(
                f"{name}: {outcome.mutants} mutants in {time.perf_counter() - began:.0f} s: {answers};"
                f" slowest {outcome.slowest:.2f} s, at most {outcome.peak >> 20} MB",
                flush=True,
            )
            for text in outcome.faults[:5]:
                print(f"  {text}")
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(row["faults"] for row in results["kinds"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
