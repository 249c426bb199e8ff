"""The verbs `images`, which lists finished images, and `inspect`, which shows the content of an image."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.cli.verify_cmd import took_too_long
from toolchain.core import console
from toolchain.core.cache import Cache, cache_of
from toolchain.core.deadline import LONGEST_CHECK, deadline
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import OTHER_SCHEMES, parse

if TYPE_CHECKING:
    from toolchain.oci.place import NamedImage
    from toolchain.publish.consumer import Use

_INSIDE = ("Triton", "LLVM", "GPUs", "Python")
IMAGE_HELP = "Name or input digest of a finished image (`toolchain images`), or a unique prefix of either."
InspectArg = Annotated[
    str,
    typer.Argument(
        metavar="IMAGE|REF",
        help=f"{IMAGE_HELP} Or oci:DIR[:TAG], REGISTRY/NS/NAME[:TAG|@DIGEST]; or a Triton wheel: FILE.whl,"
        " pypi:triton==VERSION.",
    ),
]


def is_image_name(text: str) -> bool:
    """Return whether an `IMAGE|REF` argument looks like an image's name or input digest, and not like a reference."""
    return "/" not in text and not text.startswith(("oci:", *OTHER_SCHEMES))


def images(cache: o.CacheOpt = None, json_: o.JsonOpt = False) -> None:
    """List finished images, newest first, with their contents and where they were published."""
    from toolchain.pipeline.finished_images import contents_of, finished_images, image_row, publications  # noqa: PLC0415
    from toolchain.pipeline.records import tell_unread  # noqa: PLC0415

    where = cache_of(cache)
    records = finished_images(where)
    if json_:
        console.data({"cache": str(where.root), "images": [image_row(where, record) for record in records]})
        return
    tell_unread(where)
    if not records:
        console.note(f"no finished image in {where.root}; `toolchain build STAGE` builds one")
        return
    from toolchain.cli.listing import Listing  # noqa: PLC0415 - `--json` does not need it

    rows = []
    for record in records:
        inside = dict(contents_of(where, record).rows())
        size = console.size(sum(int(layer.get("size", 0)) for layer in record.layers))
        published = "\n".join(publication.ref for publication in publications(where, record))
        digest = record.input_digest.removeprefix("sha256:")[:12]
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.finished or 0))
        cells = [record.image, digest, record.arch, size, when]
        rows.append([*cells, *(inside.get(name, "") for name in _INSIDE), record.partial, published])
    columns = ["image", "input digest", "arch", "size", "finished", *_INSIDE, "note", "published"]
    head = ("image", "input digest", "arch", "size", "finished")
    console.show(Listing(columns=columns, rows=rows, head=head, right=("size",)))


