"""Read and write kernel results that campaigns share: records, and the folder that holds them.

A record is one line of JSON followed by the bytes of the object. The line contains a statement, which describes the
object and all inputs of its compilation, and a signature over the statement if the writer has a private key.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, ResourceError
from toolchain.core.filesystem import NewFile, is_inside, read_regular
from toolchain.core.strict_json import Keys
from toolchain.kernels.result_name import FORMAT

_LARGEST_LINE = 1 << 20  # the maximum size of the line in a record, in bytes
_LARGEST_RECORD = 1 << 30
LARGEST_OBJECT = 1 << 30  # the maximum size of a code object in bytes
LARGEST_METADATA = 16 << 20  # the maximum size of the JSON beside an object, in bytes
_LARGEST_NOTE = 64 << 20
_LONGEST = 1e9  # seconds; a record that states more is treated as damaged
_LINE: Keys = dict.fromkeys(("statement", "keyid", "sig", "check"))
_STATEMENT: Keys = dict.fromkeys(("format", "inputs", "sha256", "size", "json", "bitcode", "seconds", "about"))


class DamagedError(Exception):
    """A record or a note is incomplete or was changed, or does not have the content that its reader expects."""


class UnsignedError(Exception):
    """A record or a note has no signature by the required key."""


class Key(Protocol):
    """A key that signs statements and verifies their signatures."""

    @property
    def id(self) -> str:
        """The id of the key. It is only a hint, because a signature is verified with the key itself."""

    @property
    def can_sign(self) -> bool:
        """Whether the private half of the key is there."""

    def sign(self, statement: bytes) -> bytes | None:
        """Return a signature over a statement, or None if the private half of the key is missing."""

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        """Return whether this key made a signature over a statement."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A compiled object, and the description of its compilation.

    Args:
        inputs: see `Naming.inputs`.
        metadata: the bytes of the JSON beside the object.
        bitcode: the names of the bitcode libraries whose code is in the object.
        about: the facts that the worker reported when it started.
    """

    inputs: Mapping[str, Any]
    code: bytes
    metadata: bytes
    bitcode: tuple[str, ...] = ()
    seconds: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def record(self, key: Key | None = None) -> bytes:
        """Return this result as a record; it is signed if `key` can sign."""
        statement = {
            "format": FORMAT,
            "inputs": dict(self.inputs),
            "sha256": hashlib.sha256(self.code).hexdigest(),
            "size": len(self.code),
            "json": self.metadata.decode(),
            "bitcode": list(self.bitcode),
            "seconds": self.seconds,
            "about": dict(self.about),
        }
        return sealed(canonical(statement), key) + b"\n" + self.code


def sealed(statement: bytes, key: Key | None) -> bytes:
    """Return a line of JSON with a UTF-8 statement, its SHA-256, and a signature if `key` can sign."""
    line: dict[str, Any] = {"statement": statement.decode()}
    signature = key.sign(statement) if key is not None else None
    if key is not None and signature is not None:
        line |= {"keyid": key.id, "sig": base64.b64encode(signature).decode()}
    line["check"] = hashlib.sha256(statement).hexdigest()
    return canonical(line)


def opened(line: bytes, key: Key | None) -> bytes:
    """Return the statement in a line that `sealed` made.

    Raises:
        DamagedError: the line is incomplete or was changed.
        UnsignedError: `key` is given and did not sign the statement.
    """
    try:
        wrapped = strict_json.read(line, "the line", keys=_LINE)
        statement = str(wrapped["statement"]).encode()
        signature = base64.b64decode(str(wrapped.get("sig", "")), validate=True)
        unchanged = hashlib.sha256(statement).hexdigest() == wrapped["check"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError("its first line is not a statement") from error
    if not unchanged:
        raise DamagedError("its statement was changed")
    if key is not None and not key.verifies(signature, statement):
        raise UnsignedError("signed by another key" if signature else "not signed")
    return statement


def read_record(record: bytes, inputs: Mapping[str, Any] | None, key: Key | None = None) -> Result:
    """Return the result in a record.

    Args:
        inputs: the inputs that the result must have; None to accept any inputs.
        key: the key that must have signed the record; with None, no signature is required.

    Raises:
        DamagedError: the record is incomplete, was changed, or has other inputs.
        UnsignedError: `key` did not sign the record.
    """
    line, _, code = record.partition(b"\n")
    statement = opened(line[:_LARGEST_LINE], key)
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
        raise DamagedError("its statement does not describe a result") from error
    if len(code) != size or hashlib.sha256(code).hexdigest() != digest:
        raise DamagedError(f"its object is not the one with the SHA-256 {digest} and {size} bytes")
    if inputs is not None and not _same(dict(result.inputs), dict(inputs)):
        raise DamagedError(difference(result.inputs, inputs))
    return result


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON. Python treats 1, 1.0 and True as equal, but a compiler does not."""
    return canonical(one) == canonical(other)


