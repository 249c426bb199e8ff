"""An ordinary user's containers: the process becomes root of a user namespace with the user's subordinate ids.

A base has files of many owners, and mounts need a namespace that allows them. The process keeps its id, so signals and
kill -9 reach it as they would without; files that it makes as root are the user's own outside.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from toolchain.core import process
from toolchain.core.environment import search_path
from toolchain.core.errors import EngineError

# Set inside, to the user's id outside.
INSIDE = "TOOLCHAIN_NAMESPACE_OF"
_TOP = Path(__file__).resolve().parents[2]
# As many ids as a distribution's system users and groups may have; the owner `nobody` has the last one.
ENOUGH = 65536
_UNSHARE = ("unshare", "--user", "--map-root-user", "--map-auto", "--mount")
_FIX_IDS = "as root: usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {user}"


def enter() -> None:
    """Start the tool again as root of a user namespace; do nothing for root and in such a namespace.

    It gets the same words and all of the caller's variables except Python's, because the tool itself reads them. The
    current folder is not in its module path.

    Raises:
        EngineError: what that needs is missing: the program newuidmap, ids, or the kernel's leave.
    """
    if os.geteuid() == 0 or INSIDE in os.environ:
        return
    require()
    # The words as they were: scripts of the project come here too.
    words = [process.which(_UNSHARE[0]), *_UNSHARE[1:], "--", sys.executable, "-P", *sys.orig_argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, _environment())  # noqa: S606 - no shell is wanted


def _environment() -> dict[str, str]:
    """The caller's variables without those that change which modules Python imports, and with an absolute `PATH`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if _TOP.name not in {"site-packages", "dist-packages"}:  # a checkout, which may have been started by `-m`
        kept["PYTHONPATH"] = os.fspath(_TOP)
    return {**kept, "PATH": search_path(), INSIDE: str(os.geteuid())}


def require() -> None:
    """Check that this user can create such a namespace."""
    process.which("newuidmap", fix="as root: apt-get install uidmap")
    user = user_name()
    for file in ("/etc/subuid", "/etc/subgid"):
        count = subordinate_ids(Path(file), user, os.geteuid())
        if count < ENOUGH:
            raise EngineError(
                f"{user} has {count or 'no'} subordinate ids in {file}, and containers need {ENOUGH}",
                why="the files of a base belong to many users",
                fix=_FIX_IDS.format(first=100000, last=100000 + ENOUGH - 1, user=user)
                + "; a range that no other user has; or run this as root",
            )
    tried = process.run([*_UNSHARE, "true"], capture=True, check=False, timeout=30)
    if tried.returncode != 0:
        raise EngineError(
            "the kernel gives this user no namespace of its own",
            why=" ".join(tried.tail[-3:]),
            fix="run this as root; on Ubuntu 23.10 and later an AppArmor profile for unshare allows it, or"
            " sysctl kernel.apparmor_restrict_unprivileged_userns=0; util-linux must be 2.38 or newer",
        )


def user_name() -> str:
    """The name of the user; the number if there is no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def subordinate_ids(file: Path, user: str, uid: int) -> int:
    """The size of the largest range of a user in `/etc/subuid` or `/etc/subgid`; 0 without one.

    Ranges are not added up: `unshare` maps one.
    """
    try:
        rows = [line.split(":") for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return 0
    counts = [row[2] for row in rows if len(row) == 3 and row[0] in {user, str(uid)}]
    return max((int(count) for count in counts if count.isascii() and count.isdigit()), default=0)
