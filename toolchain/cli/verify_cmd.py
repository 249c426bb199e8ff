"""`verify`: whether an image is what it must be."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.cli.config_file import PUBLIC_KEY, SOURCE_REPO
from toolchain.deadline import LONGEST_CHECK, deadline
from toolchain.errors import ConfigError, DigestError, DocumentError, UnreachableError, UntrustedError
from toolchain.oci.reference import parse

if TYPE_CHECKING:
    from toolchain.trust.contents import Contents
    from toolchain.trust.rebuilt import Rebuilders

_WORDS = {"trusted": "trusted", "intact": "intact, not authenticated (no --public-key)", "untrusted": "NOT ok"}
_DO_NOT = "do not use it; fetch or build it again"
PublicKeyOpt = Annotated[Path | None, o.typed(PUBLIC_KEY, help="Key in PEM whose signature counts.")]
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
SigstoreOpt = Annotated[
    Path | None,
    typer.Option(
        "--sigstore", envvar="TOOLCHAIN_SIGSTORE", help="Trust config of a Sigstore of your own; else the public one."
    ),
]
RepoOpt = Annotated[list[str] | None, o.typed(SOURCE_REPO, help="Every source must come from here; again for each.")]
RefArg = Annotated[str, typer.Argument(help="oci:DIR[:TAG] or REGISTRY/NS/NAME[:TAG|@DIGEST].")]


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
            help="`source-only`: nothing prebuilt but what --allow-binary names; `isolated`; `fresh`: without ccache.",
        ),
    ] = None,
    allow_binary: o.AllowBinaryOpt = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0, help="Age limit, in days since the build ended.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="NAME", help="What the provenance must call the image.")
    ] = None,
    rebuilders: Annotated[
        int | None,
        typer.Option("--rebuilders", min=1, help="So many of the --rebuilder-key must have rebuilt it to equal bytes."),
    ] = None,
    rebuilder_key: Annotated[
        list[Path] | None,
        typer.Option("--rebuilder-key", metavar="FILE", help="Public key of a rebuilder, in PEM; again for each."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that all of it may take; the answer is then 18.")
    ] = LONGEST_CHECK,
    json_: o.JsonOpt = False,
) -> None:
    """Verify an image: bytes, signature, provenance, SBOM, policy; stop at the first failure."""
    from toolchain.oci.place import open_place  # noqa: PLC0415 - the registry client
    from toolchain.trust import verify as trust  # noqa: PLC0415 - cryptography
    from toolchain.trust.contents import of_provenance  # noqa: PLC0415
    from toolchain.trust.keyless import Identity, require  # noqa: PLC0415
    from toolchain.trust.keys import PublicKey, load_public  # noqa: PLC0415
    from toolchain.trust.policy import make_policy, named, summary  # noqa: PLC0415

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
    again = _rebuilders(rebuilders, rebuilder_key or ())
    public: PublicKey | Identity | None = load_public(public_key) if public_key is not None else None
    if identity is not None and issuer is not None:
        require()
        public = Identity(identity, issuer, sigstore)
    with (
        tempfile.TemporaryDirectory(prefix="toolchain-verify-") as scratch,
        deadline(timeout, lambda: took_too_long(ref, timeout)),
        open_place(parse(ref)) as place,
    ):
        try:
            layout, found = place.images(Path(scratch))
        except (DigestError, DocumentError) as error:
            raise UntrustedError(f"{ref}: digests: {error.what}", why=error.why, fix=_DO_NOT) from error
        rows = []
        for one in found:
            row = trust.verify(place, layout, one.image, key=public, demands=demands, rebuilders=again)
            row.ref = one.name
            rows.append(row)
    if json_:
        console.data({"images": [row.as_json() for row in rows], "ok": not any(row.problems for row in rows)})
    for row in rows:
        if not json_:
            told = [named(row.provenance)] if row.provenance is not None else []
            console.text(row.ref, row.digest, _WORDS[row.verdict], *told)
            if row.provenance is not None:
                _tell(summary(row.provenance), of_provenance(row.provenance))
            for name in ("numbers", "rebuilders"):
                if name not in row.checks:
                    continue
                console.note(f"  {name}: {row.checks[name]}")
    bad = next((row for row in rows if row.problems), None)
    if bad is not None:
        raise UntrustedError(f"{bad.ref}: {bad.problems[0]}", fix=bad.fix or _DO_NOT)


def _rebuilders(needed: int | None, keys: Sequence[Path]) -> Rebuilders | None:
    from toolchain.trust.keys import load_public  # noqa: PLC0415 - cryptography
    from toolchain.trust.rebuilt import Rebuilders  # noqa: PLC0415

    if needed is None and keys:
        raise ConfigError("--rebuilder-key does not say how many must have rebuilt it", fix=f"--rebuilders {len(keys)}")
    return None if needed is None else Rebuilders(needed, tuple(load_public(path) for path in keys))


def _tell(row: Mapping[str, Any], inside: Contents) -> None:
    """What is inside a trusted image, how it was built, and the command that makes it."""
    for name, text in inside.told():
        console.note(f"  {name}: {text}")
    console.note(f"  isolation of the build: {row['isolation'] or 'not said'}")
    console.note(f"  compiler cache: {row['compiler_cache'] or 'not said'}")
    if row["command"]:
        console.note(f"  made by: {row['command']}")


def took_too_long(ref: str, seconds: float) -> UnreachableError:
    """The error of a check that did not end in time."""
    return UnreachableError(
        f"{ref} could not be checked within {seconds:g} s",
        why="the registry may be slow or hold it back; that says nothing about the image",
        fix="try again later, or give it longer: verify --timeout SECONDS",
    )
