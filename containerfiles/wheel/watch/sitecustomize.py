"""Notes which place in which file asks for an address: a line of JSON in the file that WATCH_REACHED names.

Python imports this by itself where the folder is on PYTHONPATH. Nothing is hindered here; the container has no network.
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
        return  # a socket of this machine's own
    _BUSY.append(event)
    try:
        frame = sys._getframe(1)
        standard = os.__file__.removesuffix("os.py")
        while frame.f_back is not None and _is_library(frame.f_code.co_filename, standard):
            frame = frame.f_back
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        host = ":".join(str(part) for part in address[:2] if part)
        with open(os.environ["WATCH_REACHED"], "a", encoding="utf-8") as stream:  # noqa: PTH123 - started very often
            stream.write(json.dumps([where, host]) + "\n")
    finally:
        _BUSY.pop()


def _is_library(name: str, standard: str) -> bool:
    """Whether a file is Python's own, so that the one of interest called it."""
    return name.startswith(("<frozen", standard)) and "-packages" not in name


sys.addaudithook(_note)
