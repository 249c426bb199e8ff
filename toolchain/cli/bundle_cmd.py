"""The verbs `bundle export` and `bundle import`, which move the inputs of a build to a machine without a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain.catalog import stages
from toolchain.cli import options as o
from toolchain.cli.build_options import HOW, with_request
from toolchain.cli.images_cmd import IMAGE_HELP
from toolchain.cli.transfers import amounts_told
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.locks import in_use
from toolchain.oci.reference import parse
from toolchain.pipeline.lockfile import DEFAULT
from toolchain.request.model import Request

DestArg = Annotated[str, typer.Argument(help="oci:DIR[:TAG] or REGISTRY/NS/NAME:TAG.", show_default=False)]
RefArg = Annotated[str, typer.Argument(help="oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|@DIGEST].", show_default=False)]
StageArg = Annotated[
    str,
    typer.Argument(
        metavar="[STAGE|IMAGE]",
        help=f"{stages.choice()} Or a finished image, whose recorded options are used: {IMAGE_HELP}",
        autocompletion=o.complete_stage,
    ),
]
OutOpt = Annotated[
    Path,
    o.of_request("lock-file", help="Lock file that must list every entry; written if missing."),
]


def _asked(given: dict[str, Any], chosen: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the stage and the recorded options of the image that the user names; None if the user names a stage.

    In `given`, the name of the image is replaced by its stage.
    """
    if given["stage"] in stages.targets():
        return None
    from toolchain.pipeline.original import given_options, of_architectures  # noqa: PLC0415 - it imports cryptography

    cache = cache_of(chosen["cache"])
    original = of_architectures(cache, given["stage"])
    given["stage"] = original.stage
    return original.stage, given_options(original, cache)


@with_request(*HOW, "contract", recorded=_asked)
def bundle_export(dest: DestArg, stage: StageArg = "all", *, request: Request) -> None:
    """Write sources, wheels, patches, the finished base and their lock as one OCI artifact. The base must be built."""
    from toolchain.bundle.export import export  # noqa: PLC0415 - it imports the registry client

    with amounts_told():
        done = export(request, stage, parse(dest))
    if request.json:
        console.data(done.as_json())
        return
    for entry in done.entries:
        console.text(entry.kind, entry.name, entry.title, console.size(entry.blob.size))
    published = done.published
    sent = f"{console.size(published.pushed_bytes)} sent, {console.size(published.skipped_bytes)} already there"
    console.text(published.ref, ", ".join(published.tags), sent)


def bundle_import(
    ref: RefArg,
    lock_file: OutOpt = Path(DEFAULT),
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Fill the cache from a bundle and verify every digest. `build STAGE --offline --locked` then needs no network."""
    from toolchain.bundle.importer import import_bundle  # noqa: PLC0415 - it imports the registry client

    where = cache_of(cache)
    with in_use(where, make=True), amounts_told():
        done = import_bundle(parse(ref), where, lock_file)
    if json_:
        console.data(done.as_json())
        return
    for taken in done.taken:
        entry, state = taken.entry, "imported" if taken.new else "already here"
        console.text(entry.kind, entry.name, entry.title, entry.blob.digest, console.size(entry.blob.size), state)
    console.note(f"next: {' '.join(done.command)}")
