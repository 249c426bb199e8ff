"""Run a program as root of a user namespace of its own, below a root folder that shows only what it is given.

A program by itself, on the standard library alone: `python -I -S launcher.py SPEC PROGRAM [ARGUMENT...]`, started by
root, or by root of a user namespace. SPEC is JSON, see `Spec`. It ends as PROGRAM does, and when it is killed, the
kernel ends every process below it.

The ids inside are none of the caller's, so what leaves a container reads nothing that others may not read. The caller's
folders are not there either.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import sys
import time

# It starts for each call of buildah, so no module is loaded that only types or conveniences need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypedDict
else:
    TypedDict = dict

_LIBC = ctypes.CDLL(None, use_errno=True)

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_NOATIME, _MS_NODIRATIME, _MS_BIND, _MS_REC = 32, 1024, 2048, 4096, 16384
_MS_PRIVATE, _MS_RELATIME = 1 << 18, 1 << 21
_MNT_DETACH = 2
# A mount's flags as statvfs tells them, and as mount takes them. Those of a more privileged namespace must stay.
_KEPT = {1: _MS_RDONLY, 2: _MS_NOSUID, 4: _MS_NODEV, 8: _MS_NOEXEC, 1024: _MS_NOATIME, 2048: _MS_NODIRATIME,
         4096: _MS_RELATIME}  # fmt: skip
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 1 << 17, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
# A filter of system calls: instructions of classic BPF, and what they return.
_MODE_FILTER = 2
_LOAD_WORD, _JUMP_EQ, _JUMP_GE, _RETURN = 0x20, 0x15, 0x35, 0x06
_RET_ERRNO, _RET_ALLOW = 0x00050000, 0x7FFF0000
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1
_EVERY = 0.2  # seconds between two looks at what the program uses
_MORE_PROCESSES = 4096  # more than a program starts between two looks
_OLD = "/.old"
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Its own folders in memory, by their mount options.
_SCRATCH = {"/tmp": "mode=1777", "/run": "mode=755", "/var": "mode=755", "/dev/shm": "mode=1777,size=64m"}
# The machine's settings of containers: mounts of secrets, capabilities, mirrors. A build has none of that.
_SETTINGS = "/usr/share/containers"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


class Limits(TypedDict):
    """Where PROGRAM, and all that it starts, is ended.

    Args:
        processes: how many there may be at the same time, threads included.
        file_bytes: the size of one file.
        written_bytes, written_files: what it may add to the file systems of `places`.
        free_bytes, free_files: what must stay free there; at most a twentieth of the file system.
        log_bytes: the size of `log`.
        seconds: how long it may run; 0 without a limit.
        places: the folders that it writes to.
        log: a file that gets its output; empty without one.
        note: a file for the name of the limit that it reached, and the layers of the containers that it had.
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


class Spec(TypedDict):
    """What PROGRAM gets.

    Args:
        ids: the first of the caller's ids that become 0, 1, 2 and so on inside, and how many.
        binds: folders and files to show: where they are, where inside, and whether inside they may be written to.
        environment: all of it.
        network: whether it keeps the caller's network.
        oci: whether it starts an OCI runtime. That needs the machine's /sys, and mounts what it is shown once more with
            fewer flags than `nosuid` and `nodev`, which the kernel would refuse.
        privileges: whether programs may give more rights than the one that starts them has.
        limits: of what it uses; None without any.
        refused_calls: the numbers of system calls that answer as if the kernel had none of them.
        unknown_calls: the first number of those that always do.
    """

    ids: tuple[int, int]
    binds: list[tuple[str, str, bool]]
    environment: dict[str, str]
    network: bool
    oci: bool
    privileges: bool
    limits: Limits | None
    refused_calls: list[int]
    unknown_calls: int


def main(argv: list[str]) -> int:
    """Start the program and wait; the exit code."""
    spec: Spec = json.loads(argv[1])
    os.umask(0o022)
    flags = _NEWPID | _NEWIPC | _NEWUTS | (0 if spec["network"] else _NEWNET)
    _check(_LIBC.unshare(flags), "no namespace of PIDs, IPC, names and network")
    _check(_LIBC.sethostname(b"toolchain", 9), "no host name")
    mapped, tell = os.pipe()
    wait, go_on = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mapped)
        os.close(go_on)
        try:
            _become(spec, argv[2:], tell, wait)
        except BaseException as error:  # noqa: BLE001 - nothing of the parent's may run here
            sys.stderr.write(f"toolchain: {error}\n")
            sys.stderr.flush()
        os._exit(125)
    os.close(tell)
    os.close(wait)
    # Polite signals end the namespace as rude ones do; what is left of it is gone before this ends.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: os.kill(child, signal.SIGKILL))
    watch = None
    if os.read(mapped, 1):
        _map(child, spec["ids"])
        watch = None if spec["limits"] is None else _Watch(child, spec["limits"])
        os.write(go_on, b"m")
    os.close(go_on)
    status = os.waitpid(child, 0)[1] if watch is None else watch.wait()
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return os.waitstatus_to_exitcode(status)


