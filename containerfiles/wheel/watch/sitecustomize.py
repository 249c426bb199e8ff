"""Record the addresses to which Python code connects and the hosts that it looks up, with the place in the code.

Python imports this module at startup, because its folder is in PYTHONPATH. Each record is a JSON line, [FILE:LINE,
ADDRESS], in the file that the environment variable WATCH_REACHED names. FILE:LINE is the innermost frame outside the
standard library. If all frames are in the standard library, FILE:LINE is the outermost frame. ADDRESS is HOST:PORT, or
only the part that the call contains. The module blocks nothing, because the container has no network.
"""

import json
import os
import sys
from typing import Any

_EVENTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"}
_BUSY: list[str] = []


def _note(event: str, values: tuple[Any, ...]) -> None:
    if event not in _EVENTS or _BUSY or "WATCH_REACHED" not in os.environ:
        return
    address = values[1] if event == "socket.connect" else values[:2]
    if isinstance(address, (str, bytes)):
        return  # the path of a Unix socket
    _BUSY.append(event)
    try:
        frame = sys._getframe(1)
        standard = os.__file__.removesuffix("os.py")
        while frame.f_back is not None and _is_library(frame.f_code.co_filename, standard):
            frame = frame.f_back
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        host = ":".join(str(part) for part in address[:2] if part)
        with open(os.environ["WATCH_REACHED"], "a", encoding="utf-8") as stream:  # noqa: PTH123 - pathlib would slow each start
            stream.write(json.dumps([where, host]) + "\n")
    finally:
        _BUSY.pop()


def _is_library(name: str, standard: str) -> bool:
    """Return whether a file is part of Python's standard library, which is installed in the folder `standard`."""
    return name.startswith(("<frozen", standard)) and "-packages" not in name


sys.addaudithook(_note)
