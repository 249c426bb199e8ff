"""Typer options made from declarations, and the declarations of options that are not part of a request."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain.catalog import stages
from toolchain.request import model
from toolchain.request.declaration import GIVEN, Option

DEST = Option(name="dest", place="oci", help="Destination, if it is not the first argument.")
COMPRESSION = Option(
    name="compression", found=True, known=lambda: ("gzip", "zstd"), closed=True,
    help="Layer compression: gzip, which every engine reads, or zstd, about a third smaller.",
)  # fmt: skip
KEY = Option(
    name="key", panel="Trust", kind="path", place="path", never_empty=True,
    help="Private key (PEM) to sign SBOM and provenance with.",
)  # fmt: skip
KEYLESS = Option(name="keyless", kind="flag", help="Sign with the identity of this CI job (OIDC, Sigstore).")
SIGSTORE = Option(
    name="sigstore", kind="path", place="path", never_empty=True,
    help="Trust config of a private Sigstore. \\[default: the public one]",
)  # fmt: skip
BUNDLES = Option(name="bundles", kind="flag", help="With --key: also attach Sigstore bundles.")
FILES = Option(name="files", kind="flag", help="Also publish archives, wheels and reports, as OCI artifacts.")
PUBLIC_KEY = Option(
    name="public-key", panel="Trust", kind="path", place="path", never_empty=True,
    help="Public key (PEM) that the image must be signed with.",
)  # fmt: skip
IDENTITY = Option(
    name="identity", never_empty=True,
    help="Required signer, as named in the certificate; instead of --public-key.",
)  # fmt: skip
ISSUER = Option(name="issuer", never_empty=True, help="OIDC issuer of --identity, a URL.")
SOURCE_REPO = Option(
    name="source-repo", panel="Trust", kind="names", metavar="OWNER/NAME|URL", never_empty=True,
    help="Every source of the image itself must come from one of these repositories. Repeatable.",
)  # fmt: skip
POLICY = Option(
    name="policy", never_empty=True,
    help="`source-only`: nothing prebuilt except --allow-binary; `isolated`: built in isolation; `fresh`: built without"
    " ccache; `no-kernel-store`: compiled each kernel itself. Comma-separated.",
)  # fmt: skip
REUSE_FROM = Option(
    name="reuse-from", panel="Trust", place="oci", metavar="WHERE",
    help="Reuse finished images from REGISTRY/NS or oci:DIR after verifying each. Needs --public-key.",
)  # fmt: skip
STAGE = Option(name="stage", environment=False, found=True, known=stages.targets, help=f"Stage: {stages.choice()}")
OF_VERBS = (
    STAGE, DEST, COMPRESSION, KEY, KEYLESS, SIGSTORE, BUNDLES, FILES, PUBLIC_KEY, IDENTITY, ISSUER, SOURCE_REPO, POLICY,
    REUSE_FROM,
)  # fmt: skip


def file_options() -> tuple[Option, ...]:
    return tuple(option for option in (*model.options(), *OF_VERBS) if option.file)


def declaration_of(parameter: Any) -> Option | None:
    """Return the declaration of a verb's parameter; None if only the command line can set it.

    Declared options are recognized by their environment variable, because other options may have the same name.
    """
    if parameter.param_type_name == "argument":
        return STAGE if parameter.name == STAGE.parameter else None
    return next((one for one in (*model.options(), *OF_VERBS) if parameter.envvar == one.variable), None)


def typed(option: Option, *also: str, help: str = "", panel: bool = False) -> Any:  # noqa: A002 - as in Typer
    """Return the Typer option for a declaration.

    Args:
        also: additional flags for the option in this verb.
        help: the help text for this verb, if it differs from the declaration's.
        panel: whether `--help` shows the option in its panel.
    """
    names = [f"{option.flag}/--no-{option.name}" if option.negated else option.flag]
    return typer.Option(
        *names, *([f"-{option.short}"] if option.short else []), *also, help=help or option.help,
        envvar=option.variable if option.environment else None, min=option.least, max=option.most,
        metavar=option.metavar,
        autocompletion=completion(option), rich_help_panel=option.panel if panel else None,
    )  # fmt: skip


def completion(option: Option) -> Callable[[str], list[str]] | None:
    """Return the function that completes an option's value in the shell; None if the option has no known values.

    In a comma-separated list, the function completes the last item.
    """
    known = option.known
    if known is None:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if option.kind == "commas" else ("", "", incomplete)
        taken = before.split(",")
        return [f"{before}{comma}{value}" for value in known() if value.startswith(last) and value not in taken]

    return complete


def parameter(option: Option) -> inspect.Parameter:
    """Return the parameter of a verb for an option of a request."""
    given, default = GIVEN[option.kind], option.given_default
    kind: Any = given if default is not None else given | None
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typed(option, panel=True)],
    )


def of_request(name: str, **more: Any) -> Any:
    """Return the Typer option for the named option of a request."""
    return typed(model.option_named(name), **more)


AllowBinaryOpt = Annotated[list[str] | None, of_request("allow-binary")]
JsonOpt = Annotated[bool, of_request("json")]
CacheOpt = Annotated[Path | None, of_request("cache")]
RunnerOpt = Annotated[str, of_request("runner")]
SigstoreOpt = Annotated[Path | None, typed(SIGSTORE)]
complete_stage = completion(STAGE)
"""The function that completes the name of a stage in the shell."""