class Usage:
    """Looks at the time, the log and the disks of a container.

    Args:
        limits: see `Limits`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._start = time.monotonic()
        self._since = time.time()
        # One place for each file system.
        places = {os.stat(place).st_dev: place for place in limits["places"]}
        self._disks = {place: os.statvfs(place) for place in places.values()}
        self._recount = (limits["written_bytes"], limits["written_files"])

    def reached(self) -> str:
        """Return the name of a limit that is reached; empty without one."""
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
            if now.f_favail < min(limits["free_files"], now.f_files // 20):  # both are 0 where inodes have no limit
                return "free-files"
        return ""

    def _too_much(self) -> str:
        """Return the limit that the written files reached. They are only counted when the disks have lost as much."""
        most = (self.limits["written_bytes"], self.limits["written_files"])
        lost = [0, 0]
        for place, before in self._disks.items():
            now = os.statvfs(place)
            lost[0] += (before.f_bavail - now.f_bavail) * now.f_frsize
            lost[1] += before.f_favail - now.f_favail
        if lost[0] < self._recount[0] and lost[1] < self._recount[1]:
            return ""
        made = self._made()
        # Other programs wrote the rest.
        self._recount = (lost[0] + most[0] - made[0], lost[1] + most[1] - made[1])
        if made[0] > most[0]:
            return "written-bytes"
        return "written-files" if made[1] > most[1] else ""

    def _made(self) -> tuple[int, int]:
        """Return bytes and number of the files that were made or changed since the start, until a limit is reached."""
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
                    except OSError:  # it has just been removed
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    # Every change sets this time, and nothing in the namespace can set it back.
                    if status.st_ctime >= self._since:
                        count += 1
                        size += status.st_blocks * 512
                    if size > self.limits["written_bytes"] or count > self.limits["written_files"]:
                        return size, count
        return size, count


class _Watch(Usage):
    """Waits for a process, and ends its namespace when a limit is reached.

    It counts processes in the namespace's own /proc. Where the kernel does not let it look there, the kernel still
    refuses processes above the resource limit.
    """

    def __init__(self, child: int, limits: Limits) -> None:
        super().__init__(limits)
        self._child = child
        try:
            self._proc = os.open(f"/proc/{child}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._proc = -1

    def wait(self) -> int:
        """Wait for the end of the process; its status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:  # Many processes in the namespace must not delay this one.
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EACCES):  # only root may
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
        with open(self.limits["note"], "w", encoding="ascii") as note:
            json.dump({"limit": name, "layers": layers}, note)
        sys.stderr.write(f"toolchain: ended at the limit {name}; TOOLCHAIN_LIMITS raises it\n")
        return status

    def _processes(self) -> int:
        if self._proc < 0:
            return 0
        count = 0
        for name in os.listdir(self._proc):
            if name[0] in "123456789":
                try:
                    count += os.stat(f"{name}/task", dir_fd=self._proc).st_nlink - 2
                except OSError:  # it has just ended
                    continue
        return count

    def _layers(self) -> list[str]:
        """Return the layers of containers that are mounted in the namespace."""
        try:
            with open(f"/proc/{self._child}/mountinfo", encoding="utf-8", errors="replace") as table:
                points = [line.split(" ")[4].split("/") for line in table]
        except OSError:
            return []
        return sorted({parts[-2] for parts in points if parts[-1] == "merged"})


def most_processes(limit: int) -> int:
    """Return the resource limit of processes.

    It is above `limit`, because a fork that fails ends many programs before their number is seen.
    """
    return limit + _MORE_PROCESSES


def _restrict(limits: Limits) -> None:
    """Set the resource limits of this process, which all that it starts inherit."""
    import resource  # noqa: PLC0415 - most calls have no limits

    wanted = {resource.RLIMIT_NPROC: most_processes(limits["processes"]), resource.RLIMIT_FSIZE: limits["file_bytes"]}
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _map(child: int, ids: tuple[int, int]) -> None:
    first, count = ids
    for kind in ("uid", "gid"):
        with open(f"/proc/{child}/{kind}_map", "w", encoding="ascii") as table:
            table.write(f"0 {first} {count}\n")


