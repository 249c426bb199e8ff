"""`publish`, `verify` and `inspect`: images where they go and where they are."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.errors import ConfigError, UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, parse

DestArg = Annotated[str | None, typer.Argument(help="oci:DIR or REGISTRY/NS.", show_default=False)]
StageOpt = Annotated[str, typer.Option("--stage", help="base, llvm, triton, kernels, aotriton or all.")]
RefArg = Annotated[str, typer.Argument(help="oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|@DIGEST].")]


def publish(
    dest: DestArg = None,
    to: Annotated[str | None, typer.Option("--dest", envvar="TOOLCHAIN_DEST", help="Instead of the argument.")] = None,
    stage: StageOpt = "all",
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
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Publish finished images, children first, each read back and compared."""
    from toolchain.delivery import deliver  # noqa: PLC0415 - brings the registry client in

    where = dest or to
    if not where:
        raise ConfigError("no destination", fix="toolchain publish oci:DIR, or REGISTRY/NS")
    request = o.make_request(
        cache=cache, base=base, arch=arch, source=source, patch=patch, gpu=gpu, compression=compression,
        triton=triton, aotriton=aotriton, select=select, limit=limit, keep_going=keep_going, only=only,
        kernel_timeout=kernel_timeout, allow_binary=allow_binary, drop_binary=drop_binary, python=python, json=json_,
    )  # fmt: skip
    done = deliver(request, stage, parse(where))
    if json_:
        console.data({"published": [one.as_json() for one in done]})
        return
    for one in done:
        sent = f"{console.size(one.pushed_bytes)} sent, {console.size(one.skipped_bytes)} already there"
        console.text(f"{one.refs[0]}\t{one.digest}\t{sent}")


def verify(ref: RefArg, json_: o.JsonOpt = False) -> None:
    """Hash every blob of an image, unpack its layers and compare them with what the image says of itself."""
    from toolchain.oci.check import verify_layout  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="toolchain-verify-") as scratch:
        layout, found = _have(ref, Path(scratch))
        rows: list[dict[str, Any]] = []
        for name, descriptor in found.items():
            problems = verify_layout(layout, descriptor)
            rows.append({"ref": name, "digest": descriptor.digest, "problems": problems})
    if json_:
        console.data({"images": rows, "ok": not any(row["problems"] for row in rows)})
    for row in rows:
        if not json_:
            console.text(f"{row['ref']}\t{row['digest']}\t{'ok' if not row['problems'] else 'NOT ok'}")
    bad = [row for row in rows if row["problems"]]
    if bad:
        raise UntrustedError(f"{bad[0]['ref']}: {bad[0]['problems'][0]}", fix="do not use it; fetch or build it again")


def inspect(ref: RefArg, json_: o.JsonOpt = False) -> None:
    """Show what an image holds."""
    with tempfile.TemporaryDirectory(prefix="toolchain-inspect-") as scratch:
        layout, found = _have(ref, Path(scratch))
        rows = [_describe(layout, name, descriptor) for name, descriptor in found.items()]
    if json_:
        console.data({"images": rows})
        return
    for row in rows:
        console.text(f"{row['ref']}  {row['digest']}")
        for image in row["images"]:
            console.text(f"  {image['platform']}  {image['digest']}")
            for key, value in sorted(image["labels"].items()):
                console.text(f"    {key} = {value}")
            for layer in image["layers"]:
                console.text(f"    layer {layer['digest']}  {console.size(layer['size'])}  {layer['mediaType']}")


def _have(ref: str, scratch: Path) -> tuple[Layout, dict[str, Descriptor]]:
    """The layout that holds `ref`, fetched from its registry if it is in one."""
    target = parse(ref)
    if isinstance(target, LayoutRef):
        layout = Layout(target.path)
        if target.tag or target.digest:
            return layout, {str(target): layout.resolve(target.tag or target.digest or "")}
        refs = layout.refs()
        if not refs:
            raise ConfigError(f"{ref} holds no image", fix="publish one there first")
        return layout, dict(refs)
    from toolchain.oci.publish import fetch_image  # noqa: PLC0415

    layout = Layout(scratch / "layout").ensure()
    return layout, {str(target): fetch_image(target, layout)}


def _describe(layout: Layout, name: str, descriptor: Descriptor) -> dict[str, Any]:
    images = []
    for one in layout.walk(descriptor) if descriptor.media_type in media.MANIFESTS else ():
        if one.media_type not in media.IMAGES:
            continue
        config, *layers = layout.children(one)
        value = layout.read_json(config)
        images.append(
            {
                "digest": one.digest,
                "platform": f"{value.get('os')}/{value.get('architecture')}",
                "labels": (value.get("config") or {}).get("Labels") or {},
                "layers": [layer.as_json() for layer in layers],
            }
        )
    return {"ref": name, "digest": descriptor.digest, "images": images}
