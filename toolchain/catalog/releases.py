"""Lookup of the LLVM commit that a release of Triton, AOTriton or PyTorch requires.

The facts come from data files (`toolchain.catalog.release_data`). For a checkout, `toolchain.catalog.pin_files` reads
the pin files in it instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolchain.catalog.release_data import (
    AotritonRelease,
    PytorchRow,
    TritonRelease,
    aotriton_releases,
    first_with_codegen,
    is_commit,
    numbers,
    pytorch_rows,
    require,
    triton_releases,
)
from toolchain.core.errors import PinError, UnsupportedError

_FORM = "MAJOR.MINOR[.PATCH], in the digits 0 to 9 and without leading zeros"
_NUMBER = "(0|[1-9][0-9]{0,3})"
_VERSION = re.compile(rf"v?{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?(\+[A-Za-z0-9.]+)?")


def triton_release(version: str, *, allow_unknown: bool = False) -> TritonRelease:
    """Return the Triton release for a version (`3.2`, `v3.2.0`) or a full commit; raise an error if it is unknown.

    For a version with neither a patch number nor a vendor's suffix, return the newest patch release, with a warning if
    the patch releases pin different LLVMs. If all of them pin the same LLVM, prefer the newest release whose pin is
    verified.

    Args:
        allow_unknown: whether to return a known release even if its LLVM is unknown, because the user gives the LLVM.
    """
    wanted = version.strip()
    if is_commit(wanted.lower()):
        row = _triton_by_commit(wanted.lower())
    else:
        line, patch, local = _parsed(wanted)
        _refuse_unknown_codegen(line, patch)
        row = _triton_by_version(line, patch, local)
    if not allow_unknown:
        require(row, "llvm")
    return row


def newest_patch(version: str) -> TritonRelease:
    """Return the Triton release for a version; for MAJOR.MINOR alone, such as `3.3`, the newest patch release.

    Unlike `triton_release`, this function does not prefer a verified pin, and the LLVM of the release may be unknown.
    Raise a PinError if the text is not a version, and an UnsupportedError if the version is unknown.
    """
    line, patch, local = _parsed(version.strip())
    row = triton_release(version, allow_unknown=True)
    if patch is not None or local:
        return row
    return [release for release in _plain() if release.version.startswith(f"{line}.")][-1]


def newest_on_one_llvm() -> str:
    """Return the version of the newest Triton release that uses no separate LLVM for GPUs."""
    return [row.version for row in _plain() if not row.codegen][-1]


def triton_at(llvm: str) -> str | None:
    """Return the newest known Triton version, or else a Triton commit, that pins `llvm`; None if nothing pins it."""
    versions = [row.version for row in _plain() if row.llvm == llvm]
    commits = [row.commit for row in triton_releases() if row.llvm == llvm and not row.version]
    carried = [row.triton for row in aotriton_releases() if row.llvm == llvm and row.triton]
    return next(iter([*reversed(versions), *commits[:1], *carried[:1]]), None)


def is_version(text: str) -> bool:
    """Return whether `text` is MAJOR.MINOR[.PATCH], with an optional leading `v` and an optional suffix after `+`."""
    return _VERSION.fullmatch(text.strip()) is not None


def _parsed(version: str) -> tuple[str, str | None, str]:
    """Split a version into MAJOR.MINOR, the patch number (None if missing) and a vendor's suffix such as `+rocm6`.

    The suffix is empty if it is missing. Raise a PinError if the text is not a version.
    """
    match = _VERSION.fullmatch(version)
    if not match:
        fix = "give a version such as 3.7.1 or a commit of 40 digits"
        why = f"the form is {_FORM}"
        raise PinError("not-a-triton-version", f"{version!r} is not a Triton version", why=why, fix=fix)
    major, minor, patch, local = match.groups()
    return f"{int(major)}.{int(minor)}", patch, local or ""


def _refuse_unknown_codegen(line: str, patch: str | None) -> None:
    """Raise UnsupportedError if a version from 3.9 on is unknown, because the LLVMs that it needs are unknown too."""
    plain = _plain()
    version = line if patch is None else f"{line}.{int(patch)}"
    known = any(row.version == version or row.version.startswith(f"{version}.") for row in plain)
    if known or numbers(line) < first_with_codegen():
        return
    raise UnsupportedError(
        "unknown-triton",
        f"Triton {version} is unknown, and Triton needs a second LLVM since 3.9",
        why=f"{_neighbours(version)}. Since 3.9, Triton generates code for AMD GPUs with a separately pinned LLVM, and "
        "a newer version may have more of these",
        fix=f"use {plain[-1].version} or older; or give a checkout, whose pin files are then used: --triton FOLDER",
    )


def aotriton_release(name: str, *, allow_unknown: bool = False) -> AotritonRelease:
    """Return an AOTriton release by its name, in which the leading `v` and the trailing `b` are optional.

    Raise an error if the release is unknown, or if its commit, its Triton or its LLVM is unknown.

    Args:
        allow_unknown: whether to return the release even if some of its commits are unknown, because the user gives
            those sources.
    """
    wanted = name.strip().lower().removeprefix("v")
    by_name = {row.name: row for row in aotriton_releases()}
    row = by_name.get(wanted) or by_name.get(f"{wanted}b")
    if row is None:
        raise _no_such("AOTriton release", name, by_name, also="or give a source: --source aotriton=PATH|URL@COMMIT")
    if not allow_unknown:
        require(row, "commit", "triton", "llvm")
    return row


def check_release_gpus(name: str, gpus: Sequence[str], *, known: Sequence[str] = ()) -> None:
    """Raise an UnsupportedError if an AOTriton release is unknown, or has no kernels for one of the GPUs.

    Args:
        known: the GPUs that the generator of the release supports; upstream's build may omit some of them.
    """
    row = aotriton_release(name, allow_unknown=True)
    if missing := [gpu for gpu in gpus if gpu not in row.gpus]:
        # A release whose LLVM is unknown is not suggested, because it cannot be built without further options.
        releases = [
            row.name for row in aotriton_releases() if set(gpus) <= set(row.gpus) and row.certainty != "unknown"
        ]
        left_out = [gpu for gpu in missing if gpu in known]
        named = f"; its generator supports {', '.join(left_out)} too, but upstream's build omits it" if left_out else ""
        raise UnsupportedError(
            "gpu-not-in-aotriton",
            f"AOTriton {row.name} has no kernels for {', '.join(missing)}",
            why=f"it builds for {', '.join(row.gpus)}{named}",
            fix="choose other GPUs with --gpu" + (f", or use {' or '.join(releases[-2:])}" if releases else ""),
        )


def aotriton_for_pytorch(version: str) -> PytorchRow:
    """Return the row for a PyTorch version or `main`; raise an error if the text is neither or has no row.

    A patch number and a suffix such as `+rocm6.4` are ignored.
    """
    match = _VERSION.fullmatch(version.strip())
    if not match and version.strip() != "main":
        fix = "give a version such as 2.9, or main"
        raise PinError(
            "not-a-pytorch-version", f"{version!r} is not a PyTorch version", why=f"the form is {_FORM}", fix=fix
        )
    wanted = f"{int(match[1])}.{int(match[2])}" if match else "main"
    by_name = {row.version: row for row in pytorch_rows()}
    row = by_name.get(wanted)
    if row is None:
        raise _no_such("PyTorch", version, by_name, also="or give the AOTriton: --aotriton RELEASE")
    notes = [f"PyTorch {wanted}: AOTriton {row.aotriton} is inferred: {row.source}"] * (row.certainty == "inferred")
    return replace(row, warnings=(*notes, *([f"PyTorch {wanted}: {row.note}"] if row.note else [])))


def repository_of(commit: str) -> str | None:
    """Return the repository that the data files name for an LLVM commit; None if they name none."""
    rows: list[TritonRelease | AotritonRelease] = [*triton_releases(), *aotriton_releases()]
    codegen = [pin for row in triton_releases() for pin in row.codegen]
    return next((row.repository for row in (*rows, *codegen) if row.llvm == commit and row.repository), None)


def _plain() -> list[TritonRelease]:
    """Return the releases whose version has no vendor's suffix."""
    return [row for row in triton_releases() if row.version and "+" not in row.version]


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
        "triton-llvm-unknown",
        f"the LLVM of Triton {commit} is unknown",
        why="it is known only for releases, AOTriton's submodules and a few commits",
        fix="give a checkout, whose pin file is then used: --source triton=PATH",
    )


