"""The verb `reproduce`, which rebuilds a finished image and compares the bytes."""

from __future__ import annotations

import atexit
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.catalog.stages import of_packages
from toolchain.cli import options as o
from toolchain.cli.build_options import with_request
from toolchain.cli.images_cmd import IMAGE_HELP, is_image_name
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import ConfigError, NotReproducedError, UnsupportedError
from toolchain.pipeline.reproduce import Reproduced, reproduce
from toolchain.request.model import Request
from toolchain.trust.invocation import request_command

if TYPE_CHECKING:
    from toolchain.engine.variation import Variation

ImageArg = Annotated[
    str, typer.Argument(metavar="IMAGE|REF", help=f"{IMAGE_HELP} Or oci:DIR:TAG, REGISTRY/NS/NAME[:TAG|@DIGEST].")
]
PublicKeyOpt = Annotated[
    Path | None, o.typed(o.PUBLIC_KEY, help="Public key (PEM) that must have signed REF's provenance.")
]
AttestOpt = Annotated[
    Path | None,
    typer.Option("--attest", metavar="KEY", help="If equal, sign provenance with this key and attach it to REF."),
]
BuilderOpt = Annotated[
    str | None,
    typer.Option("--builder-id", metavar="URI", help="URI of the builder, for --attest.", show_default=False),
]
VaryOpt = Annotated[
    bool,
    typer.Option("--vary", help="Change the conditions of the second build: heap, clock, order of files, and others."),
]
SeedOpt = Annotated[
    int | None, typer.Option("--seed", min=0, help="Repeat the conditions of an earlier --vary.", show_default=False)
]
_LISTED = 20


