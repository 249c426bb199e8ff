"""Write and read the status file of a campaign, which is in the folder of its ledger."""

from __future__ import annotations

import contextlib
import heapq
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from toolchain.core import strict_json
from toolchain.core.cache import LEDGER
from toolchain.core.digest import canonical, write_atomically
from toolchain.core.errors import KernelError
from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.ledger import DONE, FAILED, Entry, Standing, by_kernel, counts, look
from toolchain.kernels.rules import Rule

STATUS = "status.json"
FORMAT = 1
_NUMBER = int | float | None
# These are the types of the values in the file, and of the values in its rows.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("format", "pid", "asked", "done", "reused", "failed", "timed_out"), int),
    **dict.fromkeys(("state", "process", "command", "began", "updated"), str),
    **dict.fromkeys(("rate", "left_seconds"), _NUMBER),
    **dict.fromkeys(("by_kernel", "slowest", "bad", "workers"), list),
    "memory": dict,
}
_ROWS: Mapping[str, Mapping[str, Any]] = {
    "by_kernel": {
        **dict.fromkeys(("kernel", "gpu"), str),
        **dict.fromkeys(("asked", "done", "reused", "failed", "timed_out"), int),
        "mean_seconds": _NUMBER,
    },
    "slowest": {**dict.fromkeys(("out", "kernel", "gpu"), str), "seconds": int | float},
    "bad": dict.fromkeys(("out", "status", "reason"), str),
    "workers": {
        **dict.fromkeys(("pid", "memory", "compiled"), int),
        **dict.fromkeys(("kernel", "gpu", "out"), str),
        "seconds": int | float,
    },
}
_MEMORY = dict.fromkeys(("coordinator", "workers", "together", "share"), int)
RUNNING, ENDED, FAILURES, STOPPED, KILLED = "running", "done", "failed", "stopped", "killed"
_STATES = frozenset((RUNNING, ENDED, FAILURES, STOPPED, KILLED))
_TIME = "%Y-%m-%dT%H:%M:%SZ"
SHOWN = 5  # the maximum number of slowest kernels, and of bad kernels, in the file
_EVERY = 2.0  # seconds between two writes of the file
_WINDOW = 600.0
_PROC = Path("/proc")


@dataclass
class _Group:
    """Counts of the kernels of one function for one GPU."""

    total: int = 0
    done: int = 0
    reused: int = 0
    failed: int = 0
    timed_out: int = 0
    seconds: float = 0.0

    @property
    def through(self) -> int:
        return self.done + self.failed + self.timed_out


