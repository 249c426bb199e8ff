"""The permissions of new files and folders: those that containers read, and those that the user named."""

from __future__ import annotations

import os
from pathlib import Path


class _Umask:
    """The permissions that the umask of the user denies, which `widen_umask` records."""

    denied = 0


def widen_umask() -> None:
    """Let all users read new files, because containers run with other user ids and read mounted files.

    The user's umask still holds for what the user named: `make_named` and `for_user` use it.
    """
    _Umask.denied = os.umask(0)
    os.umask(_Umask.denied & ~0o055)


def for_user(mode: int) -> int:
    """Return the permissions in `mode` that the user's umask allows, for a file or folder that the user named."""
    return mode & ~_Umask.denied


def make_named(folder: Path) -> None:
    """Create a folder that the user named, with the permissions that the user's umask allows, unless it exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=for_user(0o777), exist_ok=True)
