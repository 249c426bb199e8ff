"""The verb `verify`, which checks an image's bytes, signature, provenance, SBOM and policy."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.deadline import LONGEST_CHECK, deadline
from toolchain.core.digest import canonical, clear_output, require_output, write_output
from toolchain.core.errors import ConfigError, DigestError, DocumentError, UnreachableError, UntrustedError
from toolchain.oci.reference import parse

if TYPE_CHECKING:
    from toolchain.oci.layout import Layout
    from toolchain.oci.place import NamedImage, Place
    from toolchain.trust.contents import Contents
    from toolchain.trust.rebuilt import Builder
    from toolchain.trust.verify import Verdict

_WORDS = {"trusted": "trusted", "intact": "intact, not authenticated (no --public-key)", "untrusted": "NOT ok"}
_DO_NOT = "do not use it; fetch or build it again"
PublicKeyOpt = Annotated[Path | None, o.typed(o.PUBLIC_KEY)]
IdentityOpt = Annotated[str | None, o.typed(o.IDENTITY)]
IssuerOpt = Annotated[str | None, o.typed(o.ISSUER)]
RepoOpt = Annotated[list[str] | None, o.typed(o.SOURCE_REPO)]
PolicyOpt = Annotated[str | None, o.typed(o.POLICY)]
RefArg = Annotated[str, typer.Argument(help="oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|@DIGEST].")]


def verify(
    ref: RefArg,
    public_key: PublicKeyOpt = None,
    identity: IdentityOpt = None,
    issuer: IssuerOpt = None,
    sigstore: o.SigstoreOpt = None,
    source_repo: RepoOpt = None,
    policy: PolicyOpt = None,
    allow_binary: o.AllowBinaryOpt = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0, help="Maximum age of the build, in days.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="NAME", help="Image name that the provenance must have.")
    ] = None,
    rebuilders: Annotated[
        int | None,
        typer.Option(
            "--rebuilders", min=1, help="Number of independent --builders that must have built the same bytes."
        ),
    ] = None,
    builders: Annotated[
        Path | None,
        typer.Option("--builders", metavar="FILE", help="List (TOML) of builders with id, signer, operator."),
    ] = None,
    vsa: Annotated[
        Path | None,
        typer.Option("--vsa", metavar="FILE", help="Write the result as an unsigned SLSA verification summary."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Time limit for the whole check, in seconds (exit code 18).")
    ] = LONGEST_CHECK,
    json_: o.JsonOpt = False,
) -> None:
    """Verify an image: bytes, signature, provenance, SBOM and policy. Each image is checked until a check fails."""
    from toolchain.oci.places import open_place  # noqa: PLC0415 - it imports the registry client
    from toolchain.trust import verify as trust  # noqa: PLC0415 - it imports cryptography
    from toolchain.trust.keyless import Identity, require  # noqa: PLC0415
    from toolchain.trust.keys import PublicKey, load_public  # noqa: PLC0415
    from toolchain.trust.policy import make_policy  # noqa: PLC0415
    from toolchain.trust.rebuilt import Rebuilders, granted_level  # noqa: PLC0415

    if vsa is not None:
        clear_output(vsa, option="--vsa")  # the result of an earlier run must not remain if anything below fails
        require_output(vsa, option="--vsa", make_folder=True)
    demands = make_policy(
        policy, allow=allow_binary or (), source_repos=source_repo or (), max_age=max_age, image=image
    )
    if (identity is None) != (issuer is None) or (identity is not None and public_key is not None):
        raise ConfigError(
            "identity-needs-issuer",
            "--identity and --issuer need each other, and exclude --public-key",
            why="an identity is only meaningful together with its issuer",
            fix="add e.g. --issuer https://token.actions.githubusercontent.com",
        )
    if public_key is None and identity is None and not demands.empty:
        raise ConfigError(
            "checks-need-key",
            "sources, age, policy and name cannot be checked without --public-key",
            why="they are part of the provenance, which is trusted only if its signature is verified",
            fix="give the publisher's public key: --public-key FILE, or --identity and --issuer",
        )
    if vsa is not None and public_key is None and identity is None and rebuilders is None:
        raise ConfigError(
            "vsa-needs-signer",
            "--vsa needs --public-key, --identity or --rebuilders",
            why="a summary is only meaningful if the author of the image was checked",
            fix="add the publisher's key: --public-key FILE",
        )
    listed = _builders(rebuilders, builders, sigstore, vsa)
    again = Rebuilders(rebuilders, listed) if rebuilders is not None else None
    public: PublicKey | Identity | None = load_public(public_key) if public_key is not None else None
    if identity is not None and issuer is not None:
        require()
        public = Identity(identity, issuer, sigstore)
    with (
        tempfile.TemporaryDirectory(prefix="toolchain-verify-") as scratch,
        deadline(timeout, lambda: took_too_long(ref, timeout)),
        open_place(parse(ref)) as place,
    ):
        layout, images = _images_in(place, ref, Path(scratch))
        rows = []
        for named_image in images:
            row = trust.verify(place, layout, named_image.image, key=public, demands=demands, rebuilders=again)
            row.ref = named_image.name
            rows.append(row)
    if vsa is not None:
        wanted = {
            **asdict(demands),
            "signer": public.id if public is not None else None,
            "rebuilders": rebuilders or 0,
            "builders": [[row.id, row.signer.id, row.operator, row.level] for row in listed],
        }
        believed = [provenance for row in rows for provenance in row.believed]
        level = granted_level(listed, public, believed) if public is not None else 0
        _summarize(vsa, ref, rows, wanted, level=level)
    if json_:
        console.data({"images": [row.as_json() for row in rows], "ok": not any(row.problems for row in rows)})
    else:
        for row in rows:
            _print(row)
    bad = next((row for row in rows if row.problems), None)
    if bad is not None:
        raise UntrustedError(bad.id, f"{bad.ref}: {bad.problems[0]}", fix=bad.fix or _DO_NOT)


def _images_in(place: Place, ref: str, scratch: Path) -> tuple[Layout, list[NamedImage]]:
    """Return the images to verify; a note names each other artifact next to them, such as a bundle."""
    from toolchain.oci.layout_place import without_others  # noqa: PLC0415

    try:
        layout, named = place.images(scratch)
    except (DigestError, DocumentError) as error:
        raise UntrustedError("image-damaged", f"{ref}: digests: {error.what}", why=error.why, fix=_DO_NOT) from error
    images, others = without_others(layout, named)
    for other in others:
        console.note(f"not verified, because it is not an image: {other.ref}")
    return layout, images


def _print(row: Verdict) -> None:
    from toolchain.trust.contents import of_provenance  # noqa: PLC0415 - other verbs do not need it
    from toolchain.trust.policy import named, summary  # noqa: PLC0415

    build = [named(row.provenance)] if row.provenance is not None else []
    console.text(row.ref, row.digest, _WORDS[row.verdict], *build)
    if row.provenance is not None:
        _tell(summary(row.provenance), of_provenance(row.provenance))
    for name in ("numbers", "rebuilders"):
        if name in row.checks:
            console.note(f"  {name}: {row.checks[name]}")


def _summarize(path: Path, ref: str, rows: Sequence[Verdict], wanted: dict[str, Any], *, level: int) -> None:
    from toolchain.trust.vsa import statement  # noqa: PLC0415 - only `--vsa` needs it

    ok = not any(row.problems for row in rows)
    digests = [row.digest for row in rows]
    text = statement(ref, digests, wanted, ok=ok, level=level, rebuilders=wanted["rebuilders"])
    write_output(path, canonical(text), option="--vsa")


def _builders(needed: int | None, path: Path | None, sigstore: Path | None, vsa: Path | None) -> tuple[Builder, ...]:
    """Return the builders in the file that `--builders` names; an empty tuple if `path` and `needed` are None."""
    from toolchain.trust.rebuilt import read_builders  # noqa: PLC0415 - it imports cryptography

    if path is None and needed is not None:
        raise ConfigError(
            "option-needs-option", "--rebuilders needs --builders", fix="use e.g. --rebuilders 2 --builders FILE"
        )
    if path is None:
        return ()
    if needed is None and vsa is None:
        raise ConfigError(
            "option-needs-option",
            "--builders needs --rebuilders or --vsa",
            fix="use e.g. --rebuilders 2 --builders FILE",
        )
    return read_builders(path, sigstore)


def _tell(row: Mapping[str, Any], inside: Contents) -> None:
    """Print the content of an image and the facts about its build."""
    from toolchain.trust.policy import stored  # noqa: PLC0415 - other verbs do not need it

    for name, text in inside.rows():
        console.note(f"  {name}: {text}")
    console.note(f"  isolation of the build: {row['isolation'] or 'unknown'}")
    console.note(f"  compiler cache: {row['compiler_cache'] or 'unknown'}")
    for taken in row["kernel_stores"]:
        console.note(f"  {stored(taken)}")
    if row["command"]:
        console.note(f"  built by: {row['command']}")


def took_too_long(ref: str, seconds: float) -> UnreachableError:
    return UnreachableError(
        "verify-timeout",
        f"{ref} could not be checked within {seconds:g} s",
        why="the registry may be slow or withhold data; this says nothing about the image",
        fix="try again later, or raise the limit: verify --timeout SECONDS",
    )