def _become(spec: Spec, argv: list[str], tell: int, wait: int) -> NoReturn:
    _die_with_parent()
    _check(_LIBC.unshare(_NEWNS), "no namespace of mounts")
    if spec["limits"] is not None:
        _restrict(spec["limits"])
    _build_root(spec)
    _forget_keys()
    _check(_LIBC.unshare(_NEWUSER | _NEWNS), "no user namespace")
    os.write(tell, b"u")
    if not os.read(wait, 1):
        raise OSError("the process that started this one is gone")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    _die_with_parent()
    for place, options in _SCRATCH.items():
        _mount("tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    if not spec["privileges"]:
        _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _refuse_calls(spec["refused_calls"], spec["unknown_calls"])
    os.execve(_found(argv[0], spec["environment"]["PATH"]), argv, spec["environment"])


def _refuse_calls(numbers: list[int], unknown: int) -> None:
    """Have the kernel answer ENOSYS to system calls by their numbers.

    From 424 on the numbers are the same for all machines. Those of x32 begin above `unknown`.
    """
    refuse = _RET_ERRNO | errno.ENOSYS
    program = [(_LOAD_WORD, 0, 0, 0), (_JUMP_GE, 0, 1, unknown), (_RETURN, 0, 0, refuse)]
    for number in numbers:
        program += [(_JUMP_EQ, 0, 1, number), (_RETURN, 0, 0, refuse)]
    program.append((_RETURN, 0, 0, _RET_ALLOW))
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    _check(
        _LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(filter_), 0, 0), "no system call filter"
    )


def _found(program: str, places: str) -> str:
    """The path of a program. `os.execvpe` would load a module, and this Python's are in no folder that is left."""
    for place in places.split(":") if "/" not in program else ():
        if os.access(f"{place}/{program}", os.X_OK):
            return f"{place}/{program}"
    return program


def _die_with_parent() -> None:
    """Have the kernel kill this process with its parent; a change of ids takes that back."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def _build_root(spec: Spec) -> None:
    """Make a root folder in memory, show in it what is wanted, and let go of the machine's."""
    # Resolved while the machine's own links still lead somewhere.
    binds = [(os.path.realpath(source), target, writable) for source, target, writable in spec["binds"]]
    system = [(name, os.readlink(f"/{name}") if os.path.islink(f"/{name}") else "") for name in SYSTEM
              if os.path.lexists(f"/{name}")]  # fmt: skip
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    base = next(place for place in ("/tmp", "/run", "/mnt") if os.path.isdir(place))
    _mount("tmpfs", base, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=64m")
    os.chdir(base)
    os.mkdir(f"{base}{_OLD}", 0o700)
    _check(_LIBC.pivot_root(os.fsencode(base), os.fsencode(base + _OLD)), "the root cannot be changed")
    os.chdir("/")
    for name, link in system:
        if link:
            os.symlink(link, f"/{name}")
        else:
            _bind(f"/{name}", f"/{name}", writable=False, plain=spec["oci"])
    if os.path.isdir(_SETTINGS):
        _mount("tmpfs", _SETTINGS, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_RDONLY, "size=4k,mode=755")
    for source, target, writable in binds:
        _bind(source, target, writable=writable, plain=spec["oci"])
    for path in (*_SCRATCH, "/dev/pts", "/proc", "/sys"):
        os.makedirs(path, exist_ok=True)
    for name in _DEVICES:
        if os.path.exists(f"{_OLD}/dev/{name}"):
            _touch(f"/dev/{name}")
            _mount(f"{_OLD}/dev/{name}", f"/dev/{name}", None, _MS_BIND)
    for name, link in _LINKS.items():
        os.symlink(link, f"/dev/{name}")
    # Beside the machine's own, which must be seen where it is mounted by a namespace's root.
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for path in ["/sys"] if spec["oci"] else ["/sys/devices/system/cpu"]:
        if os.path.isdir(_OLD + path):
            _bind(path, path, writable=False, plain=spec["oci"])
    _check(_LIBC.umount2(os.fsencode(_OLD), _MNT_DETACH), "the machine's root stays")
    os.rmdir(_OLD)
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept("/"))


def _bind(source: str, target: str, *, writable: bool, plain: bool) -> None:
    """Show a folder or file of the old root, with what is mounted below it."""
    old = _OLD + source
    if os.path.isdir(old):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _touch(target)
    _mount(old, target, None, _MS_BIND | _MS_REC)
    # Flags of what may be written to would stay with every mount that buildah makes of it, and it drops them.
    more = 0 if writable else _MS_RDONLY | (0 if plain else _MS_NOSUID | _MS_NODEV)
    for place in _mounted_below(target):
        _mount(None, place, None, _MS_REMOUNT | _MS_BIND | more | _kept(place))


def _mounted_below(target: str) -> list[str]:
    with open(f"{_OLD}/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        points = [_plain(line.split(" ")[4]) for line in table]
    return [target, *sorted({point for point in points if point.startswith(f"{target}/")})]


def _plain(text: str) -> str:
    """A path as the kernel writes it in tables, with its escapes undone."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _kept(place: str) -> int:
    flags = os.statvfs(place).f_flag
    return sum(flag for bit, flag in _KEPT.items() if flags & bit)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _forget_keys() -> None:
    """Leave the caller's session keyring; a kernel without keyrings has none to leave."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _LIBC.syscall(number, _JOIN_SESSION_KEYRING, None)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words: list[Any] = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_LIBC.mount(*words, ctypes.c_ulong(flags), None if data is None else data.encode()), f"mount at {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
