"""`reproduce`: build a finished image again, and say whether it came out the same."""

from __future__ import annotations

import atexit
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain import console
from toolchain.build.reproduce import Reproduced, reproduce
from toolchain.catalog.stages import of_packages
from toolchain.cli import options as o
from toolchain.cli.config_file import PUBLIC_KEY
from toolchain.cli.images_cmd import IMAGE_HELP, cache_of, is_image_name
from toolchain.cli.request import with_request
from toolchain.errors import ConfigError, NotReproducedError, UnsupportedError
from toolchain.request import Request
from toolchain.trust.invocation import request_command

ImageArg = Annotated[
    str, typer.Argument(metavar="IMAGE|REF", help=f"{IMAGE_HELP} Or oci:DIR:TAG, REGISTRY/NS/NAME[:TAG|@DIGEST].")
]
PublicKeyOpt = Annotated[Path | None, o.typed(PUBLIC_KEY, help="Key in PEM that must have signed REF's provenance.")]
AttestOpt = Annotated[
    Path | None,
    typer.Option("--attest", metavar="KEY", help="Attach to REF, signed by this key, whether it came out the same."),
]
_LISTED = 20


def _asked(given: dict[str, Any], chosen: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The stage and the options that made the image; what it is compared by takes the place of its name.

    Args:
        given: the verb's own parameters.
        chosen: the cache and the architecture that were given, if they were.
    """
    from toolchain.build.original import given_options, of_name, of_reference  # noqa: PLC0415 - brings cryptography in
    from toolchain.trust.keys import load_public, load_signer  # noqa: PLC0415

    cache, arch = cache_of(chosen["cache"]), str(chosen.get("arch") or "")
    key, attest = given.pop("public_key"), given["attest"]
    if attest is not None:
        # Before the hours, not after them.
        if is_image_name(given["image"]):
            raise ConfigError(
                "--attest needs a published image", fix="name it: oci:DIR:TAG, or REGISTRY/NS/NAME@DIGEST"
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
            f"{original.name} is not built again",
            why="it holds a distribution's packages, which the mirrors have as they are today",
            fix="name an image of another stage",
        )
    given["image"] = original
    return original.stage, given_options(original, cache)


@with_request("check", "offline", "contract", recorded=_asked)
def reproduce_image(
    image: ImageArg, public_key: PublicKeyOpt = None, attest: AttestOpt = None, *, request: Request
) -> None:
    """Build an image again from a clean tree, with the options it was built with, and compare the bytes.

    The options are those of its record, or of the provenance that the key has signed. What the command line gives
    overrules them. With --attest others need not take your word for it: `verify --rebuilders` counts what is attached.
    """
    original: Any = image  # `_asked` has put it there
    command = request_command(dict(original.parameters))
    if command:
        console.note(f"{original.name} was made by: {command}")
    again = [shlex.quote(word) for word in ("toolchain", *sys.argv[1:])]
    # The bytes are compared; what is below may have been built without a contract check, and so may this.
    asked = replace(request, offline=True, contract=False)
    found = reproduce(asked, original.stage, original.expected, command=again)
    told = found.as_json()
    if attest is not None:
        told["attested"] = _attested(original, told, attest)
    if request.json:
        console.data(told)
    else:
        _tell(found)
        if attest is not None:
            console.text("attested by", told["attested"]["signed_by"], original.name)
    if not found.equal:
        raise NotReproducedError(
            f"{found.image} did not come out the same",
            why="\n".join(str(one) for one in found.differing[:_LISTED]) or "the files are the same, their headers not",
            fix="compare the tools that built both; with diffoscope installed the first difference is explained",
        )


def _attested(original: Any, told: Mapping[str, Any], key: Path) -> dict[str, Any]:
    """Sign what came of it, and attach it to the image."""
    from toolchain.oci.place import open_place  # noqa: PLC0415 - the registry client
    from toolchain.oci.reference import parse  # noqa: PLC0415
    from toolchain.publish.attestations import attach_statement  # noqa: PLC0415 - cryptography
    from toolchain.trust.keys import load_signer  # noqa: PLC0415
    from toolchain.trust.rebuilt import statement  # noqa: PLC0415

    digests = list(original.expected["published"])
    with open_place(parse(original.name)) as place, tempfile.TemporaryDirectory(prefix="toolchain-attest-") as scratch:
        said = statement(told["image"], digests, told)
        return attach_statement(
            said, digests, place, kind="rebuilt", signer=load_signer(key), scratch=Path(scratch)
        ).as_json()


def _tell(found: Reproduced) -> None:
    if found.equal:
        same = "the same blob" if found.blobs[0] == found.blobs[1] else "compressed otherwise"
        console.text(found.image, "equal", found.diff_ids[0], same)
        return
    console.text(found.image, "NOT equal", found.diff_ids[0], found.diff_ids[1])
    for line in found.explained:
        console.note(line)
