"""Check many kernels in one or more processes, and summarize the results."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from toolchain.core import process
from toolchain.core.check_result import STATUSES, Object, checked_count
from toolchain.core.environment import python_children
from toolchain.core.errors import ResourceError
from toolchain_lab.emulator.disassembly import Disassembler
from toolchain_lab.emulator.exactness import LABELS
from toolchain_lab.numbers.check import Checked, check_object, digest_of, finite

# Results are judged by this rule, which is published with them.
RULE = (
    "an error is the largest absolute difference from a float64 reference; a result passes when its error is at most"
    " twice that of a plain implementation in the same type, plus one unit of the type's precision (2^-10 for fp16,"
    " 2^-7 for bf16, 2^-20 for fp32) of the reference's largest value"
)


@dataclass(frozen=True)
class Report:
    """The result of checking many kernels.

    Args:
        available: the number of kernels from which the sample was drawn.
        decoder: the name and version of the disassembler.
    """

    rows: tuple[Checked, ...]
    available: int
    decoder: str

    def counts(self) -> dict[str, int]:
        counts = Counter(row.status for row in self.rows)
        return {status: counts[status] for status in STATUSES}

    def exactness(self) -> dict[str, int]:
        """Return the number of kernels by exactness, without those that were skipped or stopped by a fault."""
        counts = Counter(row.exactness for row in self.rows if row.exactness)
        return {label: counts[label] for label in LABELS}

    def of(self, status: str) -> list[Checked]:
        return [row for row in self.rows if row.status == status]

    def groups(self) -> list[dict[str, Any]]:
        """Return a row for each GPU and function.

        A row contains the number of kernels for each status, the largest share of the allowed error, and the totals of
        the executed instructions and of the CPU time in seconds.
        """
        groups: dict[tuple[str, str], list[Checked]] = {}
        for row in self.rows:
            groups.setdefault((row.gpu, row.kernel), []).append(row)
        return [
            {
                "gpu": gpu,
                "kernel": kernel,
                **{status: sum(row.status == status for row in rows) for status in STATUSES},
                "share": finite(round(max(row.share for row in rows), 4)),
                "instructions": sum(row.instructions for row in rows),
                "seconds": round(sum(row.seconds for row in rows), 2),
            }
            for (gpu, kernel), rows in sorted(groups.items())
        ]

    def published(self) -> dict[str, Any]:
        """Return the result for a record or a statement. It contains no durations, so that it is reproducible."""
        kernels = [
            {"name": row.name, "sha256": row.sha256, "gpu": row.gpu, "kernel": row.kernel, "status": row.status,
             "exactness": row.exactness, "share": finite(round(row.share, 4)), "reason": row.reason}
            for row in self.rows
        ]  # fmt: skip
        groups = [{key: value for key, value in row.items() if key != "seconds"} for row in self.groups()]
        return {**self._head(), "groups": groups, "kernels": kernels}

    def as_json(self) -> dict[str, Any]:
        return {**self._head(), "groups": self.groups(), "kernels": [row.as_json() for row in self.rows]}

    def _head(self) -> dict[str, Any]:
        counts = self.counts()
        return {
            "method": "emulation",
            "rule": RULE,
            "decoder": self.decoder,
            "available": self.available,
            "checked": checked_count(counts),
            **counts,
            "exactness": self.exactness(),
        }


def run(
    objects: Sequence[Object],
    disassembler: Disassembler,
    *,
    jobs: int,
    available: int | None = None,
    known: Mapping[str, Checked] | None = None,
    exact: bool = True,
    on_row: Callable[[Checked, int, int], None] | None = None,
) -> Report:
    """Check kernels in at most `jobs` processes, and return a report.

    Args:
        available: the number of kernels from which the sample was drawn; by default, `len(objects)`.
        known: the results of an earlier check, by name; those for objects with the same bytes are reused.
        exact: whether matrix instructions follow the published rounding rules for the GPU.
        on_row: a function that is called with each result, its number from 1, and the number of all kernels.
    """
    kept = {
        each.name: known[each.name]
        for each in objects
        if known and each.name in known and known[each.name].sha256 == digest_of(each.path)
    }
    checked: dict[str, Checked] = {}
    rest = [each for each in objects if each.name not in kept]
    for row in itertools.chain(kept.values(), results(rest, disassembler, jobs, exact=exact)):
        checked[row.name] = row
        if on_row is not None:
            on_row(row, len(checked), len(objects))
    rows = tuple(checked[each.name] for each in objects)
    return Report(rows, len(objects) if available is None else available, disassembler.label)


def _begin_worker() -> None:
    process.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the workers, but the parent process ends them


def results(
    objects: Sequence[Object], disassembler: Disassembler, jobs: int, *, exact: bool = True
) -> Generator[Checked, None, None]:
    """Check kernels, and yield each result as soon as it is known.

    If there are several jobs and several kernels, parallel processes check them. ResourceError is raised if one of
    these processes is killed.
    """
    if jobs < 2 or len(objects) < 2:
        for each in objects:
            yield check_object(each.path, each.name, disassembler, exact=exact)
        return
    # Processes are spawned, because a fork would copy locks that threads of numpy's linear algebra library may hold.
    context = multiprocessing.get_context("spawn")
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with (
        python_children(threads),
        ProcessPoolExecutor(min(jobs, len(objects)), mp_context=context, initializer=_begin_worker) as pool,
    ):
        waiting = [pool.submit(check_object, each.path, each.name, disassembler, exact=exact) for each in objects]
        try:
            for future in as_completed(waiting):
                yield future.result()
        except BrokenProcessPool as error:
            raise ResourceError(
                "workers-lost",
                "a process that checks kernels was killed",
                why="often the system has too little memory",
                fix="give fewer --jobs; with --results FILE a check continues where it stopped",
            ) from error
        except BaseException:
            # The workers are killed, because the pool would otherwise wait until all kernels are checked.
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
