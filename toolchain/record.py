"""The record of a finished stage: one type, with one reader and one writer of its JSON form.

A record of another version is refused: nothing was released, so nothing reads the formats of before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from toolchain import strict_json
from toolchain.strict_json import Keys

VERSION = 2
# A name of this project's own, not an address: what it means stands in docs/trust.md.
LOCAL_BUILDER = "urn:toolchain:builder:local"
_Kind = TypeVar("_Kind")
_NEEDED: Any = object()


class RecordError(ValueError):
    """A text that is no record."""


class OtherVersionError(RecordError):
    """A record of another version of the format."""


@dataclass(frozen=True)
class Patch:
    """A patch on a source: name of the file, digest of its bytes (`sha256:<hex>`)."""

    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class RecordedSource:
    """A source that a stage was built from.

    Args:
        digest: `sha256:<hex>` or `git:<40 hex>@<repository>`.
        kind: what brought it, as `sources.tree.Source` has it.
        license: SPDX expression, empty where none is known.
        locked: whether the digest was promised before the bytes came.
        patches: in order.
        tag: that it was asked for by, if it was.
    """

    name: str
    ref: str
    repository: str
    digest: str | None = None
    tag: str = ""
    kind: str
    license: str = ""
    locked: bool
    patches: tuple[Patch, ...] = ()

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read a row of a record.

        Raises:
            RecordError: it is none.
        """
        row = _object(value, "a source")
        return cls(
            name=_take(row, "name", str),
            ref=_take(row, "ref", str),
            repository=_take(row, "repository", str),
            digest=_take(row, "digest", str, None),
            tag=_take(row, "tag", str, ""),
            kind=_take(row, "kind", str),
            license=_take(row, "license", str),
            locked=_take(row, "locked", bool),
            patches=tuple(_patch(patch) for patch in _take(row, "patches", list)),
        )

    def as_json(self) -> dict[str, Any]:
        """As the record holds it."""
        value: dict[str, Any] = {
            "name": self.name,
            "ref": self.ref,
            "repository": self.repository,
            "digest": self.digest,
        }
        value |= {"tag": self.tag} if self.tag else {}
        value |= {"kind": self.kind, "license": self.license, "locked": self.locked}
        value["patches"] = [{"name": patch.name, "digest": patch.digest} for patch in self.patches]
        return value


