"""The metadata of a Dask scheduler as a board: campaigns and workers write text there for each other, and read it.

Dask's own client and worker unpickle any message, whatever serializers they are configured with. So neither is used.
This module talks only to the scheduler, in Dask's framing, and reads what it receives as data: msgpack without
extensions, and in it text that is JSON. Nothing listens on a worker.

On the board, below `toolchain`:

- `workers`, worker: what a worker is and does, and its heartbeat;
- `beats`, campaign: its heartbeat;
- `orders`, worker, campaign: what the worker has to compile;
- `answers`, campaign, worker: the results;
- `campaigns`, name: the progress of a campaign.

Every entry is the whole state of its writer. So what is lost with a message or a restarted scheduler, the next
writing brings back.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from toolchain.core import strict_json
from toolchain.core.errors import UnreachableError
from toolchain.kernels.dask_link import check_address, library, security

KEY = "toolchain"
BEAT = 1.0  # seconds between two heartbeats
TICK = 0.2  # seconds between two looks at the board
GONE = 20.0  # seconds without a heartbeat after which a worker or a campaign is lost
_CONNECTS = 10.0  # seconds for a connection
_ANSWER = 30.0  # seconds for one question
_LARGEST = 64 << 20  # bytes of one message
_FRAMES = 1000
_NUMBER = struct.Struct("<Q")


class BoardError(OSError):
    """The connection to the scheduler is lost, or its messages are invalid."""


class Board:
    """A connection to a scheduler, for any number of threads.

    Args:
        address: see `check_address`.
        role: whose certificates are shown.

    Raises:
        ConfigError: see `check_address`, `library` and `security`.
        UnreachableError: no scheduler answers.
    """

    def __init__(self, address: str, role: Literal["client", "worker"] = "client") -> None:
        self.address = check_address(address)
        library()
        trust = security(address, role)
        self._msgpack: Any = import_module("msgpack")
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        try:
            self._connect(trust.get_connection_args(role)["ssl_context"] if trust else None)
        except (OSError, ValueError) as error:
            self.close()
            raise UnreachableError(
                f"no scheduler answers at {address}",
                why=str(error) or type(error).__name__,
                fix="start one: `dask scheduler`, in the same version as here; see docs/tasks/many-machines.md",
            ) from error

    def _connect(self, context: Any) -> None:
        parts = urlsplit(self.address)
        until = time.monotonic() + _CONNECTS
        made = socket.create_connection((str(parts.hostname), int(parts.port or 0)), _CONNECTS)
        self._socket = made
        self.local = "{}:{}".format(*made.getsockname()[:2])
        if context is not None:
            # Certificates of one authority, as in Dask: names are not compared.
            self._socket = context.wrap_socket(made, server_hostname=None)
        self._receive(until)  # what the scheduler is
        self._send({"compression": None, "python": (3, 11, 0), "pickle-protocol": 4}, until)

    def close(self) -> None:
        """End the connection."""
        made, self._socket = self._socket, None
        if made is not None:
            made.close()

    def write(self, *keys: str, value: object) -> None:
        """Replace an entry, by its JSON; None for an empty one.

        Raises:
            BoardError: the connection is lost.
        """
        text = "" if value is None else json.dumps(value)
        self._ask({"op": "set_metadata", "keys": [KEY, *keys], "value": text})

    def read(self, *keys: str) -> dict[str, Any]:
        """The entries below a place, by their last key. Empty and invalid ones are left out.

        Raises:
            BoardError: the connection is lost.
        """
        entries = self._ask({"op": "get_metadata", "keys": [KEY, *keys], "default": None})
        read = {}
        for name, text in entries.items() if isinstance(entries, dict) else ():
            with contextlib.suppress(ValueError):
                if isinstance(text, str):
                    read[str(name)] = strict_json.read(text)
        return read

    def _ask(self, message: Mapping[str, Any]) -> Any:
        with self._lock:
            if self._socket is None:
                raise BoardError("the connection is closed")
            until = time.monotonic() + _ANSWER
            try:
                self._send({**message, "reply": True}, until)
                answer = self._receive(until)
            except (OSError, ValueError) as error:
                # What was read of an answer so far would be taken for the next.
                self.close()
                raise BoardError(str(error) or type(error).__name__) from error
        if isinstance(answer, dict) and answer.get("status") in {"error", "uncaught-error"}:
            raise BoardError(f"the scheduler refuses: {str(answer.get('exception_text'))[:200]}")
        return answer

    def _send(self, message: Mapping[str, Any], until: float) -> None:
        frame = self._msgpack.packb(message, use_bin_type=True)
        made = self._timed(until)
        made.sendall(_NUMBER.pack(2 * _NUMBER.size + len(frame)) + _NUMBER.pack(1) + _NUMBER.pack(len(frame)) + frame)

    def _receive(self, until: float) -> Any:
        """The next message. Frames behind the first are Dask's serialized objects, and are not looked at.

        Raises:
            ValueError: it is too large, or no data.
        """
        (size,) = _NUMBER.unpack(self._exactly(_NUMBER.size, until))
        if not 2 * _NUMBER.size <= size <= _LARGEST:
            raise ValueError(f"a message of {size} bytes")
        block = self._exactly(size, until)
        (count,) = _NUMBER.unpack_from(block)
        begin = _NUMBER.size * (1 + count)
        if not 1 <= count <= _FRAMES or begin > size:
            raise ValueError(f"a message of {count} parts")
        lengths = struct.unpack_from(f"<{count}Q", block, _NUMBER.size)
        if sum(lengths) > _LARGEST or begin + lengths[0] > size:
            raise ValueError(f"a message of {sum(lengths)} bytes")
        self._exactly(begin + sum(lengths) - size, until)  # frames that come apart from the first
        try:
            return self._msgpack.unpackb(block[begin : begin + lengths[0]], raw=False, strict_map_key=False)
        except Exception as error:  # the library's errors have no common base
            raise ValueError(f"a message that is not data: {type(error).__name__}") from error

    def _exactly(self, count: int, until: float) -> bytes:
        if count < 0:
            raise ValueError("a message whose parts are longer than it is")
        received = bytearray()
        while len(received) < count:
            piece = self._timed(until).recv(min(count - len(received), 1 << 20))
            if not piece:
                raise BoardError("the scheduler closed the connection")
            received += piece
        return bytes(received)

    def _timed(self, until: float) -> socket.socket:
        """The socket, with the time that is left for what it is used for next."""
        if self._socket is None:
            raise BoardError("the connection is closed")
        left = until - time.monotonic()
        if left <= 0:
            raise BoardError("the scheduler does not answer in time")
        self._socket.settimeout(left)
        return self._socket


class Presence:
    """Which peers are alive: those whose heartbeat changes. Clocks of other machines are not used."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[object, float]] = {}

    def alive(self, name: str, beat: object) -> bool:
        """Whether a peer whose entry now has this heartbeat is alive."""
        now = time.monotonic()
        if name not in self._beats or self._beats[name][0] != beat:
            self._beats[name] = (beat, now)
        return now - self._beats[name][1] < GONE


