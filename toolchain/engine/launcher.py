"""Run a program as root of its own user namespace, in a root folder with only system folders and requested files.

The launcher imports only the standard library and, if SPEC has limits, `limit_watch`. Root, or root of a user
namespace, starts it with `python -I -S launcher.py SPEC PROGRAM [ARGUMENT...]`, where SPEC is JSON (see `Spec`). The
launcher ends with the exit code or the signal of PROGRAM. When the launcher is killed, the kernel kills every process
that it started.

PROGRAM runs with none of the caller's user and group ids. Of the caller's folders, it sees only those that SPEC lists.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import sys

# The launcher starts for each call of buildah, and importing `typing` would make each start slower.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypedDict

    from toolchain.engine.limit_watch import Limits, Watch
else:
    TypedDict = dict

_LIBC = ctypes.CDLL(None, use_errno=True)

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_NOATIME, _MS_NODIRATIME, _MS_BIND, _MS_REC = 32, 1024, 2048, 4096, 16384
_MS_PRIVATE, _MS_RELATIME = 1 << 18, 1 << 21
_MNT_DETACH = 2
# This maps flags of statvfs to the flags of mount with the same meaning. A remount keeps them, because the kernel
# refuses to drop flags that a more privileged namespace has set.
_KEPT = {1: _MS_RDONLY, 2: _MS_NOSUID, 4: _MS_NODEV, 8: _MS_NOEXEC, 1024: _MS_NOATIME, 2048: _MS_NODIRATIME,
         4096: _MS_RELATIME}  # fmt: skip
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 1 << 17, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
# These are the seccomp mode, and the opcodes and return values of the classic BPF filter of system calls.
_MODE_FILTER = 2
_LOAD_WORD, _JUMP_EQ, _JUMP_GE, _RETURN = 0x20, 0x15, 0x35, 0x06
_RET_ERRNO, _RET_ALLOW = 0x00050000, 0x7FFF0000
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1
_OLD = "/.old"
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# On each of these folders, a tmpfs is mounted with these options.
_SCRATCH = {"/tmp": "mode=1777", "/run": "mode=755", "/var": "mode=755", "/dev/shm": "mode=1777,size=64m"}
# This folder is hidden, because the machine's settings for containers must not apply to builds.
_SETTINGS = "/usr/share/containers"
# ninja reads the number of processors here, and glibc reads whether it may ask the kernel for large pages.
_OF_SYS = ("/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


class Spec(TypedDict):
    """The settings for PROGRAM.

    Args:
        ids: the first id and the length of the range of user and group ids that PROGRAM sees as 0, 1, 2 and so on.
        binds: the folders and files to mount, each as its source, its path for PROGRAM, and whether it is writable.
        environment: all environment variables of PROGRAM, including `PATH`.
        network: whether PROGRAM keeps the caller's network.
        privileges: whether PROGRAM may gain rights by starting a program, for example one with a set-user-id bit.
        limits: the limits for PROGRAM; None for no limits.
        refused_calls: the numbers of system calls that fail with ENOSYS, unless `privileges` is set.
        unknown_calls: the number from which on all system calls also fail with ENOSYS, unless `privileges` is set.
    """

    ids: tuple[int, int]
    binds: list[tuple[str, str, bool]]
    environment: dict[str, str]
    network: bool
    privileges: bool
    limits: Limits | None
    refused_calls: list[int]
    unknown_calls: int


def main(argv: list[str]) -> int:
    """Start PROGRAM and wait for it. Return its exit code, or end this process by the signal that ended PROGRAM."""
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
        except BaseException as error:  # noqa: BLE001 - the child must not continue with the parent's code
            sys.stderr.write(f"toolchain: {error}\n")
            sys.stderr.flush()
        os._exit(125)
    os.close(tell)
    os.close(wait)
    # Each of these signals ends the namespace; the launcher still waits until the namespace has ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: os.kill(child, signal.SIGKILL))
    watch: Watch | None = None
    if os.read(mapped, 1):
        _map(child, spec["ids"])
        if (limits := spec["limits"]) is not None:
            from toolchain.engine.limit_watch import Watch  # noqa: PLC0415 - most calls have no limits

            watch = Watch(child, limits)
        os.write(go_on, b"m")
    os.close(go_on)
    status = os.waitpid(child, 0)[1] if watch is None else watch.wait()
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return os.waitstatus_to_exitcode(status)


def _map(child: int, ids: tuple[int, int]) -> None:
    first, count = ids
    for kind in ("uid", "gid"):
        with open(f"/proc/{child}/{kind}_map", "w", encoding="ascii") as table:
            table.write(f"0 {first} {count}\n")


def _become(spec: Spec, argv: list[str], tell: int, wait: int) -> NoReturn:
    _die_with_parent()
    _check(_LIBC.unshare(_NEWNS), "no namespace of mounts")
    if spec["limits"] is not None:
        from toolchain.engine.limit_watch import restrict  # noqa: PLC0415 - `_build_root` hides the tool's folder

        restrict(spec["limits"])
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
    """Make the system calls with these numbers, and all calls with numbers from `unknown` on, fail with ENOSYS.

    The filter does not check the architecture, because all these numbers are above 423, and such numbers are the same
    on all architectures in `_KEYCTL` and their 32-bit variants. The calls of the x32 ABI have numbers above `unknown`,
    so they fail too.
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
    """Return the path of the executable `program` in the folders of `places`, which has the format of `PATH`.

    If `program` contains a slash or is not found, it is returned unchanged. `os.execvpe` is not used, because it would
    import a module from a folder that may not be mounted any more.
    """
    for place in places.split(":") if "/" not in program else ():
        if os.access(f"{place}/{program}", os.X_OK):
            return f"{place}/{program}"
    return program


