"""The verbs `publish`, which publishes images, and `keygen`, which generates a key pair to sign them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.cli import options as o
from toolchain.cli.images_cmd import is_image_name
from toolchain.cli.parsing import COMMAND_LINE, source_of
from toolchain.cli.transfers import amounts_told
from toolchain.core import console
from toolchain.core.cache import Cache, cache_of
from toolchain.core.errors import ConfigError
from toolchain.core.locks import in_use
from toolchain.core.record import LOCAL_BUILDER, OTHER_BUILDER, Record
from toolchain.oci.reference import Target, parse, parse_place

if TYPE_CHECKING:
    from toolchain.publish.images import Delivered

WordsArg = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DEST IMAGE|REF",
        help="oci:DIR or REGISTRY/NS, then the images to publish, or references to copy.",
        show_default=False,
    ),
]
CompressionOpt = Annotated[str, o.typed(o.COMPRESSION)]
KeyOpt = Annotated[Path | None, o.typed(o.KEY)]
KeylessOpt = Annotated[bool, o.typed(o.KEYLESS)]
BundlesOpt = Annotated[bool, o.typed(o.BUNDLES)]
FilesOpt = Annotated[bool, o.typed(o.FILES)]


def publish(
    context: typer.Context,
    words: WordsArg = None,
    dest: Annotated[str | None, o.typed(o.DEST)] = None,
    compression: CompressionOpt = "gzip",
    key: KeyOpt = None,
    keyless: KeylessOpt = False,
    sigstore: o.SigstoreOpt = None,
    bundles: BundlesOpt = False,
    files: FilesOpt = False,
    builder_id: Annotated[
        str | None,
        typer.Option("--builder-id", metavar="URI", help="URI of the builder, for the provenance of own builds."),
    ] = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Push finished images, verify each, then attach its SBOM and, with --key or --keyless, signed provenance.

    Images with the same name form one index. IMAGE is a name that `toolchain images` lists, an input digest, or a
    unique prefix of either. REF is a published image: it is copied with all platforms and everything that is attached
    to it, and verified before and after.
    """
    from toolchain.pipeline.finished_images import named_images  # noqa: PLC0415 - `--help` does not need it
    from toolchain.publish.images import deliver  # noqa: PLC0415 - it imports the registry client
    from toolchain.publish.packing import packing  # noqa: PLC0415
    from toolchain.trust.keyless import Keyless  # noqa: PLC0415
    from toolchain.trust.keys import Signer, load_signer  # noqa: PLC0415
    from toolchain.trust.rebuilt import require_uri  # noqa: PLC0415

    if dest is not None and source_of(context, "dest") == COMMAND_LINE and words and not is_image_name(words[0]):
        what = f"--dest and the first argument {words[0]} exclude each other"
        raise ConfigError("options-exclude", what, why="both name a destination", fix="omit one of them")
    where, names = _places(words or [], dest)
    target, how = parse_place(where, "the destination"), packing(compression)
    if key is not None and keyless:
        raise ConfigError("options-exclude", "--key and --keyless exclude each other", fix="omit one of them")
    if bundles and key is None:
        raise ConfigError(
            "option-needs-option",
            "--bundles needs --key",
            why="--keyless always attaches Sigstore bundles",
            fix="add --key FILE",
        )
    signer = replace(load_signer(key), bundles=bundles) if key is not None else Keyless(sigstore) if keyless else None
    if builder_id is not None:
        require_uri(builder_id)
        if signer is None:
            raise ConfigError(
                "option-needs-option",
                "--builder-id needs --key or --keyless",
                why="it is part of the provenance, which is only attached if it is signed",
                fix="add --key FILE or --keyless",
            )
    key_id = signer.public.id if isinstance(signer, Signer) else ""
    home = cache_of(cache)
    if refs := [name for name in names if not is_image_name(name)]:
        if len(refs) < len(names) or signer is not None or files or compression != "gzip":
            raise ConfigError(
                "copy-with-options",
                "published images can only be copied unchanged",
                why="a copy keeps bytes and signatures, so it is not signed, recompressed or mixed with builds",
                fix=f"run: toolchain publish {where} {' '.join(refs)}",
            )
        _copy(home, refs, target, json_=json_)
        return
    with in_use(home), amounts_told():
        records = [_built_by(record, builder_id, key_id) for record in named_images(home, names)]
        done = deliver(home, records, target, compression=how, signer=signer, files=files)
    if signer is None:
        console.note("not signed: the SBOM is attached, provenance is not (--key FILE or --keyless)")
    if json_:
        console.data({"published": [delivered.as_json() for delivered in done]})
        return
    _tell(done)


