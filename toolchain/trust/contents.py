"""Find out with which Triton and LLVM, and for which GPUs and Python versions, an image was built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.catalog.release_data import is_commit, triton_releases
from toolchain.catalog.releases import triton_release
from toolchain.core.errors import PinError, UnsupportedError
from toolchain.core.record import Record, RecordedSource
from toolchain.oci import labels
from toolchain.sources.commit_archives import commit_of
from toolchain.trust.image_facts import origin

TRITON, LLVM = "triton", "llvm"


@dataclass(frozen=True, kw_only=True)
class Component:
    """The version of Triton or LLVM in an image. An unknown field is empty.

    Args:
        tree: the first 12 hex digits of the digest of a local checkout's tree. The commit of a checkout is not
            recorded.
    """

    version: str = ""
    commit: str = ""
    tree: str = ""

    def __str__(self) -> str:
        named = [self.version, self.commit[:12] if self.version else self.commit]
        return " ".join(part for part in named if part) or (f"checkout {self.tree}" if self.tree else "")

    @property
    def label(self) -> str:
        """The value of the image's label: the version and the full commit, or the tree of a checkout."""
        return " ".join(part for part in (self.version, self.commit) if part) or str(self)

    def as_json(self) -> dict[str, Any]:
        return {"version": self.version or None, "commit": self.commit or None, "tree": self.tree or None}


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of an image. A field is None or empty if it is unknown, or if it does not apply to the image."""

    triton: Component | None = None
    llvm: Component | None = None
    gpus: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "triton": self.triton.as_json() if self.triton is not None else None,
            "llvm": self.llvm.as_json() if self.llvm is not None else None,
            "gpus": list(self.gpus),
            "pythons": list(self.pythons),
        }

    def labels(self) -> dict[str, str]:
        """Return the labels that name the Triton and the LLVM of the image; an unknown component has no label."""
        components = ((labels.TRITON, self.triton), (labels.LLVM, self.llvm))
        return {name: component.label for name, component in components if component is not None}

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the title and the value of each known field, as strings to display."""
        for name, component in (("Triton", self.triton), ("LLVM", self.llvm)):
            if component is not None:
                yield name, str(component)
        for name, several in (("GPUs", self.gpus), ("Python", self.pythons)):
            if several:
                yield name, ", ".join(several)


def of_records(record: Record, below: Sequence[Record] = ()) -> Contents:
    """Return the contents of a finished image.

    Args:
        below: the records of the stages on which the image was built, lowest first.
    """
    rows = [row for each in (record, *reversed(below)) for row in each.sources]
    return of_sources(rows, record.inputs)


def of_sources(rows: Iterable[RecordedSource], inputs: Mapping[str, Any]) -> Contents:
    """Return the contents of an image that is built from the given sources.

    Args:
        rows: the sources of the image's stage, followed by those of the stages below. If several sources have the same
            name, the first one is used.
        inputs: the inputs of the image's stage, as a record contains them.
    """
    by_name: dict[str, Component] = {}
    for row in rows:
        by_name.setdefault(row.name, _component(row))
    return _contents(by_name, inputs)


def of_provenance(statement: Mapping[str, Any]) -> Contents:
    """Return the contents of an image according to its provenance."""
    definition = statement["predicate"]["buildDefinition"]
    by_name: dict[str, Component] = {}
    for row in definition["resolvedDependencies"]:
        about = row["annotations"]
        if about["role"] == "source":
            digest = row["digest"]
            archive = f"sha256:{digest.get('sha256', '')}"
            source = RecordedSource(
                name=str(row["name"]),
                ref=str(about["ref"]),
                repository=str(about["repository"]),
                digest=f"sha256:{digest['toolchainTree']}" if "toolchainTree" in digest else archive,
                kind=_kind(str(about["ref"]), digest),
                locked=True,
            )
            by_name.setdefault(source.name, _component(source))
    return _contents(by_name, definition["internalParameters"]["inputs"])


def _kind(ref: str, digest: Mapping[str, str]) -> str:
    if "gitCommit" in digest:
        return "git"
    prefix = ref.partition(":")[0]
    return prefix if prefix in {"distro", "pypi", "local"} else "archive"


def _contents(by_name: Mapping[str, Component], inputs: Mapping[str, Any]) -> Contents:
    triton, llvm = by_name.get(TRITON), by_name.get(LLVM)
    if llvm is None:  # use an LLVM that only generates code for GPUs, such as `llvm-amdgpu`
        llvm = next((component for name, component in by_name.items() if name.startswith(f"{LLVM}-")), None)
    if llvm is None and triton is not None and triton.version:  # a Triton release determines its LLVM
        with contextlib.suppress(PinError, UnsupportedError):
            llvm = Component(commit=triton_release(triton.version).llvm)
    return Contents(triton=triton, llvm=llvm, gpus=_texts(inputs.get("gpus")), pythons=_texts(inputs.get("pythons")))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _component(row: RecordedSource) -> Component:
    if row.kind == "local":
        return Component(tree=(row.digest or "").removeprefix("sha256:")[:12])
    known = origin(row)
    commit = known.commit or (commit_of(row.digest) if row.kind == "archive" and row.digest else "")
    if commit:
        version = next((release.version for release in triton_releases() if release.commit == commit), "")
        return Component(version=version if row.name == TRITON else "", commit=commit)
    if row.name == TRITON and row.kind == "pypi":
        commit = next((release.commit for release in triton_releases() if release.version == known.version), "")
        return Component(version=known.version, commit=commit if is_commit(commit) else "")
    return Component(version=known.version)
