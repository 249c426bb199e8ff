"""The data behind `catalog.releases`: rows of Triton, AOTriton and PyTorch releases."""

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
    """Return whether `text` is a full commit: 40 hexadecimal digits, lower case."""
    return _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class LlvmPin:
    """An LLVM commit.

    Args:
        commit: 40 hexadecimal digits, lower case.
        repository: `owner/name` of a repository that holds it.
        origin: the file or release that the pin comes from, for display.
        warnings: what the user should know before relying on it.
    """

    commit: str
    repository: str
    origin: str
    certainty: Certainty
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CodegenPin:
    """The LLVM with which a part of Triton generates a GPU's code (`catalog.codegen`).

    Args:
        target: LLVM's name of its code generator: `AMDGPU`.
        llvm: the commit of its LLVM.
        build: number of the library's build, which changes with the library's own sources.
        repository: a repository that holds the commit; empty if that is only known after a fetch.
        certainty: how certain commit and build are; `source` says where they come from.
    """

    target: str
    llvm: str
    build: int
    repository: str = ""
    certainty: Certainty
    source: str

    @property
    def revision(self) -> str:
        """The revision that the library returns, part of the key of every kernel: `COMMIT-BUILD`."""
        return f"{self.llvm}-{self.build}"


@dataclass(frozen=True, kw_only=True)
class TritonRelease:
    """A Triton and its LLVM: a row of data/triton.toml, which describes the fields.

    Args:
        version: `3.7.1`; empty for a commit without a release.
        commit, llvm: empty if unknown; a release without its commit is found at its tag.
        llvm_version: `17.0.0git`, from the wheel of the index; only in rows whose LLVM is unknown.
        backends: whether its tree has the AMD and the NVIDIA backend.
        warnings: decisions for the user, such as the patch release that `3.7` became.
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
        """The git ref: the commit, otherwise the tag."""
        return self.commit or f"v{self.version}"

    @property
    def tag(self) -> str:
        """Upstream's tag; empty for a commit without a release, and for a vendor's version."""
        return "" if not self.version or "+" in self.version else f"v{self.version}"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"Triton {self.version or self.commit}"

    @property
    def pin(self) -> LlvmPin:
        """Its LLVM."""
        return _pin(self)


@dataclass(frozen=True, kw_only=True)
class AotritonRelease:
    """An AOTriton release: a row of aotriton/releases.toml, which describes the fields.

    Args:
        date: `2024-03-18`, or a month if the day is not known.
        commit, triton, llvm: empty if unknown; the LLVM is that of this Triton.
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
        """Its name in messages."""
        return f"AOTriton {self.name}"

    @property
    def pin(self) -> LlvmPin:
        """The LLVM of its Triton."""
        return _pin(self)


@dataclass(frozen=True, kw_only=True)
class PytorchRow:
    """The AOTriton of a PyTorch minor release; `alternatives` are also known to fit."""

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
    """Refuse a row in which one of `fields` is unknown."""
    missing = [field for field in fields if not getattr(row, field)]
    if not missing:
        return
    names = {"commit": "its own commit", "triton": "its Triton", "llvm": "its LLVM"}
    options = {"commit": "aotriton", "triton": "triton", "llvm": "llvm"}
    lacking = " and ".join(names[field] for field in missing)
    why = row.source if "llvm" in missing or not isinstance(row, AotritonRelease) else row.tag_source
    fix = "give it yourself: " + " ".join(f"--source {options[field]}=PATH|URL@SHA" for field in missing)
    if isinstance(row, TritonRelease) and (major := row.llvm_version.partition(".")[0]):
        fix += f"; if your distribution has the release nearest to it: --source llvm=distro:llvm-toolchain-{major}"
    raise PinError(
        "release-incomplete",
        f"{row.title}: {lacking} {'is' if len(missing) == 1 else 'are'} unknown",
        why=why,
        fix=fix,
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for sorting."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


@lru_cache(maxsize=1)
def triton_releases() -> tuple[TritonRelease, ...]:
    """Return all rows in the order of versions, then the commits without a version."""
    path = FOLDER / "triton.toml"
    content = read_toml(path, error=PinError)
    rows = _rows(TritonRelease, path, content["release"])
    named = {"commit-certainty": "verified", "commit-source": "asked for by its own name"}
    commits = _rows(TritonRelease, path, [named | row for row in content["commit"]])
    return (*sorted(rows, key=lambda row: numbers(row.version)), *commits)


def first_with_codegen() -> tuple[int, ...]:
    """Return the first version of Triton that has separate LLVMs for GPUs."""
    return numbers(read_toml(FOLDER / "triton.toml", error=PinError)["codegen-from"])


def _rows(kind: type[Row], path: Path, rows: list[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(typed_row(kind, row, f"{kind.__name__}.{at}", path, error=PinError) for at, row in enumerate(rows))


@lru_cache(maxsize=1)
def aotriton_releases() -> tuple[AotritonRelease, ...]:
    """Return all rows, oldest first."""
    path = recipe.root() / "aotriton" / "releases.toml"
    return _rows(AotritonRelease, path, read_toml(path, error=PinError)["release"])


@lru_cache(maxsize=1)
def pytorch_rows() -> tuple[PytorchRow, ...]:
    """Return all rows, oldest first."""
    path = FOLDER / "pytorch.toml"
    return _rows(PytorchRow, path, read_toml(path, error=PinError)["release"])