def _built_by(record: Record, builder_id: str | None, key: str) -> Record:
    """Return the record with the builder that provenance signed with a key must name.

    For an image that was built here outside of a CI, it is the given builder if there is one. An image that came from a
    bundle, or from the local builder of a publisher with another key, has `OTHER_BUILDER`. Otherwise `verify
    --rebuilders` would count whoever publishes it again as a builder.

    Args:
        key: the id of the key; empty without a key.
    """
    builder, taken = record.tool.get("builder", OTHER_BUILDER), record.taken_from
    if builder == LOCAL_BUILDER and taken is None:
        builder = builder_id or builder
    elif builder == LOCAL_BUILDER and taken is not None and taken.key != key:
        builder = OTHER_BUILDER
    return replace(record, tool={**record.tool, "builder": builder})


def _copy(cache: Cache, refs: Sequence[str], dest: Target, *, json_: bool) -> None:
    from toolchain.publish.copying import copy_images  # noqa: PLC0415 - it imports the registry client

    with in_use(cache, make=True), amounts_told():
        copied = [row for ref in refs for row in copy_images(parse(ref), dest, cache.work)]
    if json_:
        console.data({"copied": [row.as_json() for row in copied]})
        return
    for row in copied:
        platforms = f"{row.platforms} platform{'' if row.platforms == 1 else 's'}"
        sent = f"{console.size(row.pushed_bytes)} sent, {console.size(row.skipped_bytes)} already there"
        console.text(row.refs[0], row.digest, f"{platforms}, {row.attached} attached; {sent}")


def _places(words: list[str], dest: str | None) -> tuple[str, list[str]]:
    """Return the destination and the images, and raise a ConfigError if either is missing.

    The first word is the destination unless it is the name of an image; in that case the destination is `dest`.
    """
    if words and not is_image_name(words[0]):
        dest, words = words[0], words[1:]
    if not dest:
        raise ConfigError(
            "no-destination", "publish needs a destination", fix="run: toolchain publish oci:DIR|REGISTRY/NS IMAGE"
        )
    if not words:
        raise ConfigError(
            "no-image-named",
            "publish needs an image",
            fix=f"run: toolchain publish {dest} IMAGE; `toolchain images` lists the finished images",
        )
    return dest, words


def _tell(done: Sequence[Delivered]) -> None:
    for delivered in done:
        for pushed in (delivered, delivered.files):
            if pushed is not None:
                sent = f"{console.size(pushed.pushed_bytes)} sent, {console.size(pushed.skipped_bytes)} already there"
                console.text(pushed.refs[0], pushed.digest, sent)
    for delivered in done:
        for line in ("", f"to use {delivered.image}, paste into a Containerfile:", ""):
            console.note(line)
        for line in delivered.use.text():
            console.note(line)


def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Private key to write; the public key goes to FILE.pub.")
    ],
) -> None:
    """Generate a key pair for `publish --key`. The private key is encrypted if TOOLCHAIN_KEY_PASSPHRASE is set."""
    from toolchain.trust.keys import new_key  # noqa: PLC0415

    console.text(f"{path}.pub", f"{new_key(path).id}")
