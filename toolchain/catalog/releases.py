"""Releases: the LLVM commit that a Triton, an AOTriton or a PyTorch requires, and how certain that is.

Facts are rows of data (see `toolchain.catalog.release_data`); a checkout says for itself what it pins, see
`toolchain.catalog.pin_files`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolchain.catalog.release_data import (
    AotritonRelease,
    Certainty,
    CodegenPin,
    LlvmPin,
    PytorchRow,
    TritonRelease,
    aotriton_data,
    is_commit,
    numbers,
    pytorch_data,
    require,
    triton_data,
)
from toolchain.errors import PinError, UnsupportedError

__all__ = [
    "AotritonRelease",
    "Certainty",
    "CodegenPin",
    "LlvmPin",
    "PytorchRow",
    "TritonRelease",
    "aotriton_for_pytorch",
    "aotriton_release",
    "aotriton_releases",
    "check_release_gpus",
    "is_commit",
    "is_version",
    "near_version",
    "newest_on_one_llvm",
    "newest_patch",
    "pytorch_rows",
    "repository_of",
    "triton_release",
    "triton_releases",
]

_FORM = "MAJOR.MINOR[.PATCH] in the digits 0 to 9, without zeros in front"
_NUMBER = "(0|[1-9][0-9]{0,3})"
_VERSION = re.compile(rf"v?{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?(\+[A-Za-z0-9.]+)?")
# The same with zeros in front of a number, or in the digits of another script.
_NEARLY = re.compile(r"[vV]?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


def triton_releases() -> tuple[TritonRelease, ...]:
    """All rows, in the order of versions, then the commits without a version."""
    return triton_data()[0]


def triton_release(version: str, *, allow_unknown: bool = False) -> TritonRelease:
    """The row of a version (`3.2`, `v3.2.0`) or of a full Triton commit.

    A version without its patch number is the newest patch release; where the patches differ, `warnings` says so.

    Args:
        allow_unknown: also answer a row whose LLVM is unknown, for a user who names the LLVM.

    Raises:
        UnsupportedError: no such row, among them a Triton whose LLVMs for GPUs are unknown.
        PinError: its LLVM is not known, or `version` is not a version.
    """
    wanted = version.strip()
    if is_commit(wanted.lower()):
        row = _triton_by_commit(wanted.lower())
    else:
        line, patch, local = _parsed(wanted)
        _refuse_unknown_codegen(line, patch)
        row = _triton_by_version(triton_releases(), line, patch, local)
    if not allow_unknown:
        require(row, "llvm")
    return row


def newest_patch(version: str) -> TritonRelease:
    """The row of a version; of one without its patch number (`3.3`), the newest patch release of that line.

    Unlike `triton_release` it looks for the release itself and not for the surest pin; its LLVM may be unknown.

    Raises:
        UnsupportedError, PinError: see `triton_release`.
    """
    line, patch, local = _parsed(version.strip())
    row = triton_release(version, allow_unknown=True)
    if patch is not None or local:
        return row
    return [release for release in _plain(triton_releases()) if release.version.startswith(f"{line}.")][-1]


def newest_on_one_llvm() -> str:
    """The version of the newest release that has no LLVM for a GPU besides its own."""
    return [row.version for row in _plain(triton_releases()) if not row.codegen][-1]


def is_version(text: str) -> bool:
    """Whether `text` reads as a version: MAJOR.MINOR[.PATCH], with a `v` before it or not."""
    return _VERSION.fullmatch(text.strip()) is not None


def near_version(text: str) -> str:
    """The suggestion for an unknown version of Triton: the release that it resembles, else its neighbours."""
    match = _NEARLY.fullmatch(text.strip())
    if match is None or is_version(text):
        return ""
    plain = ".".join(str(int(part)) for part in match.groups() if part is not None)
    rows = triton_releases()
    if any(row.version == plain or row.version.startswith(f"{plain}.") for row in _plain(rows)):
        return f"did you mean {plain}? "
    return f"{_neighbours(plain, rows)}; "


def _parsed(version: str) -> tuple[str, str | None, str]:
    """Of a version its line (`3.7`), its patch number if it has one, and a vendor's suffix."""
    match = _VERSION.fullmatch(version)
    if not match:
        fix = f"{near_version(version)}give a version such as 3.7.1 or a commit of 40 digits"
        raise PinError(f"{version!r} is not a Triton version", why=f"it reads {_FORM}", fix=fix)
    major, minor, patch, local = match.groups()
    return f"{int(major)}.{int(minor)}", patch, local or ""