def difference(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return a description of how the inputs of a result differ from those that are wanted."""
    words = {
        "triton": "by another Triton",
        "environment": "in another environment",
        "recipe": "by another worker",
        "command": "by another command",
        "sources": "from other sources",
        "rule": "for another rule",
    }
    rules = [rule if isinstance(rule := inputs.get("rule"), dict) else {} for inputs in (made, wanted)]
    target, wanted_target = (rule.get("target") for rule in rules)
    if target != wanted_target:
        return f"it was made for {target}, not for {wanted_target}"
    differing = [text for name, text in words.items() if not _same(made.get(name), wanted.get(name))]
    return f"it was made {', '.join(differing) or 'from other inputs'}"


def read_seconds(value: Any) -> float:
    """Return a duration from a record; raise ValueError or TypeError if it is invalid."""
    try:
        seconds = float(value)
    except OverflowError as error:
        raise ValueError("no kernel takes so long") from error
    if not 0 <= seconds <= _LONGEST:
        raise ValueError(f"{seconds} is not a number of seconds")
    return seconds


def write_unflushed(path: Path, content: bytes) -> None:
    """Write a file of a result under a temporary name, and rename it without flushing it to disk.

    A crash of the machine may damage the file, but each run of a campaign checks the files of earlier runs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NewFile(path) as new:
        new.stream.write(content)
        new.finish(flush=False)


def write_result(path: Path, code: bytes, metadata: bytes, *, within: Path) -> None:
    """Write an object and its JSON with `write_unflushed`; raise ResourceError if `path` cannot be written.

    It is also raised if a link in the folders above leads out of the folder `within`.
    """
    try:
        if not is_inside(path, within):
            raise OSError(errno.ELOOP, f"a link leads out of {within}", str(path.parent))
        write_unflushed(path.with_suffix(".json"), metadata)
        write_unflushed(path, code)
    except OSError as error:
        raise ResourceError(
            "results-unwritable",
            f"cannot write {path}",
            why=str(error.strerror),
            fix="free disk space and run the command again; it continues",
        ) from error


class KernelStore:
    """A folder with a file for each record, and with notes, such as the marks of finished shards.

    Any number of processes can read and write the folder at the same time.

    Args:
        root: the folder, which is created when something is first written to it.

    Raises:
        ConfigError: the folder is not a kernel store but contains files, has a format other than `FORMAT`, or cannot be
            read.
    """

    _MARKER = "kernel-store.json"

    def __init__(self, root: Path) -> None:
        self.root = root
        marker = root / self._MARKER
        try:
            if os.path.lexists(marker):
                content = strict_json.read(read_regular(marker, _LARGEST_LINE, within=root))
                if content != {"format": FORMAT}:
                    raise ConfigError(
                        "store-format", f"{root} is a kernel store of another format", fix="name another folder"
                    )
                return
            # Names that begin with a dot are allowed, because another process may be writing the marker at this moment.
            if root.exists() and any(not path.name.startswith(".") for path in root.iterdir()):
                raise ConfigError(
                    "not-a-kernel-store",
                    f"{root} is not a kernel store",
                    why="it contains other files",
                    fix="name an empty or a new folder",
                )
        except (OSError, ValueError) as error:
            why = str(error.strerror) if isinstance(error, OSError) else f"{marker} was not written by this tool"
            raise ConfigError(
                "store-unusable", f"{root} cannot be used as a kernel store", why=why, fix="name another folder"
            ) from error

    @property
    def exists(self) -> bool:
        """Whether a campaign has written to the folder."""
        return os.path.lexists(self.root / self._MARKER)

    def _path(self, name: str) -> Path:
        return self.root / "results" / name[:2] / name[2:]

    def fetch(self, names: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield each of `names` that has a record, and the record, which is None if it cannot be read.

        The caller may remove names from `names` between two results.
        """
        for name in tuple(names):
            try:
                yield name, read_regular(self._path(name), _LARGEST_RECORD, within=self.root)
            except FileNotFoundError:
                continue
            except OSError:
                yield name, None

    def add(self, name: str, record: bytes, *, replace: bool = False) -> bool:
        """Store a record and return True; return False if the name has a record and `replace` is not set.

        ResourceError is raised if the folder cannot be written.
        """
        path = self._path(name)
        if path.exists() and not replace:
            return False
        self._write(path, record)
        return True

    def note(self, name: str, content: bytes) -> None:
        """Write a note, whose name must consist of lower-case letters, digits and hyphens.

        ResourceError is raised if the folder cannot be written.
        """
        self._write(self.root / "notes" / f"{name}.json", content)

    def notes(self, prefix: str) -> Mapping[str, bytes]:
        """Return the notes whose names begin with `prefix`, by name; raise ConfigError if one cannot be read."""
        return {path.stem: self._read_note(path) for path in sorted((self.root / "notes").glob(f"{prefix}*.json"))}

    def _read_note(self, path: Path) -> bytes:
        try:
            return read_regular(path, _LARGEST_NOTE, within=self.root)
        except OSError as error:
            raise ConfigError(
                "store-unreadable",
                f"cannot read the note {path} of a campaign",
                why=str(error.strerror),
                fix="correct its permissions, or name another store",
            ) from error

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file so that it appears complete or not at all; raise ResourceError if it cannot be written."""
        try:
            marker = self.root / self._MARKER
            if path != marker and not os.path.lexists(marker):
                self._write(marker, canonical({"format": FORMAT}))
            if not is_inside(path, self.root):
                raise OSError(errno.ELOOP, "it is a link that leads out of the store", str(path.parent))
            path.parent.mkdir(parents=True, exist_ok=True)
            with NewFile(path) as new:
                new.stream.write(content)
                # The file is not read back, because another process may be writing it too, and every reader checks it.
                new.finish()
        except OSError as error:
            raise ResourceError(
                "store-unwritable",
                f"the kernel store {self.root} cannot be written",
                why=f"{error.filename or path}: {error.strerror}",
                fix="free disk space or correct its permissions, and run the command again; it continues",
            ) from error
