"""The record of a finished stage, with one reader and one writer of its JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from toolchain.core import strict_json
from toolchain.core.strict_json import Keys
from toolchain.core.typed import TypedError, typed

VERSION = 2
# A name of this project's own, not an address; explained in docs/trust.md.
LOCAL_BUILDER = "urn:toolchain:builder:local"
STORED_KERNELS = "stored_kernels"
"""The key in the facts of the kernels that came from kernel stores; see `stages.kernel_workers.stored_kernels`."""


class Fate(StrEnum):
    """What happened to a prebuilt file in a source: `fate` of a row of `found_binaries`."""

    ALLOWED = "let in by --allow-binary"
    DROPPED = "dropped"
    REPLACED = "replaced by a file of the base"
    OF_TESTS = "input of upstream's own tests, which are not built"


class RecordError(ValueError):
    """A text that is not a record."""


class OtherVersionError(RecordError):
    """A record of another version of the format."""


@dataclass(frozen=True)
class Patch:
    """A patch of a source: the name of the file, and the digest of its bytes (`sha256:<hex>`)."""

    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class RecordedSource:
    """A source that a stage was built from.

    Args:
        digest: `sha256:<hex>` or `git:<40 hex>@<repository>`.
        kind: the kind of its origin, as in `sources.tree.Source`.
        license: SPDX expression, empty if unknown.
        locked: whether the digest was known before the bytes were fetched.
        patches: the patches in their order.
        tag: the tag that was requested; empty if none was.
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

    def as_json(self) -> dict[str, Any]:
        """Return the form in a record."""
        value = asdict(self) | {"patches": [asdict(patch) for patch in self.patches]}
        return value if self.tag else {key: item for key, item in value.items() if key != "tag"}


@dataclass(frozen=True)
class TakenFrom:
    """The origin of a reused image by digest, and the id of the key that signed it."""

    ref: str
    key: str


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """The facts that every record has about its layer.

    Args:
        seconds: the duration of each step.
        disk_bytes: the bytes of the files on disk; None if the layer was a tar.
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
        """Read them from the facts of a record."""
        known = {each.name for each in fields(cls)}
        try:
            return typed(cls, {name: value for name, value in facts.items() if name in known and value is not None})
        except TypedError as error:
            raise RecordError(str(error)) from error

    def as_json(self) -> dict[str, Any]:
        """Return the form in facts."""
        value = {each.name: getattr(self, each.name) for each in fields(self)} | {"largest": list(self.largest)}
        if self.disk_bytes is None:
            del value["largest"], value["disk_bytes"]
        return value


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a finished stage.

    Args:
        inputs: the JSON value whose digest is `input_digest`.
        manifest: digest of the image's manifest in the cache's layout.
        layers: descriptors of the layers, as in the manifest, lowest first.
        compressor: the program that wrote the blob of the stage's own layer, `gzip/zlib-1.2.13/9`, or `none`. Not an
            input.
        facts: sizes, seconds and counts for the report. Not an input.
        request: the requested options.
        started, finished: seconds since 1970; None for a local image, which was not built here.
        tool: `version`, `builder`, and `run` if it was built by a workflow.
        isolation: what the engine's probe found when it was built; None if unknown.
        binaries: its prebuilt parts, by the names of `--allow-binary`.
        partial: what is left out, for display; empty for a complete image.
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
        """Read a record; one of another version is an OtherVersionError."""
        given = dict(value) if isinstance(value, dict) else {}
        if (version := given.pop("version", None)) != VERSION:
            raise OtherVersionError(f"it is a record of version {version}, and this tool reads {VERSION}")
        try:
            record = typed(cls, given)
        except TypedError as error:
            raise RecordError(str(error)) from error
        if not all(isinstance(layer.get("digest"), str) for layer in record.layers):
            raise RecordError("layers: one has no digest")
        return record

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the content of a record's file."""
        try:
            return cls.parse(strict_json.read(content, "the record", keys=KEYS))
        except RecordError:
            raise
        except (ValueError, RecursionError) as error:
            raise RecordError(str(error)) from error

    def as_json(self) -> dict[str, Any]:
        """Return the form of its file, without unknown values."""
        present = {each.name: getattr(self, each.name) for each in fields(self)}
        value = {"version": VERSION} | {name: item for name, item in present.items() if item is not None}
        value |= {"sources": [source.as_json() for source in self.sources]}
        value |= {"binaries": list(self.binaries), "layers": [dict(layer) for layer in self.layers]}
        return value | ({"taken_from": asdict(self.taken_from)} if self.taken_from is not None else {})

    def as_bytes(self) -> bytes:
        """Return the content of its file."""
        return json.dumps(self.as_json(), indent=1).encode()

    @property
    def contract(self) -> bool:
        """Whether the contract check was run."""
        return bool(self.request.get("contract", True))

    @property
    def diff_id(self) -> str:
        """The digest of its own uncompressed layer; empty if unknown."""
        return str(self.facts.get("diff_id", ""))

    @property
    def layer_digests(self) -> tuple[str, ...]:
        """The digests of the layers, lowest first."""
        return tuple(str(layer["digest"]) for layer in self.layers)

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the objects of a list in the facts, such as `wheels`; nothing if there is no such list."""
        value = self.facts.get(name)
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


KEYS: Keys = {
    **dict.fromkeys(each.name for each in fields(Record)),
    "sources": {
        **dict.fromkeys(each.name for each in fields(RecordedSource)),
        "patches": dict.fromkeys(("name", "digest")),
    },
    "taken_from": dict.fromkeys(("ref", "key")),
}