_COUNTS = {"compiled": int, "found": int, "failed": int, "refused": int}
_PROCESS = {"pid": int, "memory": int, "compiled": int, "kernel": str, "gpu": str, "out": str, "seconds": (int, float)}
_NOW = {
    **_COUNTS,
    "processes": [_PROCESS],
    "memory": {"workers": int, "together": int, "share": int, "kernel": int},
}
_SAID = {
    "format": int, "name": str, "slots": int, "scope": str, "inputs": dict, "store": str,
    "limits": {"timeout": (int, float), "memory": int},
}  # fmt: skip
_WORKER = {"said": _SAID, "now": _NOW, "at": str, "beat": int}


def fits(value: Any, shape: Any) -> bool:
    """Whether an untrusted value has a shape: a type or several, a list of one shape, or keys and their shapes."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(name in value and fits(value[name], of) for name, of in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    return isinstance(value, shape) and not isinstance(value, bool)


def workers_on(board: Board, presence: Presence) -> dict[str, dict[str, Any]]:
    """The live workers, by id: how they describe themselves, in `now` what they are doing, and their `beat`.

    Raises:
        BoardError: the connection is lost.
    """
    return {
        key: {**row["said"], "at": row["at"], "now": row["now"], "beat": row["beat"]}
        for key, row in board.read("workers").items()
        if fits(row, _WORKER) and row["said"]["slots"] > 0 and presence.alive(key, row["beat"])
    }
