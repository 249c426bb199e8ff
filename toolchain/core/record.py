"""The record of a finished stage, and the conversion to and from its JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from toolchain.core import strict_json
from toolchain.core.strict_json import Keys
from toolchain.core.typed import TypedError, typed

VERSION = 2
# This URN is a name, not an address; docs/trust.md explains its meaning.
LOCAL_BUILDER = "urn:toolchain:builder:local"
OTHER_BUILDER = "urn:toolchain:builder:other"
"""The builder of an image that was not built here: an own base, or one from a bundle or a publisher's local builder."""
STORED_KERNELS = "stored_kernels"
"""The key in a record's facts for kernels from kernel stores (see `stages.kernel_workers.stored_kernels`)."""


class Fate(StrEnum):
    """The treatment of a prebuilt file in a source, as the key `fate` of `found_binaries` records it."""

    ALLOWED = "let in by --allow-binary"
    DROPPED = "dropped"
    REPLACED = "replaced by a file of the base"
    OF_TESTS = "input of upstream's own tests, which are not built"


class RecordError(ValueError):
    """A file or JSON value is not a valid record."""


class OtherVersionError(RecordError):
    """A record uses a version of the format that this tool does not read."""


@dataclass(frozen=True)
class Patch:
    """A patch that was applied to a source: the name of its file, and the digest of its bytes (`sha256:<hex>`)."""

    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class RecordedSource:
    """A source that a stage was built from.

    Args:
        digest: `sha256:<hex>` or `git:<40 hex>@<repository>`; None if unknown.
        kind: the kind of its origin, as in `sources.tree.Source`.
        license: the declared licence; empty if unknown.
        locked: whether the digest was known before the source was fetched.
        patches: the patches in the order in which they were applied.
        tag: the requested tag; empty if none was requested.
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
        """Return the JSON form that records contain; an empty `tag` is omitted."""
        value = asdict(self) | {"patches": [asdict(patch) for patch in self.patches]}
        return value if self.tag else {key: item for key, item in value.items() if key != "tag"}


@dataclass(frozen=True)
class TakenFrom:
    """The origin of a reused image: its reference by digest, and the id of the key that signed it."""

    ref: str
    key: str


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """The facts about a stage's own layer that the stage's record contains.

    Args:
        seconds: the duration of each step of the build.
        disk_bytes: the total size of the files; None if the stage produced a tar archive instead of a folder.
        largest: the largest files, each as `{"path", "bytes"}`.
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
        """Parse the facts of a record; raise a RecordError if a required fact is missing or a fact is invalid."""
        known = {each.name for each in fields(cls)}
        try:
            return typed(cls, {name: value for name, value in facts.items() if name in known and value is not None})
        except TypedError as error:
            raise RecordError(str(error)) from error

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form that a record contains; it lacks `largest` and `disk_bytes` if `disk_bytes` is None."""
        value = {each.name: getattr(self, each.name) for each in fields(self)} | {"largest": list(self.largest)}
        if self.disk_bytes is None:
            del value["largest"], value["disk_bytes"]
        return value


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a finished stage.

    Args:
        inputs: the JSON value whose digest is `input_digest`.
        manifest: the digest of the image's manifest in the layout of the cache.
        layers: the descriptors of the layers as in the manifest, lowest first.
        compressor: the compressor of the stage's own layer, such as `gzip/zlib-1.2.13/9`, or `none`; empty if unknown.
        facts: facts about the build and its result, such as durations, sizes and the diff id of the stage's layer.
        started, finished: the Unix times when the build began and ended; for an image that the tool
            did not build, the time when this record was made; None if unknown.
        tool: the keys `version` and `builder`, and `run` if a GitHub workflow built the stage.
        isolation: the result of the engine's isolation probe during the build; None if unknown.
        binaries: the names of the prebuilt parts, as in `--allow-binary`.
        partial: what an incomplete image contains or lacks, for display; empty for a complete image.
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
        """Convert a JSON value to a record; raise a RecordError if it is invalid or its version is not `VERSION`."""
        given = dict(value) if isinstance(value, dict) else {}
        if (version := given.pop("version", None)) != VERSION:
            raise OtherVersionError(f"it is a record of version {version}, but this tool reads version {VERSION}")
        try:
            record = typed(cls, given)
        except TypedError as error:
            raise RecordError(str(error)) from error
        if not all(isinstance(layer.get("digest"), str) for layer in record.layers):
            raise RecordError("layers: a layer has no digest")
        return record

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Parse the content of a record's file; raise a RecordError if it is not valid."""
        try:
            return cls.parse(strict_json.read(content, "the record", keys=KEYS))
        except RecordError:
            raise
        except (ValueError, RecursionError) as error:
            raise RecordError(str(error)) from error

    def without_claims(self) -> Self:
        """Return the record without the builder, the isolation, the times and the request.

        Provenance repeats them, and only the machine that built the image can know them, so they are not taken from a
        bundle.
        """
        return replace(
            self, request={"stage": self.stage}, tool={}, isolation=None, started=None, finished=None, compressor=""
        )

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value for the record's file; fields of the record that are None are omitted."""
        present = {each.name: getattr(self, each.name) for each in fields(self)}
        value = {"version": VERSION} | {name: item for name, item in present.items() if item is not None}
        value |= {"sources": [source.as_json() for source in self.sources]}
        value |= {"binaries": list(self.binaries), "layers": [dict(layer) for layer in self.layers]}
        return value | ({"taken_from": asdict(self.taken_from)} if self.taken_from is not None else {})

    def as_bytes(self) -> bytes:
        return json.dumps(_readable(self.as_json()), indent=1).encode()

    @property
    def contract(self) -> bool:
        return bool(self.request.get("contract", True))

    @property
    def diff_id(self) -> str:
        """Return the digest of the stage's own uncompressed layer; an empty string if unknown."""
        return str(self.facts.get("diff_id", ""))

    @property
    def layer_digests(self) -> tuple[str, ...]:
        """Return the digests of the layers, lowest first."""
        return tuple(str(layer["digest"]) for layer in self.layers)

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the objects in the list `name` of the facts, such as `wheels`; an empty list if it is missing."""
        value = self.facts.get(name)
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _readable(value: Any) -> Any:
    r"""Return a JSON value in which each byte that is not UTF-8, as in the name of a patch, is written as `\udcNN`.

    Python represents such a byte by half a surrogate pair, with which the record could not be read again.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list | tuple) else value


KEYS: Keys = {
    **dict.fromkeys(each.name for each in fields(Record)),
    "sources": {
        **dict.fromkeys(each.name for each in fields(RecordedSource)),
        "patches": dict.fromkeys(("name", "digest")),
    },
    "taken_from": dict.fromkeys(("ref", "key")),
}
