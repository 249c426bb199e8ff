"""`reproduce`: build a finished image again, and say whether it came out the same."""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain import console
from toolchain.build.reproduce import Reproduced, reproduce, require_whole
from toolchain.catalog import stages
from toolchain.cli import options as o
from toolchain.cli.request import with_request
from toolchain.errors import NotReproducedError, UnsupportedError
from toolchain.request import Request

RefArg = Annotated[
    str | None,
    typer.Argument(
        help="oci:DIR:TAG or REGISTRY/NS/NAME[:TAG|@DIGEST]; the one built here otherwise.", show_default=False
    ),
]
_WITHOUT = (*stages.of_packages(), stages.ALL)
StageOpt = Annotated[str, typer.Option("--stage", help=stages.choice(*_WITHOUT), autocompletion=o.stage(*_WITHOUT))]
_LISTED = 20


@with_request("offline", "contract")
def reproduce_image(ref: RefArg = None, stage: StageOpt = "llvm", *, request: Request) -> None:
    """Build an image again from a clean tree, with the options it was built with, and compare the bytes."""
    again = [shlex.quote(word) for word in ("toolchain", *sys.argv[1:])]
    with tempfile.TemporaryDirectory(prefix="toolchain-reproduce-") as scratch:
        expected = _expected(ref, Path(scratch), request.arch[0]) if ref is not None else None
        # The bytes are compared; what is below may have been built without a contract check, and so may this.
        found = reproduce(replace(request, offline=True, contract=False), stage, expected, command=again)
    if request.json:
        console.data(found.as_json())
    else:
        _tell(found)
    if not found.equal:
        raise NotReproducedError(
            f"{found.image} did not come out the same",
            why="\n".join(str(one) for one in found.differing[:_LISTED]) or "the files are the same, their headers not",
            fix="compare the tools that built both; with diffoscope installed the first difference is explained",
        )


def _expected(ref: str, scratch: Path, arch: str) -> dict[str, Any]:
    """The image to compare with, as `reproduce.reproduce` takes it; its blobs lie below `scratch` or in its layout."""
    from toolchain.oci import descriptor as media  # noqa: PLC0415
    from toolchain.oci.image import diff_ids_of, labels_of  # noqa: PLC0415
    from toolchain.oci.labels import INPUT_DIGEST  # noqa: PLC0415
    from toolchain.oci.place import open_place  # noqa: PLC0415 - the registry client
    from toolchain.oci.reference import parse  # noqa: PLC0415

    with open_place(parse(ref)) as place:
        layout, found = place.images(scratch)
    if len(found) != 1:
        raise UnsupportedError(f"{ref} names {len(found)} images", fix="name one: oci:DIR:TAG")
    descriptor = found[0].image
    images = [one for one in layout.walk(descriptor) if one.media_type in media.IMAGES]
    configs = [(image, layout.read_json(layout.children(image)[0])) for image in images]
    chosen = [(one, content) for one, content in configs if len(images) == 1 or content.get("architecture") == arch]
    if len(chosen) != 1:
        raise UnsupportedError(f"{ref} holds {len(images)} images, {len(chosen)} for {arch}", fix="name one: --arch")
    ((manifest, content),) = chosen
    require_whole(layout, manifest, ref)
    layers, diff_ids = layout.children(manifest)[1:], diff_ids_of(content)
    if not layers or len(layers) != len(diff_ids):
        raise UnsupportedError(
            f"{ref} holds no image of this tool",
            why=f"{len(layers)} layers, {len(diff_ids)} named",
            fix="name an image that `toolchain publish` or `toolchain build` made",
        )
    return {
        "image": ref,
        "input_digest": labels_of(content).get(INPUT_DIGEST, ""),
        "diff_id": diff_ids[-1],
        "blob": layers[-1].digest,
        "index": descriptor.digest if descriptor.media_type == media.INDEX and len(images) == 1 else "",
        "media_type": layers[-1].media_type,
        "path": layout.blob(layers[-1].digest),
    }


def _tell(found: Reproduced) -> None:
    if found.equal:
        same = "the same blob" if found.blobs[0] == found.blobs[1] else "compressed otherwise"
        console.text(found.image, "equal", found.diff_ids[0], same)
        return
    console.text(found.image, "NOT equal", found.diff_ids[0], found.diff_ids[1])
    for line in found.explained:
        console.note(line)