@dataclass(frozen=True)
class TakenFrom:
    """Where a finished image was taken from, by digest, and the id of the key that vouched for it."""

    ref: str
    key: str


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """What every build says of its layer, among the facts of its record.

    Args:
        seconds: by step.
        disk_bytes: of the files; None where the layer came as a tar.
        largest: `{"path", "bytes"}`.
    """

    unpacked_bytes: int
    blob_bytes: int
    diff_id: str
    seconds: Mapping[str, float]
    total_seconds: float
    largest: tuple[Mapping[str, Any], ...] = ()
    disk_bytes: int | None = None

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> Self:
        """Read them from the facts of a record.

        Raises:
            RecordError: they lack something.
        """
        seconds = _take(facts, "seconds", dict)
        largest = [_object(one, "largest") for one in _take(facts, "largest", list, [])]
        return cls(
            unpacked_bytes=_take(facts, "unpacked_bytes", int),
            blob_bytes=_take(facts, "blob_bytes", int),
            diff_id=_take(facts, "diff_id", str),
            seconds={step: _take(seconds, step, float) for step in seconds},
            total_seconds=_take(facts, "total_seconds", float),
            largest=tuple({"path": _take(one, "path", str), "bytes": _take(one, "bytes", int)} for one in largest),
            disk_bytes=_take(facts, "disk_bytes", int, None),
        )

    def as_json(self) -> dict[str, Any]:
        """As facts hold them."""
        value = {one.name: getattr(self, one.name) for one in fields(self)} | {"largest": list(self.largest)}
        if self.disk_bytes is None:
            del value["largest"], value["disk_bytes"]
        return value


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is kept of a finished stage.

    Args:
        inputs: what `input_digest` is the digest of, JSON-able.
        manifest: digest of the image's manifest in the cache's layout.
        layers: descriptors of the layers, as in the manifest, lowest first.
        compressor: what wrote the blob of the stage's own layer: `gzip/zlib-1.2.13/9`, or `none`. Not an input.
        facts: sizes, seconds, counts: what the report shows. Not an input.
        request: what was asked for.
        started, finished: seconds since 1970; None of a local image, which nobody built here.
        tool: `version`, `builder`, and `run` where it was built by a workflow.
        isolation: what the engine's probe found when it was built; None where it left nothing.
        binaries: prebuilt things in it, by the names of `--allow-binary`.
        partial: what is left out, for people; empty for a whole.
    """

    stage: str
    image: str
    input_digest: str
    manifest: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[RecordedSource, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)
    started: float | None = None
    finished: float | None = None
    tool: Mapping[str, str] = field(default_factory=dict)
    isolation: Mapping[str, Any] | None = None
    binaries: tuple[str, ...] = ()
    partial: str = ""
    arch: str = ""
    layers: tuple[Mapping[str, Any], ...] = ()
    compressor: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    taken_from: TakenFrom | None = None

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read a record.

        Raises:
            RecordError: it is none, or of another version.
        """
        given = _object(value, "a record")
        if (version := _take(given, "version", int, 0)) != VERSION:
            raise OtherVersionError(f"it is a record of version {version}, and this tool reads {VERSION}")
        if unknown := sorted(given.keys() - {"version", *(one.name for one in fields(cls))}):
            raise RecordError(f"{unknown[0][:80]}: records have no such key")
        taken = _take(given, "taken_from", dict, None)
        return cls(
            stage=_take(given, "stage", str),
            image=_take(given, "image", str),
            input_digest=_take(given, "input_digest", str),
            manifest=_take(given, "manifest", str),
            inputs=_take(given, "inputs", dict),
            sources=tuple(RecordedSource.parse(row) for row in _take(given, "sources", list)),
            request=_take(given, "request", dict),
            started=_take(given, "started", float, None),
            finished=_take(given, "finished", float, None),
            tool=_texts(_take(given, "tool", dict), "tool"),
            isolation=_take(given, "isolation", dict, None),
            binaries=tuple(_text(name, "binaries") for name in _take(given, "binaries", list)),
            partial=_take(given, "partial", str),
            arch=_take(given, "arch", str),
            layers=tuple(_layer(one) for one in _take(given, "layers", list)),
            compressor=_take(given, "compressor", str),
            facts=_take(given, "facts", dict),
            taken_from=None if taken is None else TakenFrom(_take(taken, "ref", str), _take(taken, "key", str)),
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a record's file.

        Raises:
            RecordError: it is none.
        """
        try:
            return cls.parse(strict_json.read(content, "the record", keys=KEYS))
        except RecordError:
            raise
        except (ValueError, RecursionError) as error:
            raise RecordError(str(error)) from error

    def as_json(self) -> dict[str, Any]:
        """As its file holds it; what is not known is left out."""
        value: dict[str, Any] = {"version": VERSION}
        value |= {"stage": self.stage, "image": self.image, "input_digest": self.input_digest}
        value |= {"inputs": dict(self.inputs), "sources": [one.as_json() for one in self.sources]}
        value |= {"request": dict(self.request)}
        value |= {"started": self.started} if self.started is not None else {}
        value |= {"finished": self.finished} if self.finished is not None else {}
        value |= {"tool": dict(self.tool)}
        value |= {"isolation": dict(self.isolation)} if self.isolation is not None else {}
        value |= {"binaries": list(self.binaries), "partial": self.partial, "arch": self.arch}
        value |= {"manifest": self.manifest, "layers": [dict(one) for one in self.layers]}
        value |= {"compressor": self.compressor, "facts": dict(self.facts)}
        if self.taken_from is not None:
            value["taken_from"] = {"ref": self.taken_from.ref, "key": self.taken_from.key}
        return value

    def as_bytes(self) -> bytes:
        """Its file."""
        return json.dumps(self.as_json(), indent=1).encode()

    @property
    def contract(self) -> bool:
        """Whether the contract check was not left out."""
        return bool(self.request.get("contract", True))

    @property
    def diff_id(self) -> str:
        """Of its own layer, however that is packed; empty where the record does not say."""
        return str(self.facts.get("diff_id", ""))

    @property
    def layer_digests(self) -> tuple[str, ...]:
        """Lowest first."""
        return tuple(str(layer["digest"]) for layer in self.layers)

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The objects of a list among the facts, such as `wheels`; none where there is no such list."""
        found = self.facts.get(name)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


KEYS: Keys = {
    **dict.fromkeys(one.name for one in fields(Record)),
    "sources": {
        **dict.fromkeys(one.name for one in fields(RecordedSource)),
        "patches": dict.fromkeys(("name", "digest")),
    },
    "taken_from": dict.fromkeys(("ref", "key")),
}


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{what} is no object")
    return value


def _take(value: Mapping[str, Any], key: str, kind: type[_Kind], default: Any = _NEEDED) -> Any:
    """A value of a kind; the default where there is none, or null."""
    found = value.get(key)
    if found is None:
        if default is _NEEDED:
            raise RecordError(f"{key}: is missing")
        return default
    number = kind is float and type(found) is int
    # A truth value is a number to Python.
    if not number and (not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool)):
        raise RecordError(f"{key}: is no {kind.__name__}")
    return found


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{what}: is no str")
    return value


def _texts(value: Mapping[str, Any], what: str) -> dict[str, str]:
    return {key: _text(one, what) for key, one in value.items()}


def _patch(value: Any) -> Patch:
    row = _object(value, "a patch")
    return Patch(_take(row, "name", str), _take(row, "digest", str))


def _layer(value: Any) -> dict[str, Any]:
    layer = _object(value, "a layer")
    _take(layer, "digest", str)
    return layer
