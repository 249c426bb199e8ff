"""`build` and `kernels`: make what is not here yet."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.errors import KernelError
from toolchain.pipeline import build as build_stages
from toolchain.settings import Request
from toolchain.stages.stage import Built

GoalArg = Annotated[str, typer.Argument(help="base, llvm, triton, kernels, aotriton or all.")]
ContractOpt = Annotated[
    bool, typer.Option("--contract/--no-contract", help="Prove that the layer serves Triton before it counts.")
]
ArchiveOpt = Annotated[
    Path | None, typer.Option("--archive", help="Also write plain files into this folder: archives and wheels.")
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
    drop_binary: o.DropBinaryOpt = None,
    python: o.PythonOpt = None,
    only: o.OnlyOpt = "distribution",
    jobs: o.JobsOpt = 0,
    offline: o.OfflineOpt = False,
    compression: o.CompressionOpt = "gzip",
    contract: ContractOpt = True,
    archive: ArchiveOpt = None,
    locked: o.LockedOpt = False,
    lock_file: o.LockFileOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Build a stage and all below it. What is already here is not built again."""
    request = o.make_request(
        cache=cache, base=base, arch=arch, source=source, patch=patch, gpu=gpu, allow_binary=allow_binary,
        drop_binary=drop_binary, python=python, compression=compression, triton=triton, aotriton=aotriton,
        select=select, limit=limit, keep_going=keep_going,
        kernel_timeout=kernel_timeout, only=only, jobs=jobs, offline=offline, contract=contract, json=json_,
        locked=locked, lock_file=lock_file,
    )  # fmt: skip
    built = build_stages(request, stage, command=_command())
    if archive is not None:
        _archive(request, built, archive)
    _show(built, json_)
    _tell_known_bad(built)


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
    built = build_stages(request, "kernels", command=_command())
    _show(built, json_)
    _tell_known_bad(built)


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
    from toolchain.archives import write_archives  # noqa: PLC0415

    for path in write_archives(request, built, folder):
        console.note(f"archive: {path} ({console.size(path.stat().st_size)})")


def _tell_known_bad(built: list[Built]) -> None:
    """Kernels that --keep-going marked as known bad show in the exit code: what was made is not what was planned."""
    for one in built:
        counts = one.facts.get("kernels") or {}
        bad = int(counts.get("failed", 0)) + int(counts.get("timed_out", 0))
        if bad:
            raise KernelError(
                f"{bad} kernels of {one.planned.image} did not compile and are marked as known bad",
                why="\n".join(one.facts.get("known_bad", ())[:20]),
                fix="the image is there, and says so; without --keep-going this fails the build",
            )


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