def _refuse_unknown_codegen(line: str, patch: str | None) -> None:
    """Refuse a version newer than all on record: how many LLVMs it needs is unknown."""
    rows, codegen_from = triton_data()
    version = line if patch is None else f"{line}.{int(patch)}"
    known = any(row.version == version or row.version.startswith(f"{version}.") for row in _plain(rows))
    if known or numbers(line) < codegen_from:
        return
    raise UnsupportedError(
        f"Triton {version} is not on record, and since 3.9 Triton needs a second LLVM",
        why=f"{_neighbours(version, rows)}. Since 3.9 its code for AMD's GPUs is made by an LLVM pinned apart from the "
        "one it links, and there may be more of them",
        fix=f"use {_plain(rows)[-1].version} or older; or give the checkout, whose own pins are used: --triton FOLDER",
    )


def aotriton_releases() -> tuple[AotritonRelease, ...]:
    """All rows, oldest first."""
    return aotriton_data()


def aotriton_release(name: str, *, allow_unknown: bool = False) -> AotritonRelease:
    """The row of a release; the leading `v` and the trailing `b` may be missing.

    Args:
        allow_unknown: also answer a row with unknown commits, for a user who gives those sources.

    Raises:
        UnsupportedError: no such release.
        PinError: its commit, its Triton or its LLVM is not known.
    """
    wanted = name.strip().lower().removeprefix("v")
    by_name = {row.name: row for row in aotriton_data()}
    row = by_name.get(wanted) or by_name.get(f"{wanted}b")
    if row is None:
        raise _no_such("AOTriton release", name, by_name)
    if not allow_unknown:
        require(row, "commit", "triton", "llvm")
    return row


def check_release_gpus(name: str, gpus: Sequence[str]) -> None:
    """Refuse GPUs that a release of AOTriton does not build for.

    Raises:
        UnsupportedError: with those, and the releases that build for all of `gpus`.
    """
    row = aotriton_release(name, allow_unknown=True)
    if missing := [gpu for gpu in gpus if gpu not in row.gpus]:
        releases = [release.name for release in aotriton_data() if set(gpus) <= set(release.gpus)]
        raise UnsupportedError(
            f"AOTriton {row.name} has no kernels for {', '.join(missing)}",
            why=f"it builds for {', '.join(row.gpus)}",
            fix=f"leave it out of --gpu, or take {' or '.join(releases[-2:])}" if releases else "leave it out of --gpu",
        )


def pytorch_rows() -> tuple[PytorchRow, ...]:
    """All rows, oldest first."""
    return pytorch_data()


def aotriton_for_pytorch(version: str) -> PytorchRow:
    """The row of a PyTorch version, or of `main`; patch number and `+rocm6.4` make no difference.

    Raises:
        UnsupportedError: no such row.
        PinError: `version` is not a version.
    """
    match = _VERSION.fullmatch(version.strip())
    if not match and version.strip() != "main":
        fix = "give a version such as 2.9, or main"
        raise PinError(f"{version!r} is not a PyTorch version", why=f"it reads {_FORM}", fix=fix)
    wanted = f"{int(match[1])}.{int(match[2])}" if match else "main"
    by_name = {row.version: row for row in pytorch_data()}
    row = by_name.get(wanted)
    if row is None:
        raise _no_such("PyTorch", version, by_name, also="or name the AOTriton: --aotriton RELEASE")
    notes = [f"PyTorch {wanted}: AOTriton {row.aotriton} is inferred: {row.source}"] * (row.certainty == "inferred")
    return replace(row, warnings=(*notes, *([f"PyTorch {wanted}: {row.note}"] if row.note else [])))