def _asked(given: dict[str, Any], chosen: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the stage and the options that an image was built with.

    Args:
        given: the verb's own parameters. `public_key` is removed, and `image` is replaced by an `Original`.
    """
    from toolchain.pipeline.original import given_options, of_name, of_reference  # noqa: PLC0415 - it imports cryptography
    from toolchain.trust.keys import load_public, load_signer  # noqa: PLC0415

    cache, arch = cache_of(chosen["cache"]), str(chosen.get("arch") or "")
    key, attest, builder = given.pop("public_key"), given["attest"], given["builder_id"]
    if (attest is None) != (builder is None):
        raise ConfigError(
            "option-needs-option",
            "--attest and --builder-id need each other",
            fix="give both or none of them",
        )
    if attest is not None:
        from toolchain.trust.rebuilt import require_uri  # noqa: PLC0415

        require_uri(builder)
        # The options of --attest are checked now, because the build may take hours.
        if is_image_name(given["image"]):
            raise ConfigError(
                "attest-needs-reference",
                "--attest needs a published image",
                fix="give it as oci:DIR:TAG or REGISTRY/NS/NAME@DIGEST",
            )
        load_signer(attest)
    if is_image_name(given["image"]):
        original = of_name(cache, given["image"], arch)
    else:
        scratch = tempfile.TemporaryDirectory(prefix="toolchain-reproduce-")
        atexit.register(scratch.cleanup)
        public = load_public(key) if key is not None else None
        original = of_reference(cache, given["image"], arch, public, Path(scratch.name))
    if original.stage in of_packages():
        raise UnsupportedError(
            "stage-not-reproducible",
            f"{original.name} cannot be rebuilt",
            why="it consists of distribution packages, and mirrors have only their current versions",
            fix="give an image of another stage",
        )
    given["image"] = original
    return original.stage, given_options(original, cache)


# A rebuild takes no kernels from a store, because then it would prove nothing about them.
@with_request("check", "offline", "contract", "kernel_store", "kernel_key", recorded=_asked)
def reproduce_image(
    image: ImageArg,
    public_key: PublicKeyOpt = None,
    attest: AttestOpt = None,
    builder_id: BuilderOpt = None,
    vary: VaryOpt = False,
    seed: SeedOpt = None,
    *,
    request: Request,
) -> None:
    """Rebuild an image from a clean tree with its recorded options, and compare the bytes.

    Options come from the image's record or, with --public-key, from its signed provenance; the command line overrides
    them. With --attest, provenance of an equal rebuild is attached to the image, for `verify --rebuilders`.
    """
    original: Any = image  # `_asked` has replaced the argument
    command = request_command(dict(original.parameters))
    if command:
        console.note(f"{original.name} was built by: {command}")
    # The comparison of the bytes replaces the contract check. With the check, images of lower stages that were built
    # without it would be built again.
    asked = replace(request, offline=True, contract=False, variation=_variation(request, vary=vary, seed=seed))
    result = reproduce(asked, original.stage, original.expected)
    document = result.as_json()
    if attest is not None and builder_id is not None and result.equal:
        document["attested"] = _attested(original, document, attest, builder_id)
    if request.json:
        console.data(document)
    else:
        _tell(result)
        if "attested" in document:
            console.text("attested by", document["attested"]["signed_by"], original.name)
    if not result.equal:
        raise NotReproducedError(
            "not-reproduced",
            f"{result.image} was not reproduced: the bytes differ",
            why=_difference(result),
            fix="compare the tool versions of both builds",
        )


def _difference(result: Reproduced) -> str:
    if result.same_layer and not result.differing:
        return "the topmost layers are equal, but the layers below, the environment or the labels differ"
    listed = "\n".join(str(file) for file in result.differing[:_LISTED])
    return listed or "the files are equal, but the headers of the archive differ"


def _variation(request: Request, *, vary: bool, seed: int | None) -> Variation | None:
    if not vary:
        if seed is not None:
            raise ConfigError(
                "option-needs-option",
                "--seed needs --vary",
                why="it repeats the conditions of an earlier --vary",
                fix="add --vary",
            )
        return None
    elsewhere = {
        "--runner": request.runner != "buildah",
        "--scheduler": bool(request.scheduler),
    }
    if given := [option for option, is_given in elsewhere.items() if is_given]:
        raise ConfigError(
            "vary-elsewhere",
            f"--vary and {given[0]} exclude each other",
            why="conditions can be changed only in buildah's containers on this machine",
            fix=f"omit {given[0]}",
        )
    from toolchain.engine.variation import Variation  # noqa: PLC0415 - only `--vary` needs it

    seed = secrets.randbelow(10**6) if seed is None else seed
    # The seed is printed now, because the user needs it to continue after an interruption.
    console.note(f"--vary changes conditions with --seed {seed}; give the same seed to continue after an interruption")
    return Variation(seed)


def _attested(original: Any, document: Mapping[str, Any], key: Path, builder: str) -> dict[str, Any]:
    """Sign provenance of the rebuild, attach it to the image, and return facts about the attachment as JSON."""
    from toolchain.oci.places import open_place  # noqa: PLC0415 - it imports the registry client
    from toolchain.oci.reference import parse  # noqa: PLC0415
    from toolchain.publish.attestations import attach_statement  # noqa: PLC0415 - it imports cryptography
    from toolchain.trust.keys import load_signer  # noqa: PLC0415
    from toolchain.trust.rebuilt import provenance  # noqa: PLC0415

    digests = list(original.expected["published"])
    with open_place(parse(original.name)) as place, tempfile.TemporaryDirectory(prefix="toolchain-attest-") as scratch:
        statement = provenance(
            document["image"],
            digests,
            builder=builder,
            input_digest=document["input_digest"],
            parameters=original.parameters,
        )
        return attach_statement(
            statement, digests, place, kind="provenance", signer=load_signer(key), scratch=Path(scratch)
        ).as_json()


def _tell(result: Reproduced) -> None:
    told = result.varied
    if told is not None:
        console.note(f"changed (--seed {told['seed']}): " + "; ".join(f"{k}: {v}" for k, v in told["changed"].items()))
        console.note("not changed: " + "; ".join(f"{k}: {v}" for k, v in told["unchanged"].items()))
        if told["static"]:
            console.note("static programs, with an unchanged heap and clock: " + ", ".join(told["static"]))
    if result.equal:
        same = "the same blob" if result.blobs[0] == result.blobs[1] else "compressed differently"
        console.text(result.image, "equal", result.diff_ids[0], same)
        return
    pair = result.contents if result.same_layer else result.diff_ids
    console.text(result.image, "NOT equal", *(pair if pair[0] != pair[1] else ()))
