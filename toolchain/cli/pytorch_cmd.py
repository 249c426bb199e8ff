"""The verb `pytorch`, which shows the AOTriton that a PyTorch source tree needs, and whether it is available."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.catalog.gpus import parse_gpus
from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.errors import ConfigError

if TYPE_CHECKING:
    from toolchain.publish.pytorch import Archive

TreeArg = Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A PyTorch source tree, or its aotriton.cmake.")]
RocmOpt = Annotated[str, typer.Option("--rocm", metavar="X.Y", help="ROCm version that PyTorch is built with.")]
GpuOpt = Annotated[str, typer.Option("--gpu", help="GPUs as in PYTORCH_ROCM_ARCH, e.g. gfx942;gfx90a.")]
FromOpt = Annotated[Path | None, typer.Option("--from", metavar="DIR", help="Folder with AOTriton archives.")]
PrefixOpt = Annotated[Path | None, typer.Option("--prefix", metavar="DIR", help="Installed AOTriton to check.")]


def pytorch(
    tree: TreeArg,
    rocm: RocmOpt = "",
    gpu: GpuOpt = "",
    archives: FromOpt = None,
    prefix: PrefixOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Show which AOTriton a PyTorch tree needs, and whether archives or a prefix provide it."""
    from toolchain.publish import pytorch as facts  # noqa: PLC0415 - `--help` does not need it

    for folder, name in ((archives, "--from"), (prefix, "--prefix")):
        if folder is not None and not folder.is_dir():
            raise ConfigError("not-a-folder", f"{name} {folder} is not a folder", fix="give an existing folder")
    wanted = facts.read_pytorch(tree)
    gpus = parse_gpus(gpu)
    # If only a prefix is given, PyTorch downloads no archives.
    needed = wanted.needed(rocm, gpus) if prefix is None or archives is not None else []
    checked = facts.check_prefix(prefix, wanted, gpus, rocm) if prefix is not None else {}
    found = facts.found_in(archives, wanted, needed) if archives is not None else {}
    if json_:
        rows = [
            {"name": archive.name, "sha256": archive.sha256, "found": found.get(archive.name)} for archive in needed
        ]
        address = {"url": wanted.url, "fixed_url": wanted.fixed_url}
        release = {"release": wanted.release, "commit": wanted.commit, "rocm": list(wanted.rocms)}
        local = {"archives": rows, "prefix": checked}
        console.data({**release, **address, **local})
        return
    console.text(
        f"AOTriton {wanted.release}  {wanted.commit or 'no commit'}  ROCm {', '.join(dict.fromkeys(wanted.rocms))}"
    )
    how = f"fixed: {wanted.url}" if wanted.fixed_url else f"{facts.URL_VARIABLE}, else {wanted.url}"
    console.text(f"address: {how}")
    for archive in needed:
        state = _state(archive, found) if archives is not None else ""
        digest = archive.sha256 if archive.sha256.strip("0") else "no digest"
        console.text(f"{archive.name}  {digest}  {state}".rstrip())
    if checked:
        packs = ", ".join(name for name in checked if name != "version")
        unchecked = "kernels in the library" if gpus else "images not checked without --gpu"
        console.text(f"prefix: {checked['version'] or 'version not stated'}, {packs or unchecked}")


def _state(archive: Archive, found: Mapping[str, str]) -> str:
    digest = found.get(archive.name)
    if digest is None:
        return "missing"
    return "found, digest matches" if digest == archive.sha256 else f"found, digest differs: {digest}"
