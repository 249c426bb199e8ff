"""Attempts to leave a container, in addition to those of `toolchain.engine.attack`, with the standard library only.

`python -I -S -B escape_attempts.py FILE` reads `Given` as JSON and prints a line for each attempt: `@held NAME`, or
`@out NAME: WHAT` if the attempt succeeded. The program changes nothing outside the container.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import stat
import sys
from collections.abc import Callable
from typing import TypedDict

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWUSER = 1 << 28
_PR_GET_NO_NEW_PRIVS = 39
_PTRACE_TRACEME, _PTRACE_SEIZE = 0, 0x4206
_AF_VSOCK = 40
# These are the numbers of the system call clone, because no function of the C library takes these arguments.
_CLONE = {"x86_64": 56, "aarch64": 220, "ppc64le": 120, "s390x": 120, "riscv64": 220}
_NEW_CALLS = {447: "memfd_secret", 457: "statmount", 458: "listmount", 467: "open_tree_attr", 468: "file_getattr"}
_REFUSED = (errno.EPERM, errno.ENOSYS)
_AT_FDCWD, _RENAME_WHITEOUT = -100, 4
_HOLDERS = ("/", "/tmp", "/dev", "/run", "/var")


class Given(TypedDict):
    """The facts about the host that the program uses.

    Args:
        unseen: paths of the host that must not exist in the container.
        locked: a folder that all users may write to, mounted read-only in the container.
        written: a folder of the caller that the container may write to. It is empty for a build, because a build may
            make links in its own tree.
        disk: the major and minor number of a disk.
        namespaces: the caller's namespaces, with their names and links in `/proc/self/ns`.
    """

    unseen: list[str]
    locked: str
    written: str
    disk: tuple[int, int]
    namespaces: dict[str, str]


def other_process(_: Given) -> str:
    """Read the root, the open files or the memory of another process."""

    def read(path: str) -> None:
        os.close(os.open(path, os.O_RDONLY))

    paths = [f"/proc/{pid}/{name}" for pid in _others() for name in ("root/", "cwd/", "mem", "environ", "auxv")]
    for pid in _others():
        try:
            paths += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
    return _first(read, paths)


def unseen(given: Given) -> str:
    """Find a path of the host that must not exist in the container."""
    return _first(os.lstat, given["unseen"])


def locked(given: Given) -> str:
    """Write to a read-only mount, after an attempt to mount it writable."""

    def write(path: str) -> None:
        with open(path, "w", encoding="ascii"):
            pass
        os.unlink(path)

    remount = 32 | 4096  # MS_REMOUNT, MS_BIND
    _LIBC.mount(None, os.fsencode(given["locked"]), None, ctypes.c_ulong(remount), None)
    return _first(write, [f"{given['locked']}/written"])


def links(given: Given) -> str:
    """Make a link, pipe, socket or device where the caller reads and writes."""

    def pipe(path: str) -> None:
        os.mkfifo(path)
        os.unlink(path)

    def link(path: str) -> None:
        os.symlink("/etc/shadow", path)
        os.unlink(path)

    def bind(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path)
        os.unlink(path)

    def whiteout(path: str) -> None:
        with open(path, "w", encoding="ascii"):
            pass
        moved = _LIBC.renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(f"{path}-moved"), _RENAME_WHITEOUT)
        os.unlink(path)
        if moved != 0:
            raise OSError(ctypes.get_errno(), path)
        os.unlink(f"{path}-moved")

    for attempt, name in ((link, "link"), (pipe, "pipe"), (bind, "socket"), (whiteout, "device")):
        if found := _first(attempt, [f"{given['written']}/{name}"]):
            return found
    return ""


def disk(given: Given) -> str:
    """Make a device file for a disk, or find one."""
    there = [f"/dev/{name}" for name in os.listdir("/dev")]
    if disks := [path for path in there if stat.S_ISBLK(os.lstat(path).st_mode)]:
        return disks[0]

    def make(path: str) -> None:
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(*given["disk"]))
        try:
            os.close(os.open(path, os.O_RDONLY))
        finally:
            os.unlink(path)

    return _first(make, [f"{folder.rstrip('/')}/disk" for folder in _HOLDERS])


def trace(_: Given) -> str:
    """Trace another process, or be traced."""
    for pid in _others():
        if _LIBC.ptrace(_PTRACE_SEIZE, int(pid), None, None) == 0:
            return f"process {pid}"
    return "a child" if _in_child(lambda: _LIBC.ptrace(_PTRACE_TRACEME, 0, None, None) == 0) else ""


def mount(_: Given) -> str:
    """Mount a file system, or unmount one."""
    if _LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None) == 0:
        return "a file system in memory"
    return "/proc is gone" if _LIBC.umount2(b"/proc", 2) == 0 else ""


def user_namespace(_: Given) -> str:
    """Create a user namespace, in which a process has all capabilities again."""
    if _in_child(lambda: _LIBC.unshare(_NEWUSER) == 0):
        return "by unshare"
    number = _CLONE.get(platform.machine())
    if number is None:
        return ""
    words = (0, _NEWUSER | signal.SIGCHLD) if platform.machine() == "s390x" else (_NEWUSER | signal.SIGCHLD, 0)
    pid = _LIBC.syscall(number, *words, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        return ""
    os.waitpid(pid, 0)
    return "by clone"


def privileges(_: Given) -> str:
    """Check whether programs with more rights could be started, because no_new_privs is not set."""
    return "no_new_privs is not set" if _LIBC.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 else ""


def machine_socket(_: Given) -> str:
    """Open a socket to the host of a virtual machine, which a network namespace does not prevent."""
    socket.socket(_AF_VSOCK, socket.SOCK_STREAM).close()
    return "a socket to the host"


def namespaces(given: Given) -> str:
    """Find namespaces that are shared with the caller."""
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in given["namespaces"]}
    return ", ".join(name for name, caller in given["namespaces"].items() if ours[name] == caller)


def new_calls(_: Given) -> str:
    """Make a system call that is newer than many lists of refused calls."""
    for number, name in _NEW_CALLS.items():
        # If the call is not filtered, a kernel that has it fails with another error, because the arguments are invalid.
        if _LIBC.syscall(number, -1, None, -1, None, 0, 0) != -1 or ctypes.get_errno() not in _REFUSED:
            return name
    return ""


def kernel(_: Given) -> str:
    """Change settings of the kernel, which affect every process."""

    def write(path: str) -> None:
        os.close(os.open(path, os.O_WRONLY))

    return _first(write, ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger"])


ATTEMPTS: dict[str, Callable[[Given], str]] = {
    "another process's root or memory": other_process,
    "the machine's files": unseen,
    "writing to a read-only mount": locked,
    "a disk": disk,
    "ptrace": trace,
    "mount": mount,
    "a user namespace": user_namespace,
    "new privileges": privileges,
    "a socket to the host of a virtual machine": machine_socket,
    "a namespace of the caller's": namespaces,
    "the kernel's settings": kernel,
    "a new system call": new_calls,
}
WHERE_WRITTEN: dict[str, Callable[[Given], str]] = {"a link where the caller reads": links}


def _first(attempt: Callable[[str], object], paths: list[str]) -> str:
    """Return the first path for which the attempt succeeds, or an empty text."""
    for path in paths:
        try:
            attempt(path)
        except OSError:
            continue
        return path
    return ""


def _others() -> list[str]:
    """Return the ids of processes outside this container."""
    return [name for name in os.listdir("/proc") if name.isdigit() and not _of_ours(name)]


def _of_ours(pid: str) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root/"), os.stat("/"))
    except OSError:
        return False


def _in_child(attempt: Callable[[], bool]) -> bool:
    """Make an attempt in a child, because it would change this process, and return whether it succeeded."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if attempt() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main(argv: list[str]) -> None:
    """Make the attempts. `mount` comes last, because it changes the mounts of this process."""
    with open(argv[1], encoding="utf-8") as file:
        given: Given = json.load(file)
    attempts = ATTEMPTS | (WHERE_WRITTEN if given["written"] else {})
    for name in sorted(attempts, key=lambda name: name == "mount"):
        try:
            what = attempts[name](given)
        except OSError:
            what = ""
        sys.stdout.write(f"@out {name}: {what}\n" if what else f"@held {name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv)
