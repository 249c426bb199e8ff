"""`plan` and `fetch`: what would be built, and bringing its sources in."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from toolchain import console
from toolchain.cli import options as o
from toolchain.pipeline import plan as plan_stages

StageArg = Annotated[str, typer.Argument(help="base, llvm, triton, kernels, aotriton or all.")]


def plan(
    stage: StageArg = "all",
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
    compression: o.CompressionOpt = "gzip",
    locked: o.LockedOpt = False,
    lock_file: o.LockFileOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Show what would be built and what is already here. No network, no engine."""
    request = o.make_request(
        cache=cache, base=base, arch=arch, source=source, patch=patch, gpu=gpu, compression=compression,
        triton=triton, aotriton=aotriton, select=select, limit=limit, only=only,
        keep_going=keep_going, kernel_timeout=kernel_timeout,
        allow_binary=allow_binary, drop_binary=drop_binary, python=python, json=json_,
        locked=locked, lock_file=lock_file,
    )  # fmt: skip
    rows = plan_stages(request, stage, proved=True)
    if json_:
        console.data({"stages": [row.as_json() for row in rows]})
        return
    table = Table()
    for column in ("stage", "image", "input digest", "state", "sources", "prebuilt"):
        table.add_column(column, overflow="fold")
    for row in rows:
        planned = row.planned
        digest = (planned.input_digest or "not locked yet").removeprefix("sha256:")
        sources = "\n".join(
            f"{s.name} {s.ref}"
            + ("" if s.locked else " (unlocked)")
            + "".join(f"\n  + {patch.name}" for patch in row.patches.get(s.name, ()))
            for s in planned.sources
        )
        table.add_row(
            planned.name,
            planned.image + (f"\n{planned.partial}" if planned.partial else ""),
            digest[:16],
            "here" if row.built else "to build",
            Text(sources),  # names of files are no markup
            ", ".join(planned.binaries),
        )
    console.show(table)


def fetch(
    stage: StageArg = "all",
    base: o.BaseOpt = "debian13",
    source: o.SourceOpt = None,
    patch: o.PatchOpt = None,
    triton: o.TritonOpt = None,
    aotriton: o.AotritonOpt = None,
    only: o.OnlyOpt = "distribution",
    offline: o.OfflineOpt = False,
    locked: o.LockedOpt = False,
    lock_file: o.LockFileOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Bring the sources of a stage into the store."""
    from toolchain.locking import check_tree  # noqa: PLC0415 - plan needs none of it
    from toolchain.sources.resolve import fetch_source  # noqa: PLC0415

    request = o.make_request(
        cache=cache,
        base=base,
        source=source,
        patch=patch,
        triton=triton,
        aotriton=aotriton,
        only=only,
        offline=offline,
        locked=locked,
        lock_file=lock_file,
        json=json_,
    )
    request.cache.check()
    found = []
    for row in plan_stages(request, stage):
        for one in row.planned.sources:
            console.note(f"{one.name}: {one.ref}")
            got = fetch_source(one, cache=request.cache, offline=offline, patches=request.patches.get(one.name, ()))
            check_tree(request, got)
            found.append(got.as_plan() | {"path": str(got.path)})
    if json_:
        console.data({"sources": found})
    else:
        for entry in found:
            console.text(f"{entry['name']}\t{entry['digest']}\t{entry['path']}")