def _die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends; a change of the process's ids resets the setting."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def _build_root(spec: Spec) -> None:
    """Make a root folder in memory with the system's folders and the files in `spec`; unmount the machine's root."""
    # Links must be resolved before the machine's root is gone.
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
            _bind(f"/{name}", f"/{name}", writable=False)
    if os.path.isdir(_SETTINGS):
        _mount("tmpfs", _SETTINGS, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_RDONLY, "size=4k,mode=755")
    for source, target, writable in binds:
        _bind(source, target, writable=writable)
    for path in (*_SCRATCH, "/dev/pts", "/proc", "/sys"):
        os.makedirs(path, exist_ok=True)
    for name in _DEVICES:
        if os.path.exists(f"{_OLD}/dev/{name}"):
            _touch(f"/dev/{name}")
            _mount(f"{_OLD}/dev/{name}", f"/dev/{name}", None, _MS_BIND)
    for name, link in _LINKS.items():
        os.symlink(link, f"/dev/{name}")
    # The kernel lets a user namespace mount /proc only while the machine's /proc is visible, so /proc is mounted before
    # the machine's root is unmounted.
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for path in _OF_SYS:
        if os.path.isdir(_OLD + path):
            _bind(path, path, writable=False)
    _check(_LIBC.umount2(os.fsencode(_OLD), _MNT_DETACH), "the machine's root cannot be unmounted")
    os.rmdir(_OLD)
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept("/"))


def _bind(source: str, target: str, *, writable: bool) -> None:
    """Mount a folder or file of the old root at `target`, together with all mounts below it."""
    old = _OLD + source
    if os.path.isdir(old):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _touch(target)
    _mount(old, target, None, _MS_BIND | _MS_REC)
    # Writable folders get no new flags, because buildah remounts the folders without flags, and the kernel would refuse
    # to drop flags.
    more = 0 if writable else _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    for place in _mounted_below(target):
        _mount(None, place, None, _MS_REMOUNT | _MS_BIND | more | _kept(place))


def _mounted_below(target: str) -> list[str]:
    with open(f"{_OLD}/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        points = [_plain(line.split(" ")[4]) for line in table]
    return [target, *sorted({point for point in points if point.startswith(f"{target}/")})]


def _plain(text: str) -> str:
    """Return a path from one of the kernel's mount tables, with its octal escapes decoded."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _kept(place: str) -> int:
    flags = os.statvfs(place).f_flag
    return sum(flag for bit, flag in _KEPT.items() if flags & bit)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _forget_keys() -> None:
    """Leave the caller's session keyring for a new one; a failure is ignored, because a kernel may lack keyrings."""
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
    # This folder contains the package `toolchain`; `-I` and `-S` leave it out of the module path.
    sys.path.append(os.path.abspath(f"{__file__}/../../.."))
    sys.exit(main(sys.argv))