def _triton_by_version(line: str, patch: str | None, local: str) -> TritonRelease:
    if patch is not None or local:
        version = f"{line}.{int(patch or 0)}{local}"
        for row in triton_releases():
            if row.version == version:
                return row
        raise _no_such_triton(version)
    siblings = [row for row in _plain() if row.version.startswith(f"{line}.")]
    if not siblings:
        raise _no_such_triton(line)
    newest = siblings[-1]
    if len({row.llvm for row in siblings}) == 1:
        return next((row for row in reversed(siblings) if row.certainty == "verified"), newest)
    pins = ", ".join(f"{row.version} has {row.llvm or 'an unknown one'}" for row in siblings)
    text = f"the patch releases of Triton {line} pin different LLVMs ({pins}); {newest.version} is used"
    return replace(newest, warnings=(text,))


def _neighbours(version: str) -> str:
    """Return text that names the known releases just before and after an unknown version."""
    near = sorted({row.version for row in _plain()}, key=numbers)
    older = [near_by for near_by in near if numbers(near_by) < numbers(version)][-1:]
    newer = [near_by for near_by in near if numbers(near_by) > numbers(version)][:1]
    return f"the nearest known: {' and '.join([*older, *newer])}"


def _no_such_triton(version: str) -> UnsupportedError:
    """Return the error for an unknown version. The nearest version is not used instead, because its pin may differ."""
    return UnsupportedError(
        "unknown-triton",
        f"Triton {version} is unknown",
        why=f"known: {', '.join(row.version for row in triton_releases() if row.version)}",
        fix=f"use a known version ({_neighbours(version)}), or give a commit or checkout: --triton COMMIT|FOLDER",
    )


def _no_such(kind: str, name: str, known: Iterable[str], *, also: str = "") -> UnsupportedError:
    names = list(known)
    wanted = name.strip().lower().removeprefix("v")
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return UnsupportedError(
        "unknown-release",
        f"{kind} {name.strip()} is unknown",
        why=f"known: {', '.join(names)}",
        fix=f"{hint}{also}".strip(),
    )
