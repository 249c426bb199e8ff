"""Make an ordinary user root in a user namespace that maps the user's subordinate ids, so that containers can run.

In this namespace the process may mount file systems, and may create files with the different owners that a base image
needs. The process keeps its PID, so signals still reach it. The files that it makes as root of the namespace belong to
the user.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from toolchain.core import process
from toolchain.core.environment import search_path
from toolchain.core.errors import EngineError

# Inside the namespace, this environment variable holds the id that the user has outside of it.
INSIDE = "TOOLCHAIN_NAMESPACE_OF"
_TOP = Path(__file__).resolve().parents[2]
# This many ids cover the users and groups of a distribution, including `nobody` (65534).
ENOUGH = 65536
_UNSHARE = ("unshare", "--user", "--map-root-user", "--map-auto", "--mount")
_FIX_IDS = "as root: usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {user}"


def enter() -> None:
    """Restart the tool as root of a user namespace, unless it is already root or in such a namespace.

    The restarted tool gets the same arguments, and the environment variables that `_environment` returns. The current
    folder is not on its module path. Raise an EngineError if this user cannot create the namespace.
    """
    if os.geteuid() == 0 or INSIDE in os.environ:
        return
    require()
    # `orig_argv` includes options of Python such as `-m`, with which the project's scripts are started.
    words = [process.which(_UNSHARE[0]), *_UNSHARE[1:], "--", sys.executable, "-P", *sys.orig_argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, _environment())  # noqa: S606 - a shell is not necessary


def _environment() -> dict[str, str]:
    """Return the caller's environment variables without those for Python, and with only absolute folders in `PATH`.

    `INSIDE` is added, and `PYTHONPATH` if the tool runs from a checkout.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if _TOP.name not in {"site-packages", "dist-packages"}:  # a checkout, which need not be installed
        kept["PYTHONPATH"] = os.fspath(_TOP)
    return {**kept, "PATH": search_path(), INSIDE: str(os.geteuid())}


def require() -> None:
    """Raise an EngineError if this user cannot create a user namespace for containers."""
    process.which("newuidmap", fix="as root: apt-get install uidmap")
    user = user_name()
    for file in ("/etc/subuid", "/etc/subgid"):
        count = subordinate_ids(Path(file), user, os.geteuid())
        if count < ENOUGH:
            raise EngineError(
                "subordinate-ids-missing",
                f"{user} has {count or 'no'} subordinate ids in the first range of {file}; containers need {ENOUGH}",
                why="the files of a base belong to many users",
                fix=_FIX_IDS.format(first=100000, last=100000 + ENOUGH - 1, user=user)
                + " (choose a range that no other user has); or run this command as root",
            )
    tried = process.run([*_UNSHARE, "true"], capture=True, check=False, timeout=30)
    if tried.returncode != 0:
        raise EngineError(
            "user-namespace-refused",
            "this user cannot create a user namespace",
            why=" ".join(tried.tail[-3:]),
            fix="install util-linux 2.38 or newer; on Ubuntu 23.10 and later, add an AppArmor profile for unshare or"
            " run `sysctl kernel.apparmor_restrict_unprivileged_userns=0`; or run this command as root",
        )


def user_name() -> str:
    """Return the user's name, or the user's id if the id has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def subordinate_ids(file: Path, user: str, uid: int) -> int:
    """Return the size of a user's first range of ids in `/etc/subuid` or `/etc/subgid`; 0 if there is none.

    Later ranges are ignored, because `unshare --map-auto` maps only the first one.
    """
    try:
        rows = [line.split(":") for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return 0
    counts = [row[2] for row in rows if len(row) == 3 and row[0] in {user, str(uid)}]
    return next((int(count) for count in counts if count.isascii() and count.isdigit()), 0)
