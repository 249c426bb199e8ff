"""Copies of the archives of `build aotriton --archive` under the names that a PyTorch expects.

PyTorch's names state the release, the ROCm and the oldest glibc, so each archive is checked for these first.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from toolchain.catalog.floors import load_floors
from toolchain.catalog.releases import aotriton_release
from toolchain.catalog.rocm import rocm_of
from toolchain.core import strict_json
from toolchain.core.digest import sha256_file
from toolchain.core.errors import ContractError, SourceError, ToolchainError
from toolchain.core.filesystem import NewFile, read_regular
from toolchain.publish.pytorch import LIBRARY, Archive, Wanted, version_of, wrong_hip
from toolchain.sources.unpack import unpack_tar

_OURS = r"aotriton-(?:tree)?[0-9a-f]{12}-"
_FLOOR = re.compile(r"manylinux_([0-9]+)_([0-9]+)_")
_SHA1 = re.compile(r"AOTRITON_GIT_SHA1\s+\"?([0-9a-f]{40})")
_LARGEST = 1 << 20
_FIX = "build that release whole, from its own commit and without patches: --aotriton RELEASE --archive DIR"


def lay(folder: Path, into: Path, wanted: Wanted, needed: Sequence[Archive]) -> dict[str, str]:
    """Copy the needed archives from `folder` to `into`/RELEASE; archives that `folder` lacks are left out.

    Returns:
        The file's name in `folder`, by the name that PyTorch expects.
    """
    found = [(archive, ours) for archive in needed if (ours := _ours(folder, archive)) is not None]
    for archive, ours in found:
        with tempfile.TemporaryDirectory(prefix="toolchain-") as scratch:
            tree = Path(scratch) / "tree"
            unpack_tar(ours, tree)
            faults = _runtime(tree, archive, wanted) if archive.rocm else _images(tree, archive, wanted)
        if faults:
            raise ContractError(f"{ours.name} is not what {archive.name} says", why="; ".join(faults), fix=_FIX)
    laid = {}
    for archive, ours in found:  # after all checks, so that all are copied or none
        target = into / wanted.release / archive.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with NewFile(target) as new, ours.open("rb") as stream:
            shutil.copyfileobj(stream, new.stream)
            new.finish(sha256_file(ours))
        laid[archive.name] = ours.name
    return laid


def _ours(folder: Path, archive: Archive) -> Path | None:
    if archive.rocm:
        tail = rf"glibc_[0-9_]+_x86_64-rocm{rocm_of(archive.rocm).major}(?:-[\w+-]+)?-shared\.tar\.gz"
    else:
        # The middle marks archives with a part of the kernels, or with kernels that are known to be bad.
        tail = rf"images-(?:[\w+-]+-)?{re.escape(archive.pack)}\.tar\.gz"
    candidates = sorted(path for path in folder.iterdir() if re.fullmatch(_OURS + tail, path.name))
    if len(candidates) > 1:
        raise SourceError(
            f"several archives here could be {archive.name}",
            why=", ".join(path.name for path in candidates),
            fix="leave one of them in the folder",
        )
    return candidates[0] if candidates else None


def _commits(wanted: Wanted) -> set[str]:
    """Return the commits that are this release: PyTorch's own, and that of the catalog."""
    try:
        known = aotriton_release(wanted.release, allow_unknown=True).commit
    except ToolchainError:
        known = ""
    return {commit for commit in (wanted.commit, known) if commit}


def _runtime(tree: Path, archive: Archive, wanted: Wanted) -> list[str]:
    from toolchain.stages.elf import read_linked  # noqa: PLC0415 - most calls read no ELF

    faults = []
    if version_of(tree) != wanted.version:
        faults.append(f"its header says version {version_of(tree) or 'nothing'}")
    try:
        header = read_regular(tree / "include/aotriton/config.h", _LARGEST, within=tree).decode(errors="replace")
        library = read_linked((tree / LIBRARY).resolve(strict=True))
    except (OSError, ContractError):
        return [*faults, f"its header or {LIBRARY} cannot be read"]
    made = _SHA1.search(header)
    if made is None or made[1] not in _commits(wanted):
        faults.append(f"it was made of {made[1] if made else 'no commit'}, which is not the release")
    faults += wrong_hip(library, rocm_of(archive.rocm).soname)
    if floor := _FLOOR.search(archive.name):
        glibc = f"{floor[1]}.{floor[2]}"
        row = load_floors().get(glibc)
        limits = [("GLIBC_", glibc), *([("GLIBCXX_", row.glibcxx)] if row else [])]
        for prefix, most in limits:
            if library.newest(prefix) > tuple(int(part) for part in most.split(".")):
                faults.append(f"its library asks for {prefix}{'.'.join(map(str, library.newest(prefix)))}")
    return faults


def _images(tree: Path, archive: Archive, wanted: Wanted) -> list[str]:
    from toolchain.stages.aotriton import PARTIAL, SIGNATURE  # noqa: PLC0415 - the stage, for two names

    folder = tree / "lib/aotriton.images" / archive.pack
    try:
        made = str(strict_json.read(read_regular(folder / SIGNATURE, _LARGEST, within=tree))["AOTRITON_GIT_SHA1"])
    except (OSError, ValueError, KeyError, TypeError, ToolchainError):
        return [f"it has no signature of {archive.pack} that can be read"]
    faults = [] if made in _commits(wanted) else [f"it was made of {made}, which is not the release"]
    if (folder / PARTIAL).exists():
        faults.append(f"kernels of it are missing: see {PARTIAL} in it")
    return faults
