"""Measure the resources that a container uses, and end the container when it reaches a limit.

This module imports only the standard library, because `engine.launcher` imports it in a process without site-packages.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time

# The launcher starts for each call of buildah, and importing `typing` would make each start slower.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict
else:
    TypedDict = dict

_EVERY = 0.2  # seconds between two checks
_MORE_PROCESSES = 4096  # a margin for the processes that a program starts between two checks


class Limits(TypedDict):
    """The limits for a program together with all processes that it starts.

    Args:
        processes: the maximum number of processes and threads that run at the same time.
        file_bytes: the maximum size of one file.
        written_bytes, written_files: the maximum disk usage and number of the files and folders in `places` that change
            while the program runs, including those that other programs change.
        free_bytes, free_files: the bytes and inodes that must stay free on each file system of `places`; on a small
            file system, a twentieth of it is enough.
        log_bytes: the maximum size of `log`.
        seconds: the maximum running time; 0 for no limit.
        places: the folders that the program writes to.
        log: the file that gets the program's output; empty if there is none.
        note: the file to which `Watch` writes the name of a limit that is reached and the ids of the mounted layers.
    """

    processes: int
    file_bytes: int
    written_bytes: int
    written_files: int
    free_bytes: int
    free_files: int
    log_bytes: int
    seconds: float
    places: list[str]
    log: str
    note: str


class Usage:
    """The running time, log size and disk usage of a container, for a comparison with its limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._start = time.monotonic()
        self._since = time.time()
        # One folder of each file system is enough, because `statvfs` describes the whole file system.
        places = {os.stat(place).st_dev: place for place in limits["places"]}
        self._disks = {place: os.statvfs(place) for place in places.values()}
        self._recount = (limits["written_bytes"], limits["written_files"])

    def reached(self) -> str:
        """Return the name of a limit that has been reached, or an empty string if there is none.

        The limits on processes and on the size of one file are not checked.
        """
        limits = self.limits
        if limits["seconds"] and time.monotonic() - self._start > limits["seconds"]:
            return "hours"
        if os.path.exists(limits["log"]) and os.stat(limits["log"]).st_size > limits["log_bytes"]:
            return "log-bytes"
        return self._disk_full() or self._too_much()

    def _disk_full(self) -> str:
        limits = self.limits
        for place in self._disks:
            now = os.statvfs(place)
            if now.f_bavail * now.f_frsize < min(limits["free_bytes"], now.f_blocks * now.f_frsize // 20):
                return "free-bytes"
            if now.f_favail < min(limits["free_files"], now.f_files // 20):  # both are 0 if inodes are unlimited
                return "free-files"
        return ""

    def _too_much(self) -> str:
        """Return the name of the limit on written files that is exceeded, or an empty string if there is none.

        Counting is slow, so it begins only when the disks have lost as many free bytes or inodes as the limits allow.
        """
        most = (self.limits["written_bytes"], self.limits["written_files"])
        lost = [0, 0]
        for place, before in self._disks.items():
            now = os.statvfs(place)
            lost[0] += (before.f_bavail - now.f_bavail) * now.f_frsize
            lost[1] += before.f_favail - now.f_favail
        if lost[0] < self._recount[0] and lost[1] < self._recount[1]:
            return ""
        made = self._made()
        # The container exceeds a limit only if it writes at least `most - made` more. The next count waits until the
        # disks have lost that much more.
        self._recount = (lost[0] + most[0] - made[0], lost[1] + most[1] - made[1])
        if made[0] > most[0]:
            return "written-bytes"
        return "written-files" if made[1] > most[1] else ""

    def _made(self) -> tuple[int, int]:
        """Return the disk usage in bytes and the number of all files and folders that changed since the start.

        The counting stops as soon as a limit is exceeded.
        """
        size = count = 0
        waiting = list(self.limits["places"])
        while waiting:
            try:
                entries = os.scandir(waiting.pop())
            except OSError:
                continue
            with entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # the file has just been removed
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    # Every change of a file sets its ctime, which no process in the namespace can set back.
                    if status.st_ctime >= self._since:
                        count += 1
                        size += status.st_blocks * 512
                    if size > self.limits["written_bytes"] or count > self.limits["written_files"]:
                        return size, count
        return size, count


class Watch(Usage):
    """A watch over the first process of a PID namespace. It ends the namespace when a limit is reached.

    Processes are counted in the namespace's own /proc. If this process cannot open that folder, they are not counted,
    and only the resource limit on processes applies to them.
    """

    def __init__(self, child: int, limits: Limits) -> None:
        super().__init__(limits)
        self._child = child
        try:
            self._proc = os.open(f"/proc/{child}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._proc = -1

    def wait(self) -> int:
        """Wait until the process ends, by itself or at a limit, and return its wait status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:  # Many processes in the namespace must not delay this process.
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES):  # this process may lack CAP_SYS_NICE
                raise
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                return status
            name = "processes" if self._processes() > self.limits["processes"] else self.reached()
            if name:
                return self._end(name)
            signal.sigtimedwait({signal.SIGCHLD}, _EVERY)

    def _end(self, name: str) -> int:
        layers = self._layers()
        os.kill(self._child, signal.SIGKILL)
        status = os.waitpid(self._child, 0)[1]
        try:
            with open(self.limits["note"], "w", encoding="ascii") as note:
                json.dump({"limit": name, "layers": layers}, note)
        except OSError:  # on a full disk the note stays empty, which `container_limits.reached` understands
            pass
        sys.stderr.write(f"toolchain: ended at the limit {name}; TOOLCHAIN_LIMITS can change the limit\n")
        return status

    def _processes(self) -> int:
        if self._proc < 0:
            return 0
        count = 0
        for name in os.listdir(self._proc):
            if name[0] in "123456789":
                try:
                    count += os.stat(f"{name}/task", dir_fd=self._proc).st_nlink - 2
                except OSError:  # the process has just ended
                    continue
        return count

    def _layers(self) -> list[str]:
        """Return the ids of the container layers that are mounted in the namespace."""
        try:
            with open(f"/proc/{self._child}/mountinfo", encoding="utf-8", errors="replace") as table:
                points = [line.split(" ")[4].split("/") for line in table]
        except OSError:
            return []
        return sorted({parts[-2] for parts in points if parts[-1] == "merged"})


def most_processes(limit: int) -> int:
    """Return the resource limit on processes for a container that may run `limit` processes.

    The value is above `limit`, so that the container is ended before a fork fails.
    """
    return limit + _MORE_PROCESSES


def restrict(limits: Limits) -> None:
    """Set the resource limits of this process from `limits`; its children inherit them.

    A hard limit of this process that is lower is kept.
    """
    wanted = {resource.RLIMIT_NPROC: most_processes(limits["processes"]), resource.RLIMIT_FSIZE: limits["file_bytes"]}
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
