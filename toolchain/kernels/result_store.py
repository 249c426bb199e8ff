"""Results of kernels that campaigns on many machines share: the form of a result, and a folder of them.

A record is one line of JSON and the object's bytes. The line holds a statement, which describes the object and all
that it was made from, and a signature over it where the writer has a key. Each reader checks a record; see
`read_record`.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, ResourceError
from toolchain.core.filesystem import NewFile, is_inside, read_regular
from toolchain.core.strict_json import Keys
from toolchain.kernels.result_name import FORMAT

_LARGEST_LINE = 1 << 20  # bytes of a record's line
_LARGEST_RECORD = 1 << 30
LARGEST_OBJECT = 1 << 30  # bytes of a code object that is read
LARGEST_METADATA = 16 << 20  # of the JSON beside it
_LARGEST_NOTE = 64 << 20
_LONGEST = 1e9  # seconds
_LINE: Keys = dict.fromkeys(("statement", "keyid", "sig", "check"))
_STATEMENT: Keys = dict.fromkeys(("format", "inputs", "sha256", "size", "json", "bitcode", "seconds", "about"))


class DamagedError(Exception):
    """A record that is not whole, or does not match its name."""


class UnsignedError(Exception):
    """A record without a signature by the right key."""


class Key(Protocol):
    """Signs statements, and verifies their signatures."""

    @property
    def id(self) -> str:
        """A hint at which key it is."""

    def sign(self, statement: bytes) -> bytes | None:
        """A signature; None if this is only the public half."""

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        """Whether a signature is by this key."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """An object and its description.

    Args:
        inputs: what it was made from, see `Naming.inputs`.
        metadata: the JSON beside the object, byte for byte.
        bitcode: as in a ledger's entry.
        seconds: that compiling it took, where it was compiled.
        about: how the worker described itself.
    """

    inputs: Mapping[str, Any]
    code: bytes
    metadata: bytes
    bitcode: tuple[str, ...] = ()
    seconds: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def record(self, key: Key | None = None) -> bytes:
        """The record of it."""
        statement = canonical(
            {
                "format": FORMAT,
                "inputs": dict(self.inputs),
                "sha256": hashlib.sha256(self.code).hexdigest(),
                "size": len(self.code),
                "json": self.metadata.decode(),
                "bitcode": list(self.bitcode),
                "seconds": self.seconds,
                "about": dict(self.about),
            }
        )
        return sealed(statement, key) + b"\n" + self.code


def sealed(statement: bytes, key: Key | None) -> bytes:
    """A statement (UTF-8) as one line of JSON, with a signature where `key` can sign."""
    line: dict[str, Any] = {"statement": statement.decode()}
    signature = key.sign(statement) if key is not None else None
    if key is not None and signature is not None:
        line |= {"keyid": key.id, "sig": base64.b64encode(signature).decode()}
    line["check"] = hashlib.sha256(statement).hexdigest()
    return canonical(line)


def opened(line: bytes, key: Key | None) -> bytes:
    """The statement in such a line.

    Raises:
        DamagedError: it is not whole.
        UnsignedError: there is a key, and no signature by it.
    """
    try:
        wrapped = strict_json.read(line, "the line", keys=_LINE)
        statement = str(wrapped["statement"]).encode()
        signature = base64.b64decode(str(wrapped.get("sig", "")), validate=True)
        whole = hashlib.sha256(statement).hexdigest() == wrapped["check"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"it is not a statement: {type(error).__name__}") from error
    if not whole:
        raise DamagedError("its statement was changed")
    if key is not None and not key.verifies(signature, statement):
        raise UnsignedError("signed by another key" if signature else "not signed")
    return statement


def read_record(record: bytes, inputs: Mapping[str, Any], key: Key | None = None) -> Result:
    """The result in a record, if it is whole and the requested one.

    Args:
        inputs: what it must have been made from.
        key: whose signature is required; without it none is checked.

    Raises:
        DamagedError: it is not whole, or does not match its name.
        UnsignedError: no signature, or by another key.
    """
    result = stored_record(record, key)
    if not _same(dict(result.inputs), dict(inputs)):
        raise DamagedError(difference(result.inputs, inputs))
    return result


def stored_record(record: bytes, key: Key | None = None) -> Result:
    """The result in a record, without a check of what it was made from."""
    line, _, code = record.partition(b"\n")
    return _result(line[:_LARGEST_LINE], code, key)


def read_stored(stream: BinaryIO) -> Result:
    """Read a record from a file, see `stored_record`: its object is in memory once."""
    line = stream.readline(_LARGEST_LINE)
    return _result(line.removesuffix(b"\n"), stream.read(LARGEST_OBJECT), None)


def _result(line: bytes, code: bytes, key: Key | None) -> Result:
    statement = opened(line, key)
    try:
        content = strict_json.read(statement, "the statement", keys=_STATEMENT)
        result = Result(
            inputs=dict(content["inputs"]),
            code=code,
            metadata=str(content["json"]).encode(),
            bitcode=tuple(str(name) for name in content["bitcode"]),
            seconds=read_seconds(content["seconds"]),
            about=dict(content["about"]),
        )
        digest, size = str(content["sha256"]), int(content["size"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"it is not a record: {type(error).__name__}") from error
    if len(code) != size or hashlib.sha256(code).hexdigest() != digest:
        raise DamagedError(f"its object has {len(code)} bytes and SHA-256 {hashlib.sha256(code).hexdigest()}")
    return result


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON. To Python 1, 1.0 and True are equal; to a compiler they are not."""
    return canonical(one) == canonical(other)


