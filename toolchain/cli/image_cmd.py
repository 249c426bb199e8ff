"""`publish`, `verify` and `inspect`: images where they go and where they are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain import console
from toolchain.catalog import stages
from toolchain.cli import options as o
from toolchain.cli.config_file import COMPRESSION, DEST, KEY, PUBLIC_KEY, SOURCE_REPO
from toolchain.cli.request import with_request
from toolchain.deadline import LONGEST_CHECK, deadline
from toolchain.errors import ConfigError, DigestError, UnreachableError, UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import parse
from toolchain.request import Request

if TYPE_CHECKING:
    from toolchain.oci.place import NamedImage
    from toolchain.publish.consumer import Use
    from toolchain.publish.images import Delivered

_WORDS = {"trusted": "trusted", "intact": "intact, not authenticated (no --public-key)", "untrusted": "NOT ok"}
_DO_NOT = "do not use it; fetch or build it again"
DestArg = Annotated[str | None, typer.Argument(metavar="DEST", help="oci:DIR or REGISTRY/NS.", show_default=False)]
StageOpt = Annotated[str, typer.Option("--stage", help=stages.choice(), autocompletion=o.stage())]
CompressionOpt = Annotated[str, o.typed(COMPRESSION)]
KeyOpt = Annotated[Path | None, o.typed(KEY)]
PublicKeyOpt = Annotated[Path | None, o.typed(PUBLIC_KEY, "--key", help="Key in PEM whose signature counts.")]
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
IdentityOpt = Annotated[
    str | None,
    typer.Option(
        "--identity",
        envvar="TOOLCHAIN_IDENTITY",
        help="Who must have signed, as the certificate names it; in place of --public-key.",
    ),
]
IssuerOpt = Annotated[
    str | None, typer.Option("--issuer", envvar="TOOLCHAIN_ISSUER", help="Who vouches for --identity, a URL.")
]
RepoOpt = Annotated[list[str] | None, o.typed(SOURCE_REPO, help="Every source must come from here; again for each.")]
RefArg = Annotated[str, typer.Argument(help="oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|@DIGEST].")]
InspectArg = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|@DIGEST]; a Triton wheel: FILE.whl or pypi:triton==VERSION.",
    ),
]


@with_request("jobs", "offline", "contract")
def publish(
    where: DestArg = None,
    # Called as in toolchain.toml: the file gives the option its default, which everything else overrules.
    dest: Annotated[str | None, o.typed(DEST, help="Instead of the argument.")] = None,
    stage: StageOpt = "all",
    compression: CompressionOpt = "gzip",
    key: KeyOpt = None,
    keyless: KeylessOpt = False,
    sigstore: SigstoreOpt = None,
    bundles: BundlesOpt = False,
    files: FilesOpt = False,
    *,
    request: Request,
) -> None:
    """Push images, then the index, and verify each; then attach SBOM and provenance."""
    from toolchain.publish.images import deliver  # noqa: PLC0415 - brings the registry client in
    from toolchain.publish.packing import packing  # noqa: PLC0415
    from toolchain.trust.keyless import Keyless  # noqa: PLC0415
    from toolchain.trust.keys import load_signer  # noqa: PLC0415

    where = where or dest
    if not where:
        raise ConfigError("publish has no destination", fix="toolchain publish oci:DIR, or REGISTRY/NS")
    target = parse(where)
    if key is not None and keyless:
        raise ConfigError("--key and --keyless exclude each other", fix="leave one of them out")
    if bundles and key is None:
        raise ConfigError(
            "--bundles needs --key", why="what --keyless signs lies in bundles anyway", fix="add --key FILE"
        )
    signer = replace(load_signer(key), bundles=bundles) if key is not None else Keyless(sigstore) if keyless else None
    done = deliver(request, stage, target, compression=packing(compression), signer=signer, files=files)
    if signer is None:
        console.note("not signed: the SBOM is attached, a provenance is not (--key FILE or --keyless)")
    if request.json:
        console.data({"published": [one.as_json() for one in done]})
        return
    _tell(done)


def _tell(done: Sequence[Delivered]) -> None:
    for one in done:
        sent = f"{console.size(one.pushed_bytes)} sent, {console.size(one.skipped_bytes)} already there"
        console.text(f"{one.refs[0]}\t{one.digest}\t{sent}")
        if one.files is not None:
            sent = f"{console.size(one.files.pushed_bytes)} sent, {console.size(one.files.skipped_bytes)} already there"
            console.text(f"{one.files.refs[0]}\t{one.files.digest}\t{sent}")
    for one in done:
        console.note(f"\nto use {one.image}, paste into a Containerfile:\n")
        for line in one.use.text():
            console.note(line)


def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the private key goes; the public one is FILE.pub.")
    ],
) -> None:
    """Make a key for `publish --key`. With TOOLCHAIN_KEY_PASSPHRASE set it is encrypted."""
    from toolchain.trust.keys import new_key  # noqa: PLC0415

    console.text(f"{path}.pub\t{new_key(path).id}")


def verify(
    ref: RefArg,
    public_key: PublicKeyOpt = None,
    identity: IdentityOpt = None,
    issuer: IssuerOpt = None,
    sigstore: SigstoreOpt = None,
    source_repo: RepoOpt = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            envvar="TOOLCHAIN_POLICY",
            help="`source-only`: nothing prebuilt but what --allow-binary names.",
        ),
    ] = None,
    allow_binary: o.AllowBinaryOpt = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0, help="Age limit, in days since the build ended.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="NAME", help="What the provenance must call the image.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that all of it may take; the answer is then 18.")
    ] = LONGEST_CHECK,
    json_: o.JsonOpt = False,
) -> None:
    """Say whether an image is what it must be: bytes, signature, provenance, SBOM, policy; the first fault counts."""
    from toolchain.oci.place import open_place  # noqa: PLC0415 - the registry client
    from toolchain.trust import verify as trust  # noqa: PLC0415 - cryptography
    from toolchain.trust.invocation import invocation  # noqa: PLC0415
    from toolchain.trust.keyless import Identity, require  # noqa: PLC0415
    from toolchain.trust.keys import PublicKey, load_public  # noqa: PLC0415
    from toolchain.trust.policy import make_policy, named  # noqa: PLC0415

    demands = make_policy(
        policy, allow=allow_binary or (), source_repos=source_repo or (), max_age=max_age, image=image
    )
    if (identity is None) != (issuer is None) or (identity is not None and public_key is not None):
        raise ConfigError(
            "--identity and --issuer belong together, and --public-key is instead of them",
            why="a name means something only by who vouches for it",
            fix="e.g. --issuer https://token.actions.githubusercontent.com",
        )
    if public_key is None and identity is None and not demands.empty:
        raise ConfigError(
            "without --public-key nothing can be said about sources, age, policy or name",
            why="they stand in statements that count only when signed",
            fix="give the publisher's public key: --public-key FILE, or --identity and --issuer",
        )
    public: PublicKey | Identity | None = load_public(public_key) if public_key is not None else None
    if identity is not None and issuer is not None:
        require()
        public = Identity(identity, issuer, sigstore)
    with (
        tempfile.TemporaryDirectory(prefix="toolchain-verify-") as scratch,
        deadline(timeout, lambda: _took_too_long(ref, timeout)),
        open_place(parse(ref)) as place,
    ):
        try:
            layout, found = place.images(Path(scratch))
        except DigestError as error:
            raise UntrustedError(f"{ref}: digests: {error.what}", why=error.why, fix=_DO_NOT) from error
        rows = []
        for one in found:
            row = trust.verify(place, layout, one.image, key=public, demands=demands)
            row.ref = one.name
            rows.append(row)
    if json_:
        console.data({"images": [row.as_json() for row in rows], "ok": not any(row.problems for row in rows)})
    for row in rows:
        if not json_:
            what = f"\t{named(row.provenance)}" if row.provenance is not None else ""
            console.text(f"{row.ref}\t{row.digest}\t{_WORDS[row.verdict]}{what}")
            if row.provenance is not None and (command := invocation(row.provenance)):
                console.note(f"it, or its part for one architecture, was asked for by: {command}")
    bad = next((row for row in rows if row.problems), None)
    if bad is not None:
        raise UntrustedError(f"{bad.ref}: {bad.problems[0]}", fix=_DO_NOT)


def _took_too_long(ref: str, seconds: float) -> UnreachableError:
    return UnreachableError(
        f"{ref} could not be checked within {seconds:g} s",
        why="the registry may be slow or hold it back; that says nothing about the image",
        fix="try again later, or give it longer: verify --timeout SECONDS",
    )


def inspect(
    ref: InspectArg,
    use: Annotated[
        bool, typer.Option("--use", help="Print the lines of a Containerfile that take what it holds.")
    ] = False,
    json_: o.JsonOpt = False,
) -> None:
    """Show what an image holds, or with `--use` the lines to paste for it; of a Triton wheel, which LLVMs are in it.

    The image or wheel may be anybody's. A wheel whose LLVM is not the pinned one ends with 4.
    """
    if ref.startswith("pypi:") or (ref.endswith(".whl") and not ref.startswith("oci:")):
        from toolchain.cli.wheel_view import inspect_wheel  # noqa: PLC0415 - what reads wheels and asks the index

        inspect_wheel(ref, use=use, json_=json_)
        return
    from toolchain.oci.place import open_place  # noqa: PLC0415 - the registry client

    with (
        tempfile.TemporaryDirectory(prefix="toolchain-inspect-") as scratch,
        deadline(LONGEST_CHECK, lambda: _took_too_long(ref, LONGEST_CHECK)),
        open_place(parse(ref)) as place,
    ):
        layout, found = place.images(Path(scratch))
        rows = [_describe(layout, one.name, one.image) for one in found]
        uses = _uses(layout, found) if use else []
    if json_:
        documents = [{**row, **({"use": uses[at].as_json()} if use else {})} for at, row in enumerate(rows)]
        console.data({"images": documents})
        return
    for one in uses:
        for line in one.text():
            console.text(line)
    if use:
        return
    for row in rows:
        console.text(f"{row['ref']}  {row['digest']}")
        for file in row["files"]:
            console.text(f"  {file['file']}  {file['digest']}  {console.size(file['bytes'])}  {file['media_type']}")
        for image in row["images"]:
            console.text(f"  {image['platform']}  {image['digest']}")
            for key, value in sorted(image["labels"].items()):
                console.text(f"    {key} = {value}")
            for layer in image["layers"]:
                console.text(f"    layer {layer['digest']}  {console.size(layer['size'])}  {layer['mediaType']}")


def _uses(layout: Layout, found: Sequence[NamedImage]) -> list[Use]:
    from toolchain.publish.consumer import use_of  # noqa: PLC0415 - reads layers

    return [use_of(layout, one.image, one.ref) for one in found]


def _describe(layout: Layout, name: str, descriptor: Descriptor) -> dict[str, Any]:
    from toolchain.oci.files import are_files, read_files  # noqa: PLC0415
    from toolchain.oci.image import labels_of  # noqa: PLC0415

    if descriptor.media_type in media.IMAGES and are_files(value := layout.read_json(descriptor)):
        files = [one.as_json() for one in read_files(value, descriptor)]
        return {"ref": name, "digest": descriptor.digest, "images": [], "files": files}
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
                "labels": labels_of(value),
                "layers": [layer.as_json() for layer in layers],
            }
        )
    return {"ref": name, "digest": descriptor.digest, "images": images, "files": []}
