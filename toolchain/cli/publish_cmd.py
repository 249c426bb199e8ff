"""`publish`, and `keygen` for it: images where they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.cli.config_file import COMPRESSION, DEST, KEY
from toolchain.cli.images_cmd import cache_of, is_image_name
from toolchain.errors import ConfigError
from toolchain.locks import in_use
from toolchain.oci.reference import parse

if TYPE_CHECKING:
    from toolchain.publish.images import Delivered

WordsArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="DEST IMAGE", help="oci:DIR or REGISTRY/NS; then what goes there.", show_default=False),
]
CompressionOpt = Annotated[str, o.typed(COMPRESSION)]
KeyOpt = Annotated[Path | None, o.typed(KEY)]
KeylessOpt = Annotated[
    bool,
    typer.Option("--keyless", envvar="TOOLCHAIN_KEYLESS", help="Sign as this CI job, by OIDC and Sigstore."),
]
BundlesOpt = Annotated[
    bool,
    typer.Option("--bundles", envvar="TOOLCHAIN_BUNDLES", help="With --key, Sigstore bundles too (docs/verifiers.md)."),
]
FilesOpt = Annotated[
    bool,
    typer.Option(
        "--files", envvar="TOOLCHAIN_FILES", help="Archives, wheels and reports too, as OCI artifacts (docs/files.md)."
    ),
]
SigstoreOpt = Annotated[
    Path | None,
    typer.Option(
        "--sigstore", envvar="TOOLCHAIN_SIGSTORE", help="Trust config of a Sigstore of your own; else the public one."
    ),
]


def publish(
    words: WordsArg = None,
    # Called as in toolchain.toml: the file gives the option its default, which everything else overrules.
    dest: Annotated[str | None, o.typed(DEST, help="Where to, instead of the first argument.")] = None,
    compression: CompressionOpt = "gzip",
    key: KeyOpt = None,
    keyless: KeylessOpt = False,
    sigstore: SigstoreOpt = None,
    bundles: BundlesOpt = False,
    files: FilesOpt = False,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Push finished images, those of one name as one index, and verify each; then attach SBOM and provenance.

    An IMAGE is a name that `toolchain images` lists, an input digest, or a unique beginning of one.
    """
    from toolchain.build.images import named_images  # noqa: PLC0415 - brings cryptography in
    from toolchain.publish.images import deliver  # noqa: PLC0415 - brings the registry client in
    from toolchain.publish.packing import packing  # noqa: PLC0415
    from toolchain.trust.keyless import Keyless  # noqa: PLC0415
    from toolchain.trust.keys import load_signer  # noqa: PLC0415

    where, names = _places(words or [], dest)
    target, how = parse(where), packing(compression)
    if key is not None and keyless:
        raise ConfigError("--key and --keyless exclude each other", fix="leave one of them out")
    if bundles and key is None:
        raise ConfigError(
            "--bundles needs --key", why="what --keyless signs lies in bundles anyway", fix="add --key FILE"
        )
    signer = replace(load_signer(key), bundles=bundles) if key is not None else Keyless(sigstore) if keyless else None
    home = cache_of(cache)
    with in_use(home):
        done = deliver(home, named_images(home, names), target, compression=how, signer=signer, files=files)
    if signer is None:
        console.note("not signed: the SBOM is attached, a provenance is not (--key FILE or --keyless)")
    if json_:
        console.data({"published": [one.as_json() for one in done]})
        return
    _tell(done)


def _places(words: list[str], dest: str | None) -> tuple[str, list[str]]:
    """Where to publish, and the names of what. The first word is the place where it looks like one.

    Raises:
        ConfigError: no place, or no name.
    """
    if words and not is_image_name(words[0]):
        dest, words = words[0], words[1:]
    if not dest:
        raise ConfigError("publish has no destination", fix="toolchain publish oci:DIR IMAGE, or REGISTRY/NS IMAGE")
    if not words:
        raise ConfigError(
            "publish names no image", fix=f"toolchain publish {dest} IMAGE; `toolchain images` lists what is finished"
        )
    return dest, words


def _tell(done: Sequence[Delivered]) -> None:
    for one in done:
        sent = f"{console.size(one.pushed_bytes)} sent, {console.size(one.skipped_bytes)} already there"
        console.text(one.refs[0], one.digest, sent)
        if one.files is not None:
            sent = f"{console.size(one.files.pushed_bytes)} sent, {console.size(one.files.skipped_bytes)} already there"
            console.text(one.files.refs[0], one.files.digest, sent)
    for one in done:
        for line in ("", f"to use {one.image}, paste into a Containerfile:", ""):
            console.note(line)
        for line in one.use.text():
            console.note(line)


def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the private key goes; the public one is FILE.pub.")
    ],
) -> None:
    """Make a key for `publish --key`. With TOOLCHAIN_KEY_PASSPHRASE set it is encrypted."""
    from toolchain.trust.keys import new_key  # noqa: PLC0415

    console.text(f"{path}.pub", f"{new_key(path).id}")