def difference(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Say in which inputs a result differs from the one that is wanted."""
    words = {
        "triton": "by another Triton",
        "environment": "in another environment",
        "recipe": "by another worker",
        "command": "by another command",
        "sources": "from other sources",
        "rule": "by another rule",
    }
    rules = [rule if isinstance(rule := inputs.get("rule"), dict) else {} for inputs in (made, wanted)]
    target, wanted_target = (rule.get("target") for rule in rules)
    if target != wanted_target:
        return f"it was made for {target}, not for {wanted_target}"
    differing = [text for name, text in words.items() if not _same(made.get(name), wanted.get(name))]
    return f"it was made {', '.join(differing) or 'from other inputs'}"


@dataclass(frozen=True)
class Addition:
    """A record to be stored, with its name and GPU."""

    name: str
    target: str
    record: bytes


class KernelStore(Protocol):
    """A place of records by name, and of notes: small documents that campaigns write for each other.

    Every method may raise a ToolchainError: the place refuses, is full or does not answer.
    """

    ref: str

    def prepare(self, scope: str, targets: Sequence[str]) -> None:
        """Begin a campaign: its `Naming.scope` and its GPUs."""

    def holds(self, name: str) -> bool:
        """Whether there is a record of this name, as far as was known when this was prepared."""

    def fetch(self, names: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """The records of these names that exist, in any order; None for a damaged one.

        A damaged one may be followed by others of its name. The caller may take out of `names` what it has.
        """

    def add(self, addition: Addition, *, replace: bool = False) -> int:
        """Store a record, now or with the next `flush`; how many were stored by this call.

        Args:
            replace: replace the existing one, which is unusable.
        """

    def flush(self) -> int:
        """Store what was added and is not stored; how many that were."""

    def note(self, name: str, content: bytes) -> None:
        """Write a note.

        Args:
            name: lower-case letters and digits, with `-` between.
        """

    def notes(self, prefix: str) -> Mapping[str, bytes]:
        """The notes whose name begins so."""


class FolderStore:
    """Records in a folder, one file each. Any number of processes may read and write it, on one machine or by NFS.

    Args:
        root: the folder; made when something is stored.

    Raises:
        ConfigError: the name is used for something else, or for a store of another format.
    """

    _MARKER = "kernel-store.json"

    def __init__(self, root: Path) -> None:
        self.ref = str(root)
        self._root = root
        marker = root / self._MARKER
        try:
            if os.path.lexists(marker):
                content = strict_json.read(read_regular(marker, _LARGEST_LINE, within=root))
                if content != {"format": FORMAT}:
                    raise ConfigError(f"{root} is a kernel store of another format", fix="name another folder")
                return
            # Another process may be at its first result: partial names begin with a dot, the marker comes first.
            if root.exists() and any(not path.name.startswith(".") for path in root.iterdir()):
                raise ConfigError(
                    f"{root} is not a kernel store",
                    why="there are other files in it",
                    fix="name an empty or a new folder",
                )
        except (OSError, ValueError) as error:
            raise ConfigError(f"{root} cannot be a kernel store", why=str(error), fix="name another folder") from error

    @property
    def made(self) -> bool:
        """Whether something was stored."""
        return os.path.lexists(self._root / self._MARKER)

    def prepare(self, scope: str, targets: Sequence[str]) -> None:
        """Begin a campaign by its `Naming.scope` and GPUs."""

    def _path(self, name: str) -> Path:
        return self._root / "results" / name[:2] / name[2:]

    def holds(self, name: str) -> bool:
        """Return whether there is a record of this name."""
        return self._path(name).exists()

    def fetch(self, names: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield the records of these names that exist; None for a damaged one."""
        for name in tuple(names):
            try:
                yield name, read_regular(self._path(name), _LARGEST_RECORD, within=self._root)
            except FileNotFoundError:
                continue
            except OSError:
                yield name, None

    def add(self, addition: Addition, *, replace: bool = False) -> int:
        """Store a record, and return how many were stored by this call."""
        path = self._path(addition.name)
        if path.exists() and not replace:
            return 0
        self._write(path, addition.record)
        return 1

    def flush(self) -> int:
        """Store what was added and is not stored, and return how many records that were."""
        return 0

    def note(self, name: str, content: bytes) -> None:
        """Write a note."""
        self._write(self._root / "notes" / f"{name}.json", content)

    def notes(self, prefix: str) -> Mapping[str, bytes]:
        """Return the notes whose names begin with `prefix`."""
        return {path.stem: self._read_note(path) for path in sorted((self._root / "notes").glob(f"{prefix}*.json"))}

    def _read_note(self, path: Path) -> bytes:
        try:
            return read_regular(path, _LARGEST_NOTE, within=self._root)
        except OSError as error:
            raise ConfigError(
                f"cannot read the note {path} of a campaign", why=str(error.strerror), fix="name another store"
            ) from error

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file that is there whole or not at all."""
        try:
            marker = self._root / self._MARKER
            if path != marker and not os.path.lexists(marker):
                self._write(marker, canonical({"format": FORMAT}))
            if not is_inside(path, self._root):
                raise OSError(errno.ELOOP, "it is a link that leads out of the store", str(path.parent))
            path.parent.mkdir(parents=True, exist_ok=True)
            with NewFile(path) as new:
                new.stream.write(content)
                # It is not read back: another process may write the same result now, and each reader checks it.
                new.finish()
        except OSError as error:
            raise ResourceError(
                f"the kernel store {self._root} cannot be written",
                why=str(error),
                fix="free disk space or fix its permissions, and run it again: it continues",
            ) from error


def read_seconds(value: Any) -> float:
    """A time that a kernel took, in seconds, as in a store."""
    try:
        seconds = float(value)
    except OverflowError as error:
        raise ValueError("no kernel takes so long") from error
    if not 0 <= seconds <= _LONGEST:
        raise ValueError(f"{seconds} is not a number of seconds")
    return seconds
