"""Raise ConnectionRefusedError if a Python process of the build tries to download, and record the attempt.

Python imports this module at startup, because its folder is in PYTHONPATH. Each attempt becomes a line of the file that
the environment variable TOOLCHAIN_REACHED names. Without this module, a build in a container without a network may
continue without the file that it cannot download, or end with a misleading message. The module must run on every
version of Python that Triton supports.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

_PROGRAMS = {"curl", "wget", "aria2c"}
# `submodule` is not included, because old setup.py files run `git submodule` for their backends, and continue if there
# is no git repository.
_FETCHING = {"clone", "fetch", "pull", "ls-remote"}
_LOCAL = {"127.0.0.1", "::1", "localhost", None, ""}


def _refuse(what: str) -> NoReturn:
    note = os.environ.get("TOOLCHAIN_REACHED")
    if note:
        with open(note, "a", encoding="utf-8") as stream:  # noqa: PTH123 - pathlib would slow each start
            stream.write(what.replace("\n", " ") + "\n")
    raise ConnectionRefusedError(f"toolchain: this build downloads nothing itself, and tried {what}")


def _program(arguments: Any) -> None:
    words = [
        os.fsdecode(word) for word in ([arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else arguments)
    ]
    name = words[0].rpartition("/")[2] if words else ""
    if name in _PROGRAMS or (name == "git" and _FETCHING.intersection(words[1:3])):
        _refuse(" ".join(words))


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "urllib.Request":
        if not str(arguments[0]).startswith(("file:", "data:")):
            _refuse(str(arguments[0]))
    elif event == "socket.getaddrinfo":
        if arguments[0] not in _LOCAL:
            _refuse(str(arguments[0]))
    elif event == "subprocess.Popen":
        _program(arguments[1])


sys.addaudithook(_hook)
