"""The verbs `build`, `kernels run`, `kernels merge` and `kernels worker`, which build missing stages."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.catalog import stages
from toolchain.catalog.stages import published
from toolchain.cli import options as o
from toolchain.cli.build_options import with_request
from toolchain.core import console
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import ConfigError, KernelError, did_you_mean
from toolchain.pipeline.finished_images import names_of
from toolchain.pipeline.records import read_record
from toolchain.pipeline.run import build as build_stages
from toolchain.request.model import Request, options
from toolchain.stages.stage import Built

if TYPE_CHECKING:
    from toolchain.pipeline.reuse import Reuse

GoalArg = Annotated[
    str, typer.Argument(help=f"{stages.choice()} Default: `stage` in toolchain.toml.", autocompletion=o.complete_stage)
]
ReuseOpt = Annotated[str | None, o.typed(o.REUSE_FROM, panel=True)]
ReuseOnlyOpt = Annotated[
    bool,
    typer.Option(
        "--reuse-only",
        rich_help_panel="Trust",
        help="With --reuse-from: fail instead of building anything.",
    ),
]
PublicKeyOpt = Annotated[
    Path | None,
    o.typed(
        o.PUBLIC_KEY,
        help="Public key (PEM) that must have signed the images of --reuse-from.",
        panel=True,
    ),
]
ArchiveOpt = Annotated[
    Path | None,
    typer.Option("--archive", rich_help_panel="What", help="Also write archives and wheels into this folder."),
]
AddressArg = Annotated[str, typer.Argument(help="Dask scheduler: tls://HOST:PORT, or tcp:// on loopback.")]
_CAMPAIGNS = "kernels, aotriton or triton-cache."
CampaignArg = Annotated[
    str, typer.Argument(help=_CAMPAIGNS, show_default="kernels", autocompletion=lambda: stages.CAMPAIGNS)
]
NameOpt = Annotated[str, typer.Option("--name", help="Name of this machine in campaigns. \\[default: host name]")]
MergeArg = Annotated[str, typer.Argument(help=_CAMPAIGNS, autocompletion=lambda: stages.CAMPAIGNS)]
ShardsArg = Annotated[list[Path], typer.Argument(help="Kernel stores that the shards wrote to.")]


@with_request(*(option.field for option in options() if option.campaign))
def build(
    stage: GoalArg,
    archive: ArchiveOpt = None,
    reuse_from: ReuseOpt = None,
    reuse_only: ReuseOnlyOpt = False,
    public_key: PublicKeyOpt = None,
    *,
    request: Request,
) -> None:
    """Build a stage and the stages it depends on. Finished images are reused.

    For options of kernel campaigns, such as --limit, use `kernels run`.
    """
    reuse = _reuse(reuse_from, reuse_only, public_key, request.offline)
    if archive is not None:
        from toolchain.publish.plain_files import check_folder  # noqa: PLC0415

        check_folder(stage, archive, request.sources)
    built = build_stages(request, stage, reuse=reuse)
    if archive is not None:
        _archive(request, built, archive, reuse)
    _show(request, stage, built)
    _tell_known_bad(built)


@with_request()
def kernels_run(
    stage: CampaignArg = "kernels",
    reuse_from: ReuseOpt = None,
    reuse_only: ReuseOnlyOpt = False,
    public_key: PublicKeyOpt = None,
    *,
    request: Request,
) -> None:
    """Build kernels like `build`, with options for selection, shards, kernel stores, limits and a Dask scheduler."""
    _require_kernels(stage)
    _campaign(request, stage, _reuse(reuse_from, reuse_only, public_key, request.offline))


@with_request("shard", "kernel_store", "scheduler")
def kernels_merge(
    stage: MergeArg,
    shards: ShardsArg,
    reuse_from: ReuseOpt = None,
    reuse_only: ReuseOnlyOpt = False,
    public_key: PublicKeyOpt = None,
    *,
    request: Request,
) -> None:
    """Assemble the ledger, the packs and the image from the results of `--shard` runs. No kernel is compiled.

    Use the same options as for the shards, except --shard, --kernel-store and --scheduler. Shards with different inputs
    are refused, and missing kernels are listed.
    """
    _require_kernels(stage)
    reuse = _reuse(reuse_from, reuse_only, public_key, request.offline)
    _campaign(replace(request, shards=tuple(dict.fromkeys(shards))), stage, reuse)


@with_request(
    "check", "contract", "json", "keep_going", "kernel_key", "kernel_store", "limit", "scheduler", "select", "shard"
)
def kernels_worker(
    address: AddressArg,
    stage: CampaignArg = "kernels",
    name: NameOpt = "",
    reuse_from: ReuseOpt = None,
    reuse_only: ReuseOnlyOpt = False,
    public_key: PublicKeyOpt = None,
    *,
    request: Request,
) -> None:
    """Compile kernels for campaigns with `--scheduler ADDRESS` until interrupted, after building the image they need.

    Use the options of the campaign, as far as this verb has them. A worker gets no kernels if its Triton, sources,
    limits, runner or version of this tool differ from those of the campaign.
    """
    _require_kernels(stage)
    from toolchain.kernels.scheduler import check_address, security  # noqa: PLC0415 - most verbs do not need it

    security(check_address(address), "worker")
    from toolchain.pipeline.cluster_member import serve_kernels  # noqa: PLC0415 - it imports Dask

    serve_kernels(request, stage, address, name=name, reuse=_reuse(reuse_from, reuse_only, public_key, request.offline))


def _campaign(request: Request, stage: str, reuse: Reuse | None) -> None:
    _check_kernel_store(request)
    if request.shard is not None and reuse is not None and reuse.only:
        raise ConfigError(
            "options-exclude",
            "--shard and --reuse-only exclude each other",
            why="a shard compiles its kernels",
            fix="take the stages below first: toolchain build triton … --reuse-only",
        )
    built = build_stages(request, stage, reuse=reuse)
    _show(request, stage, built)
    _tell_known_bad(built)


def _check_kernel_store(request: Request) -> None:
    """Check the options for kernel stores, shards and the scheduler before a long build."""
    if request.kernel_key is not None or request.kernel_store is not None or request.shards:
        from toolchain.pipeline.kernel_store import check_stores, result_key  # noqa: PLC0415 - most builds have no store

        result_key(request.kernel_key)
        check_stores(request)
    if request.kernel_key is None and (request.kernel_store is not None or request.shards):
        console.note("results in --kernel-store are neither signed nor verified (use --kernel-key for both)")
    if request.shard is not None and request.kernel_store is None:
        from toolchain.kernels.shards import without_store  # noqa: PLC0415 - most builds have no shard

        raise without_store(request.shard)
    if request.scheduler is not None:
        from toolchain.kernels.scheduler import security  # noqa: PLC0415 - most builds have no scheduler

        security(request.scheduler, "client")


def _require_kernels(stage: str) -> None:
    if stage not in stages.CAMPAIGNS:
        near = did_you_mean(stage, stages.CAMPAIGNS)
        raise ConfigError(
            "stage-without-kernels",
            f"stage {stage!r} has no kernels{near}",
            fix=f"use one of {', '.join(stages.CAMPAIGNS)}",
        )


def _reuse(where: str | None, only: bool, key: Path | None, offline: bool) -> Reuse | None:
    if where is None:
        if only:
            raise ConfigError(
                "option-needs-option",
                "--reuse-only needs --reuse-from",
                fix="add --reuse-from REGISTRY/NS --public-key FILE",
            )
        return None
    from toolchain.pipeline.reuse import make_reuse  # noqa: PLC0415 - it imports cryptography

    return make_reuse(where, key, only=only, offline=offline)


def _archive(request: Request, built: list[Built], folder: Path, reuse: Reuse | None) -> None:
    from toolchain.publish.plain_files import write_archives  # noqa: PLC0415

    if reuse is not None:
        from toolchain.publish.artifacts import bring_wheels  # noqa: PLC0415 - it imports the registry client

        bring_wheels(request, built, reuse)
    records = [read_record(request.cache, stage.input_digest) for stage in built]
    for path in write_archives(request.cache, records, folder):
        console.note(f"archive: {path} ({console.size(path.stat().st_size)})")


def _tell_known_bad(built: list[Built]) -> None:
    """Raise a KernelError if a stage has kernels that are marked as known bad."""
    for stage in built:
        counts = stage.facts.get("kernels") or {}
        bad = int(counts.get("failed", 0)) + int(counts.get("timed_out", 0))
        if bad:
            failures = stage.facts.get("failures", {})  # a dictionary of reasons; for AOTriton, a list of rows
            reasons = failures if isinstance(failures, dict) else {row["out"]: row["reason"] for row in failures}
            rows = [
                f"{name}: {reasons[name].splitlines()[-1][:300]}" if reasons.get(name) else name
                for name in stage.facts.get("known_bad", ())[:20]
            ]
            raise KernelError(
                "kernels-known-bad",
                f"{bad} kernels of {stage.planned.image} did not compile and are marked as known bad",
                why="\n".join(rows),
                fix="use the image, which lists these kernels, or omit --keep-going to make the build fail instead",
            )


def _show(request: Request, target: str, built: list[Built]) -> None:
    wanted = published(target)
    records = [read_record(request.cache, stage.input_digest) for stage in built if stage.planned.name in wanted]
    names = names_of(request.cache, records)
    if request.json:
        console.data(
            {
                "stages": [
                    {
                        "name": stage.planned.name,
                        "image": stage.planned.image,
                        "input_digest": stage.input_digest,
                        "reused": stage.reused,
                        **({"taken_from": stage.taken_from} if stage.taken_from else {}),
                        "manifest": stage.manifest,
                        "facts": dict(stage.facts),
                    }
                    for stage in built
                ],
                "publish": names,
            }
        )
        return
    for stage in built:
        size = console.size(float(stage.facts.get("blob_bytes", 0)))
        how = f"taken from {stage.taken_from}" if stage.taken_from else "already here" if stage.reused else "built"
        console.text(stage.planned.image, stage.manifest, size, how)
    if names:
        where = [] if request.cache == Cache(default_cache()) else ["--cache", str(request.cache.root)]
        console.note(f"to see a report: {shlex.join(['toolchain', 'report', names[-1], *where])}")
        console.note(f"to publish: {shlex.join(['toolchain', 'publish', 'DEST', *names, *where])}")