class Board:
    """The counts of a campaign's outcomes, which are written to a file every two seconds.

    The board is a context manager. The campaign's final state depends on whether an exception ends its block.

    Args:
        path: the file, which is replaced as a whole.
        workers: see `Executor.workers`.
        bounds: the bounds on the memory of the workers; None if there are none.
        clock: a function that returns seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        rules: Iterable[Rule],
        *,
        workers: Callable[[], list[dict[str, Any]]],
        bounds: MemoryBounds | None = None,
        command: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._workers = workers
        self._bounds = bounds
        self._command = command
        self._clock = clock
        self._began = self._paced = clock()  # `_paced` is the start, or the time of the last reused result
        self._state = RUNNING
        self._groups: dict[tuple[str, str], _Group] = {}
        for rule in rules:
            self._groups.setdefault((rule.kernel, rule.target), _Group()).total += 1
        self._recent: deque[tuple[float, float]] = deque()
        self._slowest: list[tuple[float, str, str, str]] = []
        self._bad: deque[dict[str, str]] = deque(maxlen=SHOWN)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-status", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._stop.set()
        self._thread.join(10)
        through = all(group.through >= group.total for group in self._groups.values())
        self._state = ENDED if error is None else FAILURES if through and isinstance(error, KernelError) else STOPPED
        self._write()

    def count(self, entry: Entry, *, reused: bool = False) -> None:
        """Count the outcome of a rule. `reused` means that this run did not compile the rule."""
        with self._lock:
            group = self._groups[entry.kernel, entry.target]
            group.done += entry.status == DONE
            group.failed += entry.status == FAILED
            group.timed_out += entry.status not in (DONE, FAILED)
            group.reused += reused
            group.seconds += entry.seconds
            if reused:
                self._paced = self._clock()
                return
            self._recent.append((self._clock(), entry.seconds))
            heapq.heappush(self._slowest, (entry.seconds, entry.out, entry.kernel, entry.target))
            if len(self._slowest) > SHOWN:
                heapq.heappop(self._slowest)
            if entry.status != DONE:
                self._bad.append(
                    {"out": entry.out, "status": entry.status, "reason": entry.reason.partition("\n")[0][:200]}
                )

    def as_json(self) -> dict[str, Any]:
        """Return the content of the status file; docs/json.schema.json explains the keys."""
        workers = self._workers()
        with self._lock:
            groups = self._groups.values()
            rate, left = self._pace()
            return {
                "format": FORMAT,
                "state": self._state,
                "pid": os.getpid(),
                "process": _identity(os.getpid()),
                "command": self._command,
                "began": _text(self._began),
                "updated": _text(self._clock()),
                "asked": sum(group.total for group in groups),
                "done": sum(group.done for group in groups),
                "reused": sum(group.reused for group in groups),
                "failed": sum(group.failed for group in groups),
                "timed_out": sum(group.timed_out for group in groups),
                "rate": rate,
                "left_seconds": left,
                "memory": {
                    "coordinator": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                    "workers": sum(int(worker["memory"]) for worker in workers),
                    **asdict(self._bounds or MemoryBounds(together=0, share=0)),  # 0 means no limit
                },
                "by_kernel": [
                    {
                        "kernel": kernel,
                        "gpu": gpu,
                        "asked": group.total,
                        "done": group.done,
                        "reused": group.reused,
                        "failed": group.failed,
                        "timed_out": group.timed_out,
                        "mean_seconds": round(group.seconds / group.through, 2) if group.through else None,
                    }
                    for (kernel, gpu), group in sorted(self._groups.items())
                ],
                "slowest": [
                    {"out": out, "kernel": kernel, "gpu": gpu, "seconds": seconds}
                    for seconds, out, kernel, gpu in sorted(self._slowest, reverse=True)
                ],
                "bad": list(self._bad),
                "workers": workers,
            }

    def _pace(self) -> tuple[float | None, float | None]:
        """Return the kernels per second, and the seconds until all kernels are finished; None for an unknown value.

        The estimate counts seconds of compilation instead of kernels, because kernel functions differ in cost. The
        rates cover at most the last ten minutes.
        """
        now = self._clock()
        while self._recent and now - self._recent[0][0] > _WINDOW:
            self._recent.popleft()
        left = sum(group.total - group.through for group in self._groups.values())
        if self._state != RUNNING or not self._recent:
            return None, None if left else 0.0
        passed = max(min(now - self._paced, _WINDOW), 0.001)
        through = sum(group.through for group in self._groups.values())
        mean = sum(group.seconds for group in self._groups.values()) / through
        work = sum(
            (group.total - group.through) * (group.seconds / group.through if group.through else mean)
            for group in self._groups.values()
        )
        pace = sum(seconds for _, seconds in self._recent) / passed
        return round(len(self._recent) / passed, 3), round(work / pace, 1) if pace else None

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self._write()

    def _write(self) -> None:
        # A campaign continues even if its status file cannot be written.
        content = self.as_json()
        with contextlib.suppress(OSError):
            write_atomically(self._path, canonical(content) + b"\n")


def read(folder: Path) -> dict[str, Any]:
    """Return the state of the campaign in `folder` for `kernels status --json`.

    ConfigError is raised if the campaign's ledger is missing or unusable.
    """
    content = _status_in(folder / STATUS)
    standing = look(folder / LEDGER, entries=content is None)
    named = {"campaign": folder.name, "count": standing.count, "asked": standing.total, **standing.counted}
    named["numbers"] = dict(sorted(standing.numbers.items()))
    if content is None:
        return {**named, "state": "unknown", **_nothing(standing)}
    state = content["state"]
    alive = state != RUNNING or content["process"] == _identity(content["pid"])
    content = _in_state(content, state if alive else KILLED)
    # The counts come from the ledger, because the file may be older.
    del content["format"], content["asked"], content["done"], content["failed"], content["timed_out"]
    return {**named, **content}


def _in_state(content: Mapping[str, Any], state: str) -> dict[str, Any]:
    """Return a status with its state replaced by `state`; a campaign that is not running has no rate and no workers."""
    stopped: dict[str, Any] = {} if state == RUNNING else {"rate": None, "left_seconds": None, "workers": []}
    return {**content, "state": state, **stopped}


def _nothing(standing: Standing) -> dict[str, Any]:
    """Return the values for a campaign whose status file cannot be read."""
    rows = [
        {"kernel": kernel, "gpu": gpu, "asked": None, "reused": None, "mean_seconds": None, **counts(inside)}
        for kernel, gpu, inside in by_kernel(standing.entries)
    ]
    return {
        "pid": None, "process": "", "command": "", "began": None, "updated": None, "reused": None, "rate": None,
        "left_seconds": None, "memory": None, "by_kernel": rows, "slowest": [], "bad": [], "workers": [],
    }  # fmt: skip


def _status_in(path: Path) -> dict[str, Any] | None:
    try:
        value = strict_json.read(path.read_bytes())
        if not _fits(value, _TYPES) or value["format"] != FORMAT or value["state"] not in _STATES:
            return None
        for name in ("began", "updated"):
            time.strptime(value[name], _TIME)
    except (OSError, ValueError):
        return None
    rows = all(_fits(row, kinds) for name, kinds in _ROWS.items() for row in value[name])
    return value if rows and _fits(value["memory"], _MEMORY) else None


def _fits(value: Any, kinds: Mapping[str, Any]) -> bool:
    """Return whether a JSON value is an object that has at least the given keys, with values of the given types."""
    return isinstance(value, dict) and all(name in value and isinstance(value[name], kinds[name]) for name in kinds)


def _identity(pid: int) -> str:
    """Return a string that identifies a process even if its PID is used again; empty if no process has this PID."""
    try:
        started = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, IndexError):
        return ""
    return f"{boot} {started}"


def _text(seconds: float) -> str:
    return time.strftime(_TIME, time.gmtime(seconds))
