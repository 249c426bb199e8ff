"""Measure the resources that this process may use: cores, memory, disk space, and resource limits."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from toolchain.core import console
from toolchain.core.errors import ResourceError

Kind = Literal["compile", "link", "kernel"]

GIB = 1 << 30
# This is the peak memory of one job in bytes: of clang++ for MLIR's largest files, of lld for MLIR's libraries, and of
# a Triton worker.
MEMORY: dict[Kind, int] = {"compile": 3 * GIB // 2, "link": 5 * GIB, "kernel": 3 * GIB // 2}

# This is buildah's default limit on open files and on processes.
_BUILDAHS_LIMIT = 1 << 20
_RLIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "fsize": resource.RLIMIT_FSIZE}
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# Version 1 of control groups gives a number near 2^63 where there is no limit, so this number and larger ones mean no
# limit.
_UNLIMITED = 1 << 60


def jobs_for(kind: Kind, wanted: int = 0) -> int:
    """Return how many jobs of a kind to run in parallel: as many as fit in the available memory, but at least 1.

    Args:
        wanted: the maximum number of jobs; 0 for the number of cores.
    """
    fits = memory_available() // MEMORY[kind]
    return max(1, min(wanted or cores(), fits))


def cores() -> int:
    """Return how many processors this process may use, given its affinity and the quotas of its control groups."""
    count = len(os.sched_getaffinity(0))
    for folder in _groups(""):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            count = min(count, math.ceil(int(words[0]) / int(words[1])))
    for folder in _groups("cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            count = min(count, math.ceil(quota / period))
    return max(1, count)


def memory_available() -> int:
    """Return the bytes that new processes can use without swapping or exceeding a control group's limit."""
    available = _UNLIMITED
    for line in _text(_PROC / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            available = int(value.split()[0]) * 1024
    for controller, limit, usage in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in _groups(controller):
            most, used = _number(folder / limit), _number(folder / usage)
            if most is not None and used is not None and most < _UNLIMITED:
                available = min(available, max(0, most - used + _file_cache(folder)))
    return available


def _file_cache(folder: Path) -> int:
    """Return the bytes of file cache that a control group counts as used but can reclaim."""
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("total_inactive_file", "inactive_file"):
            return int(value)
    return 0


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of its parents; `controller` is empty for cgroup v2."""
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller not in names.split(","):
            continue
        top = _CGROUP / names if controller else _CGROUP
        if not controller and (_CGROUP / "unified").is_dir():
            top = _CGROUP / "unified"
        folder = top / path.lstrip("/")
        # In a container, this path may be valid only on the host, and the top of the mount is then the process's own
        # group. So folders that do not exist are skipped.
        while folder != top:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield top


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def disk_free(path: Path) -> int:
    """Return the free bytes on the disk that `path` is on; `path` itself need not exist."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def require_disk(path: Path, needed: int) -> None:
    """Raise a ResourceError if fewer than `needed` bytes are free on the disk of `path`, which need not exist."""
    free = disk_free(path)
    if free < needed:
        raise ResourceError(
            "disk-too-small",
            f"too little disk space at {path}",
            why=f"{console.size(needed)} are needed, and {console.size(free)} are free",
            fix="free disk space, or choose another folder with --cache",
        )


def ulimits(limits: Mapping[str, int]) -> list[str]:
    """Return the `--ulimit` options for `limits`, and for buildah's default limits above this process's hard limits.

    A value is lowered to the hard limit of this process if that is lower. By default, buildah sets the limits on open
    files and on processes to 2^20. Only a process with CAP_SYS_RESOURCE on the machine may raise a hard limit, so
    without these options a container would not start if a hard limit of this process is lower.
    """
    words = []
    for name, kind in _RLIMITS.items():
        _, hard = resource.getrlimit(kind)
        most = limits.get(name, _BUILDAHS_LIMIT)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        if name in limits or most < _BUILDAHS_LIMIT:
            words += ["--ulimit", f"{name}={most}:{most}"]
    return words


def disk_bytes(path: Path) -> int:
    """Return the bytes that a file or folder takes up on disk; hard links are counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    waiting = [path]
    while waiting:
        this = waiting.pop()
        with contextlib.suppress(OSError):
            status = this.lstat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                waiting.extend(Path(entry.path) for entry in os.scandir(this))
    return total
