"""Choose the files of this machine and the range of ids that buildah sees when `engine.launcher` runs it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from toolchain.core import process
from toolchain.core.digest import sha256_bytes, write_atomically
from toolchain.core.errors import EngineError
from toolchain.core.recipe import Mount
from toolchain.data import load
from toolchain.engine import launcher
from toolchain.engine.limit_watch import Limits

# These are paths inside the launcher's namespaces.
STORAGE = "/engine/storage"
RUNROOT = "/engine/run"
WORK = "/engine/work"
SECCOMP = "/etc/containers/seccomp.json"
SECCOMP_PLAIN = "/etc/containers/seccomp-plain-files.json"

# useradd assigns ids up to 600100000, and systemd up to 1879048191.
FIRST_ID = 1879048192
COUNT = 65536
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {
    "GOTRACEBACK": "none",  # if buildah crashes, Go prints only the reason, not hundreds of lines about its threads
    "HOME": "/",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PATH": _PATH,
    "TMPDIR": WORK,
    "TZ": "UTC",
}
PROGRAM = Path(launcher.__file__)
# These are the entries of /etc that programs need, and those that only programs with network access need.
_ETC = ("ld.so.cache", "alternatives")
_NETWORK = ("resolv.conf", "hosts", "nsswitch.conf", "ssl", "pki", "ca-certificates")
# These files have fixed content, so that the machine's own settings have no effect.
_FILES = {
    "/etc/passwd": "root:x:0:0:root:/:/bin/sh\n",
    "/etc/group": "root:x:0:\n",
    "/etc/containers/policy.json": '{"default":[{"type":"insecureAcceptAnything"}]}\n',
    "/etc/containers/registries.conf": "\n",
    "/etc/containers/containers.conf": "\n",
}
_OFFLINE = {"/etc/hosts": "127.0.0.1 localhost\n", "/etc/resolv.conf": "\n"}
_ARCHITECTURES = {
    "x86_64": "SCMP_ARCH_X86_64",
    "aarch64": "SCMP_ARCH_AARCH64",
    "ppc64le": "SCMP_ARCH_PPC64LE",
    "s390x": "SCMP_ARCH_S390X",
    "riscv64": "SCMP_ARCH_RISCV64",
}


def ids() -> tuple[int, int]:
    """Return the first id and the length of the range of ids for containers.

    The range does not include the caller's id. Raise an EngineError if no range is long enough.
    """
    best = (0, 0)
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        inside, _, count = map(int, line.split())
        if inside <= FIRST_ID and inside + count >= FIRST_ID + COUNT:
            return FIRST_ID, COUNT
        first = max(inside, 1)
        best = max(best, (inside + count - first, first))
    have, first = best
    # The range may lack its last id, 65535, because no user has it; `nobody` is 65534.
    if have < COUNT - 1:
        raise EngineError(
            "subordinate-ids-missing",
            f"containers need {COUNT} ids of their own, and there are {max(have, 0)} here",
            why="the files of a base belong to many users, and none of them may be the caller's",
            fix="run this command as a user with subordinate ids, or as root of the machine",
        )
    return first, min(have, COUNT)


def command(
    argv: Sequence[str],
    settings: Path,
    *,
    show: Iterable[Mount] = (),
    network: bool = False,
    limits: Limits | None = None,
) -> list[str]:
    """Return the command line that runs `argv` with `engine.launcher` in its own namespaces.

    Args:
        argv: a program and its arguments, with paths inside the namespaces. See `program` for a program that may be
            outside of the system's folders.
        settings: the folder for buildah's settings, which are written there if they are missing.
        show: the folders and files of this machine to mount, with their paths inside the namespaces.
        network: whether the program keeps this machine's network.
        limits: the limits for the program (see `engine.container_limits`); None for no limits.
    """
    files = {**_FILES, **({} if network else _OFFLINE), **_profiles()}
    shown = [*show, *(Mount(path, inside) for inside, path in _written(settings, files).items())]
    etc = [Path("/etc") / name for name in (*_ETC, *(_NETWORK if network else ()))]
    shown += [Mount(path, os.fspath(path)) for path in etc if path.exists()]
    spec: launcher.Spec = {
        "ids": ids(),
        "binds": [(os.fspath(mount.source.absolute()), mount.target, not mount.read_only) for mount in shown],
        "environment": _ENVIRONMENT,
        "network": network,
        "privileges": False,
        "limits": limits,
        "refused_calls": load("syscalls")["by-number"]["numbers"],
        "unknown_calls": load("syscalls")["by-number"]["unknown"],
    }
    return process.python("-S", os.fspath(PROGRAM), json.dumps(spec), *argv)


def program(name: str, *, fix: str = "") -> tuple[str, list[Mount]]:
    """Return the path of a program inside the namespaces, and the mounts that show the program there.

    A program in the system's folders needs no mount. An EngineError that advises `fix` is raised if the program is
    missing.
    """
    path = Path(process.which(name, fix=fix)).resolve()
    if path.parts[1] in launcher.SYSTEM:
        return os.fspath(path), []
    inside = f"/programs/{path.name}"
    return inside, [Mount(path, inside)]


def profile(settings: Path, *, plain: bool = False) -> Path:
    """Write the seccomp profiles if they are missing, and return the path of one. For `plain`, see `seccomp`."""
    return _written(settings, _profiles())[SECCOMP_PLAIN if plain else SECCOMP]


def _profiles() -> dict[str, str]:
    return {SECCOMP: json.dumps(seccomp()), SECCOMP_PLAIN: json.dumps(seccomp(plain=True))}


def _written(folder: Path, files: Mapping[str, str]) -> dict[str, Path]:
    """Write files to `folder` under names that contain part of their digests, and return the path of each file there.

    The keys of `files` and of the result are the paths of the files in the launcher's namespaces.
    """
    there = {}
    for inside, text in files.items():
        path = folder / f"{sha256_bytes(text.encode())[7:19]}-{Path(inside).name}"
        if not path.exists():
            write_atomically(path, text.encode())
        there[inside] = path
    return there


def seccomp(*, plain: bool = False) -> dict[str, object]:
    """Return the seccomp profile from data/syscalls.toml in the format that container engines read.

    Args:
        plain: whether system calls that make symbolic links, pipes, devices and socket files are refused too.
    """
    rows = load("syscalls")
    refused = [*rows["refused"], *(rows["refused-where-written"] if plain else ())]
    rules: list[dict[str, object]] = [
        {"names": row["names"], "action": "SCMP_ACT_ERRNO", "errnoRet": row.get("errno", 1)} for row in refused
    ]
    for row in rows["refused-with"]:
        operator = "SCMP_CMP_MASKED_EQ" if row.get("mask") else "SCMP_CMP_EQ"
        # On s390x the flags of clone are its second argument.
        index = 1 if row["names"] == ["clone"] and platform.machine() == "s390x" else row["argument"]
        for value in row["values"]:
            argument = {"index": index, "op": operator, "value": value, "valueTwo": value}
            rules.append({"names": row["names"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [argument]})
    architecture = _ARCHITECTURES.get(platform.machine())
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architecture] if architecture else [],
        "syscalls": rules,
    }


def own(folder: Path, *, whole: bool = False) -> None:
    """Make `folder` if it is missing, and make root in containers the owner of the folder and its content.

    Args:
        whole: whether to check the content even if root in containers owns the folder, because the caller may have
            added files. Entries that belong to other ids of containers are not changed.
    """
    first, count = ids()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid == first and not whole:
        return
    # A container may be writing to the folder. So entries may vanish, and a path could lead out of the folder.
    for _, names, files, at in os.fwalk(folder):
        for name in (*names, *files):
            with contextlib.suppress(FileNotFoundError):
                if not first <= os.stat(name, dir_fd=at, follow_symlinks=False).st_uid < first + count:
                    os.chown(name, first, first, dir_fd=at, follow_symlinks=False)
    os.chown(folder, first, first)


def visible(path: Path, copies: Path) -> Path:
    """Return `path` with its links resolved, or a copy in the folder `copies` if users in containers cannot read it.

    A copy is also made if they cannot read all files and folders below `path`.
    """
    path = path.resolve()
    if _readable(path):
        return path
    copies.mkdir(exist_ok=True)
    copy = copies / f"{len(list(copies.iterdir()))}-{path.name}"
    process.run(["cp", "-rP", "--reflink=auto", "--preserve=timestamps", "--", path, copy])
    process.run(["chmod", "-R", "a+rX,u+w", "--", copy])
    return copy


def _readable(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return not stat.S_ISREG(status.st_mode) or bool(status.st_mode & stat.S_IROTH)
    waiting = [os.fspath(path)]
    if status.st_mode & 0o5 != 0o5:
        return False
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    if mode & 0o5 != 0o5:
                        return False
                    waiting.append(entry.path)
                elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                    return False
    return True