def inspect(
    image: InspectArg,
    use: Annotated[bool, typer.Option("--use", help="Print the Containerfile lines that use the image.")] = False,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Show what an image contains, or with --use the Containerfile lines that use it.

    For a Triton wheel, show the LLVMs in it, and exit with 4 if one of them is not the pinned one. Images and wheels
    that were not built by this tool can be inspected too.
    """
    if image.startswith("pypi:") or (image.endswith(".whl") and not image.startswith("oci:")):
        from toolchain.core.plugins import hook  # noqa: PLC0415 - only wheels need it

        hook("inspect_wheel", "`inspect` of a wheel")(image, cache_of(cache), use=use, json_=json_)
        return
    from toolchain.oci.places import open_place  # noqa: PLC0415 - it imports the registry client

    with tempfile.TemporaryDirectory(prefix="toolchain-inspect-") as scratch:
        if is_image_name(image):
            where = cache_of(cache)
            layout, named = Layout(where.images), _named_here(where, image)
            images: Sequence[NamedImage] = [image for image, _ in named]
            rows = [{**_describe(layout, image.name, image.image), "build": made} for image, made in named]
        else:
            with (
                deadline(LONGEST_CHECK, lambda: took_too_long(image, LONGEST_CHECK)),
                open_place(parse(image)) as place,
            ):
                layout, images = place.images(Path(scratch))
                names = _names(images)
                images = [image for image in images if names[image.image.digest][0] == image.name]
                rows = [
                    {
                        **_describe(layout, image.name, image.image),
                        "also": names[image.image.digest][1:],
                        "attached": [
                            {
                                "type": one.annotations.get(media.PREDICATE_TYPE) or one.artifact_type,
                                "digest": one.digest,
                            }
                            for one in place.referrers(image.image.digest)
                        ],
                    }
                    for image in images
                ]
        uses = _uses(layout, images) if use else []
    if json_:
        documents = [{**row, **({"use": uses[at].as_json()} if use else {})} for at, row in enumerate(rows)]
        console.data({"images": documents})
        return
    for entry in uses:
        for line in entry.text():
            console.text(line)
    if use:
        return
    for row in rows:
        _tell(row)


def _names(images: Sequence[NamedImage]) -> dict[str, list[str]]:
    """Return the names of each image, by the image's digest; an image with several tags has several names."""
    names: dict[str, list[str]] = {}
    for image in images:
        names.setdefault(image.image.digest, []).append(image.name)
    return names


def _named_here(cache: Cache, name: str) -> list[tuple[NamedImage, dict[str, Any]]]:
    """Return the finished images that an `IMAGE` argument names, each with its row in `images --json`."""
    from toolchain.oci.place import NamedImage  # noqa: PLC0415
    from toolchain.oci.reference import LayoutRef  # noqa: PLC0415
    from toolchain.pipeline.finished_images import full_name, image_row, named_images  # noqa: PLC0415

    images = []
    for record in named_images(cache, [name]):
        manifest = Layout(cache.images).resolve(record.manifest)
        named = NamedImage(full_name(record), LayoutRef(cache.images, tag=full_name(record)), manifest)
        images.append((named, dict(image_row(cache, record))))
    return images


def _tell(row: dict[str, Any]) -> None:
    console.text(f"{', '.join((row['ref'], *row.get('also', ())))}  {row['digest']}")
    for file in row["files"]:
        console.text(f"  {file['file']}  {file['digest']}  {console.size(file['bytes'])}  {file['media_type']}")
    for image in row["images"]:
        console.text(f"  {image['platform']}  {image['digest']}")
        for key, value in sorted(image["labels"].items()):
            console.text(f"    {key} = {value}")
        for layer in image["layers"]:
            console.text(f"    layer {layer['digest']}  {console.size(layer['size'])}  {layer['mediaType']}")
    if attached := Counter(one["type"] or "artifact" for one in row.get("attached", ())):
        kinds = ", ".join(kind if count == 1 else f"{kind} ({count})" for kind, count in sorted(attached.items()))
        console.text(f"  attached, not verified: {kinds}")
    if numbers := row.get("build", {}).get("numbers"):
        console.text(f"  numbers: {numbers}")
    for place in row.get("build", {}).get("published", ()):
        console.text(f"  published {place['when']}  {place['ref']}  {place['digest']}")


def _uses(layout: Layout, images: Sequence[NamedImage]) -> list[Use]:
    from toolchain.publish.consumer import use_of  # noqa: PLC0415 - only --use needs it

    return [use_of(layout, image.image, image.ref) for image in images]


def _describe(layout: Layout, name: str, descriptor: Descriptor) -> dict[str, Any]:
    from toolchain.oci.files import are_files, read_files  # noqa: PLC0415
    from toolchain.oci.image import labels_of  # noqa: PLC0415

    if descriptor.media_type in media.IMAGES and are_files(value := layout.read_json(descriptor)):
        files = [file.as_json() for file in read_files(value, descriptor)]
        return {"ref": name, "digest": descriptor.digest, "images": [], "files": files}
    images = []
    for manifest in layout.images_below(descriptor):
        config, *layers = layout.children(manifest)
        value = layout.read_json(config)
        images.append(
            {
                "digest": manifest.digest,
                "platform": f"{value.get('os')}/{value.get('architecture')}",
                "labels": labels_of(value),
                "layers": [layer.as_json() for layer in layers],
            }
        )
    return {"ref": name, "digest": descriptor.digest, "images": images, "files": []}
