"""`build` and `kernels`: make what is not here yet."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.errors import ConfigError
from toolchain.pipeline import build as build_stages
from toolchain.settings import Request
from toolchain.stages.stage import Built

GoalArg = Annotated[str, typer.Argument(help="base, llvm, triton, kernels or all.")]
ContractOpt = Annotated[
    bool, typer.Option("--contract/--no-contract", help="Prove that the layer serves Triton before it counts.")
]
ArchiveOpt = Annotated[
    Path | None, typer.Option("--archive", help="Also write LLVM as a plain .tar.gz into this folder.")
]


def build(
    stage: GoalArg,
    base: o.BaseOpt = "debian13",
    arch: o.ArchOpt = "amd64",
    source: o.SourceOpt = None,
    patch: o.PatchOpt = None,
    triton: o.TritonOpt = None,
    aotriton: o.AotritonOpt = None,
    gpu: o.GpuOpt = None,
    select: o.SelectOpt = None,
    limit: o.LimitOpt = None,
    keep_going: o.KeepGoingOpt = False,
    kernel_timeout: o.KernelTimeoutOpt = None,
    allow_binary: o.AllowBinaryOpt = None,
    only: o.OnlyOpt = "distribution",
    jobs: o.JobsOpt = 0,
    offline: o.OfflineOpt = False,
    compression: o.CompressionOpt = "gzip",
    contract: ContractOpt = True,
    archive: ArchiveOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Build a stage and all below it. What is already here is not built again."""
    request = o.make_request(
        cache=cache, base=base, arch=arch, source=source, patch=patch, gpu=gpu, allow_binary=allow_binary,
        compression=compression, triton=triton, aotriton=aotriton, select=select, limit=limit, keep_going=keep_going,
        kernel_timeout=kernel_timeout, only=only, jobs=jobs, offline=offline, contract=contract, json=json_,
    )  # fmt: skip
    built = build_stages(request, stage, command=_command())
    if archive is not None:
        _archive(request, built, archive)
    _show(built, json_)


def kernels_run(
    base: o.BaseOpt = "debian13",
    source: o.SourceOpt = None,
    gpu: o.GpuOpt = None,
    select: o.SelectOpt = None,
    limit: o.LimitOpt = None,
    keep_going: o.KeepGoingOpt = False,
    kernel_timeout: o.KernelTimeoutOpt = None,
    allow_binary: o.AllowBinaryOpt = None,
    jobs: o.JobsOpt = 0,
    offline: o.OfflineOpt = False,
    compression: o.CompressionOpt = "gzip",
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Compile the FlashAttention kernels inside the Triton image."""
    request = o.make_request(
        cache=cache, base=base, source=source, gpu=gpu, allow_binary=allow_binary, compression=compression,
        select=select, limit=limit, keep_going=keep_going, kernel_timeout=kernel_timeout, jobs=jobs, offline=offline,
        json=json_,
    )  # fmt: skip
    _show(build_stages(request, "kernels", command=_command()), json_)


def kernels_status(cache: o.CacheOpt = None, json_: o.JsonOpt = False) -> None:
    """How far the unfinished kernel campaigns are."""
    from toolchain.kernels.ledger import Ledger  # noqa: PLC0415 - build needs it only inside the stage

    request = o.make_request(cache=cache)
    rows = []
    for path in sorted(request.cache.work.glob("*/ledger.sqlite")):
        with Ledger(path) as ledger:
            rows.append({"campaign": path.parent.name, **ledger.summary().as_json()})
    if json_:
        console.data({"campaigns": rows})
    elif not rows:
        console.text("no unfinished campaign")
    for row in rows if not json_ else []:
        console.text("  ".join(f"{key} {value}" for key, value in row.items()))


def _command() -> list[str]:
    return [shlex.quote(word) for word in ("toolchain", *sys.argv[1:])]


def _archive(request: Request, built: list[Built], folder: Path) -> None:
    from toolchain.delivery import write_archive  # noqa: PLC0415

    llvm = next((one for one in built if one.planned.name == "llvm"), None)
    if llvm is None:
        raise ConfigError("--archive is for LLVM", fix="use it with `build llvm` or `build all`")
    folder.mkdir(parents=True, exist_ok=True)
    path = write_archive(request, llvm, folder)
    console.note(f"archive: {path} ({console.size(path.stat().st_size)})")


def _show(built: list[Built], as_json: bool) -> None:
    if as_json:
        console.data(
            {
                "stages": [
                    {
                        "name": one.planned.name,
                        "image": one.planned.image,
                        "input_digest": one.input_digest,
                        "reused": one.reused,
                        "manifest": one.manifest,
                        "facts": dict(one.facts),
                    }
                    for one in built
                ]
            }
        )
        return
    for one in built:
        size = console.size(float(one.facts.get("blob_bytes", 0)))
        console.text(f"{one.planned.image}\t{one.manifest}\t{size}\t{'already here' if one.reused else 'built'}")
