"""The releases of Triton, AOTriton and PyTorch in the data files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from toolchain.core import recipe
from toolchain.core.errors import PinError
from toolchain.data import FOLDER, Row, read_toml, typed_row

Certainty = Literal["verified", "inferred", "unknown"]
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")

_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(text: str) -> bool:
    """Return whether `text` is a full commit: 40 lowercase hexadecimal digits."""
    return _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class LlvmPin:
    """A pinned commit of LLVM.

    Args:
        commit: 40 lowercase hexadecimal digits.
        repository: a repository that contains the commit, as `owner/name`.
        origin: the file or release that contains the pin, for display.
        warnings: facts that the user should know before relying on the pin.
    """

    commit: str
    repository: str
    origin: str
    certainty: Certainty
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CodegenPin:
    """The LLVM that Triton uses to generate code for one kind of GPU (`catalog.codegen`).

    Args:
        target: LLVM's name for the code generator, such as `AMDGPU`.
        build: the build number of the code generator library, which changes with the library's own sources.
        repository: a repository that contains the commit; empty if unknown.
    """

    target: str
    llvm: str
    build: int
    repository: str = ""
    certainty: Certainty
    source: str

    @property
    def revision(self) -> str:
        """Return the revision that the library reports, `COMMIT-BUILD`, which is part of the keys of cached kernels."""
        return f"{self.llvm}-{self.build}"


@dataclass(frozen=True, kw_only=True)
class TritonRelease:
    """A version or commit of Triton, and its LLVM. data/triton.toml documents the fields that are not listed here.

    Args:
        version: the version, such as `3.7.1`; empty for a commit without a release.
        commit: the commit; if it is empty, it is unknown, and the release is fetched by its tag.
        llvm: the commit of LLVM; empty if unknown.
        llvm_version: the version of the LLVM in the release's wheel, such as `17.0.0git`; empty if it was not read.
        backends: whether the source tree contains the AMD and NVIDIA backends.
        warnings: decisions that the user should know about, such as the patch release that was chosen for `3.7`.
    """

    version: str = ""
    commit: str = ""
    llvm: str = ""
    llvm_version: str = ""
    backends: bool = True
    repository: str = ""
    certainty: Certainty
    source: str
    commit_certainty: Certainty = "unknown"
    commit_source: str = ""
    candidates: tuple[str, ...] = ()
    codegen: tuple[CodegenPin, ...] = ()
    note: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def ref(self) -> str:
        """Return the git ref to fetch: the commit, or the tag if the commit is unknown."""
        return self.commit or f"v{self.version}"

    @property
    def tag(self) -> str:
        """Return upstream's tag; an empty string for a vendor's version or a commit without a release."""
        return "" if not self.version or "+" in self.version else f"v{self.version}"

    @property
    def title(self) -> str:
        return f"Triton {self.version or self.commit}"

    @property
    def pin(self) -> LlvmPin:
        """Return the pinned LLVM; raise a PinError if it is unknown."""
        return _pin(self)


@dataclass(frozen=True, kw_only=True)
class AotritonRelease:
    """An AOTriton release, from a row of aotriton/releases.toml, which documents the fields.

    Args:
        date: the date of the release, such as `2024-03-18`, or only the month.
        commit: the commit of AOTriton; empty if unknown.
        triton: the commit of the Triton that AOTriton includes; empty if unknown.
        llvm: the commit of the LLVM that this Triton pins; empty if unknown.
    """

    name: str
    date: str
    commit: str = ""
    triton: str = ""
    llvm: str = ""
    repository: str = ""
    gpus: tuple[str, ...]
    certainty: Certainty
    source: str
    tag_certainty: Certainty
    tag_source: str
    note: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"AOTriton {self.name}"

    @property
    def pin(self) -> LlvmPin:
        """Return the LLVM that the release's Triton pins; raise a PinError if that LLVM is unknown."""
        return _pin(self)


@dataclass(frozen=True, kw_only=True)
class PytorchRow:
    """The AOTriton release that a PyTorch version uses, and further compatible releases (`alternatives`)."""

    version: str
    aotriton: str
    alternatives: tuple[str, ...] = ()
    certainty: Certainty
    source: str
    note: str = ""
    warnings: tuple[str, ...] = ()


def _pin(row: TritonRelease | AotritonRelease) -> LlvmPin:
    require(row, "llvm")
    notes = [f"the LLVM of {row.title} is inferred: {row.source}"] if row.certainty == "inferred" else []
    return LlvmPin(
        commit=row.llvm,
        repository=row.repository,
        origin=row.title,
        certainty=row.certainty,
        warnings=(*row.warnings, *notes),
    )


def require(row: TritonRelease | AotritonRelease, *fields: str) -> None:
    """Raise a PinError if one of the named fields of a release is empty."""
    missing = [field for field in fields if not getattr(row, field)]
    if not missing:
        return
    names = {"commit": "its own commit", "triton": "its Triton", "llvm": "its LLVM"}
    options = {"commit": "aotriton", "triton": "triton", "llvm": "llvm"}
    lacking = " and ".join(names[field] for field in missing)
    why = row.source if "llvm" in missing or not isinstance(row, AotritonRelease) else row.tag_source
    fix = "give the source to `plan` and `build`: " + " ".join(
        f"--source {options[field]}=PATH|URL@COMMIT" for field in missing
    )
    if isinstance(row, TritonRelease) and (major := row.llvm_version.partition(".")[0]):
        fix += f"; or use the nearest release in your distribution: --source llvm=distro:llvm-toolchain-{major}"
    raise PinError(
        "release-incomplete", f"{row.title}: {lacking} {'is' if len(missing) == 1 else 'are'} unknown", why=why, fix=fix
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version as a tuple, so that 3.10 sorts after 3.9."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


@lru_cache(maxsize=1)
def triton_releases() -> tuple[TritonRelease, ...]:
    """Return all rows of data/triton.toml: the releases sorted by version, then the commits without a release."""
    path = FOLDER / "triton.toml"
    content = read_toml(path, error=PinError)
    rows = _rows(TritonRelease, path, content["release"])
    named = {"commit-certainty": "verified", "commit-source": "the user gives the commit itself"}
    commits = _rows(TritonRelease, path, [named | row for row in content["commit"]])
    return (*sorted(rows, key=lambda row: numbers(row.version)), *commits)


def first_with_codegen() -> tuple[int, ...]:
    """Return the first version of Triton that uses separate LLVMs for GPUs, as a tuple of numbers."""
    return numbers(read_toml(FOLDER / "triton.toml", error=PinError)["codegen-from"])


def _rows(kind: type[Row], path: Path, rows: list[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(typed_row(kind, row, f"{kind.__name__}.{at}", path, error=PinError) for at, row in enumerate(rows))


@lru_cache(maxsize=1)
def aotriton_releases() -> tuple[AotritonRelease, ...]:
    """Return all AOTriton releases, in the order of aotriton/releases.toml."""
    path = recipe.root() / "aotriton" / "releases.toml"
    return _rows(AotritonRelease, path, read_toml(path, error=PinError)["release"])


@lru_cache(maxsize=1)
def pytorch_rows() -> tuple[PytorchRow, ...]:
    """Return all rows of data/pytorch.toml, in file order."""
    path = FOLDER / "pytorch.toml"
    return _rows(PytorchRow, path, read_toml(path, error=PinError)["release"])