def repository_of(commit: str) -> str | None:
    """The repository that the data names for an LLVM commit, or None."""
    rows: list[TritonRelease | AotritonRelease] = [*triton_releases(), *aotriton_releases()]
    codegen = [pin for row in triton_releases() for pin in row.codegen]
    return next((row.repository for row in (*rows, *codegen) if row.llvm == commit and row.repository), None)


# --- rows ---


def _plain(rows: Iterable[TritonRelease]) -> list[TritonRelease]:
    """The rows that are plain releases: a version, and no vendor's suffix."""
    return [row for row in rows if row.version and "+" not in row.version]


def _triton_by_commit(commit: str) -> TritonRelease:
    for row in triton_releases():
        if row.commit == commit:
            return row
    for release in aotriton_releases():
        if release.triton == commit:
            return TritonRelease(
                version="",
                commit=commit,
                llvm=release.llvm,
                repository=release.repository,
                certainty=release.certainty,
                source=f"the Triton of {release.title}: {release.source}",
                commit_certainty=release.tag_certainty,
                commit_source=release.tag_source,
            )
    raise UnsupportedError(
        f"the LLVM of Triton {commit} is not on record",
        why="only releases, AOTriton's submodules and a few commits are",
        fix="give the checkout: --source triton=PATH; its own pin file is used",
    )


def _triton_by_version(rows: tuple[TritonRelease, ...], line: str, patch: str | None, local: str) -> TritonRelease:
    by_version = {row.version: row for row in rows if row.version}
    if patch is not None or local:
        row = by_version.get(f"{line}.{int(patch or 0)}{local}")
        if row is None:
            raise _no_such_triton(f"{line}.{int(patch or 0)}{local}", rows)
        return row
    siblings = [row for row in _plain(rows) if row.version.startswith(f"{line}.")]
    if not siblings:
        raise _no_such_triton(line, rows)
    newest = siblings[-1]
    if len({row.llvm for row in siblings}) == 1:
        # All the same LLVM: the newest that was itself read is as good a pin, and surer.
        return next((row for row in reversed(siblings) if row.certainty == "verified"), newest)
    pins = ", ".join(f"{row.version} has {row.llvm or 'an unknown one'}" for row in siblings)
    text = f"the patch releases of Triton {line} have different LLVMs ({pins}); {newest.version} was taken"
    return replace(newest, warnings=(text,))


def _neighbours(version: str, rows: Iterable[TritonRelease]) -> str:
    """The releases next to a version that does not exist, for display."""
    near = sorted({row.version for row in _plain(rows)}, key=numbers)
    below = [f"{near_by} below" for near_by in near if numbers(near_by) < numbers(version)][-1:]
    above = [f"{near_by} above" for near_by in near if numbers(near_by) > numbers(version)][:1]
    return f"the releases next to it are {' and '.join([*below, *above])}"


def _no_such_triton(version: str, rows: Iterable[TritonRelease]) -> UnsupportedError:
    """With its neighbours: a patch release may have a pin of its own, so neither is taken in its place."""
    near = _neighbours(version, rows)
    return UnsupportedError(
        f"Triton {version} is not on record",
        why=f"known: {', '.join(row.version for row in rows if row.version)}",
        fix=f"{near}; or give what you have: --triton COMMIT, or --triton FOLDER of a checkout",
    )


def _no_such(kind: str, name: str, known: Iterable[str], *, also: str = "") -> UnsupportedError:
    names = list(known)
    wanted = name.strip().lower().removeprefix("v")
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return UnsupportedError(
        f"{kind} {name.strip()} is not on record", why=f"known: {', '.join(names)}", fix=f"{hint}{also}".strip()
    )
