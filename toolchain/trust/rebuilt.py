"""Make the SLSA provenance of a rebuild, and judge provenance by a list of known builders."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.core import toml_text
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.core.record import LOCAL_BUILDER
from toolchain.oci.image import timestamp
from toolchain.trust import attest
from toolchain.trust.keyless import Identity
from toolchain.trust.keys import PublicKey, load_public
from toolchain.trust.statements import Evidence, signed_by, subjects_of

_HOSTED = (2, 3)  # SLSA build levels that need a hosted builder


def provenance(
    image: str, digests: Sequence[str], *, builder: str, input_digest: str, parameters: Mapping[str, Any]
) -> attest.Statement:
    """Return the provenance of a rebuild whose image has the same bytes as the published image.

    It contains the input digest but not the inputs, because the publisher's provenance contains them.

    Args:
        digests: the digests of the image's manifest and of the indexes that list the image.
        builder: the URI of the rebuilder.
        parameters: the request with which the image was rebuilt.
    """
    predicate = {
        "buildDefinition": {
            "buildType": attest.BUILD_TYPE,
            "externalParameters": dict(parameters),
            "internalParameters": {"image": image, "inputDigest": input_digest},
        },
        "runDetails": {
            "builder": {"id": builder, "version": {"toolchain": __version__}},
            "metadata": {"finishedOn": timestamp(time.time())},
        },
    }
    return attest.statement(attest.subjects(image, digests), attest.PREDICATE, predicate)


def require_uri(builder: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:[!-~]+", builder):
        raise ConfigError(
            "not-a-uri", f"{builder!r} is not a URI", fix="e.g. --builder-id https://ci.example.org/builder"
        )


@dataclass(frozen=True)
class Builder:
    """A builder in the file of `--builders`.

    Args:
        id: the URI that provenance of this builder contains.
        operator: the name of the person or organization that runs the builder. Builders of the same operator are not
            independent of each other.
        level: the SLSA build level of the builder's provenance: 1, or for a hosted builder 2 or 3.
    """

    id: str
    signer: PublicKey | Identity
    operator: str
    level: int = 1


@dataclass(frozen=True)
class Rebuilders:
    """The builders whose provenance of an image counts, and the number of operators that must have signed provenance.

    ConfigError is raised if `needed` is not positive, or larger than the number of different operators.
    """

    needed: int
    builders: tuple[Builder, ...]

    def __post_init__(self) -> None:
        most = len({row.operator for row in self.builders})
        if not 1 <= self.needed <= most:
            raise ConfigError(
                "rebuilders-not-listed",
                f"--rebuilders {self.needed} cannot be met",
                why=f"the file of --builders lists {most} different operators",
                fix="list more builders, or require fewer",
            )


def read_builders(path: Path, sigstore: Path | None = None) -> tuple[Builder, ...]:
    """Read the builders in a TOML file; raise ConfigError if the file is invalid.

    Each table `[[builder]]` contains `id`, `operator`, either `key` or both `identity` and `issuer`, and optionally
    `level`. The value of `key` is a path relative to the folder of the file.

    Args:
        sigstore: a file with the trust config for identities; None for the public Sigstore.
    """
    try:
        rows = toml_text.read(path.read_text(encoding="utf-8"))["builder"]
        builders = tuple(_builder(dict(row), path.parent, sigstore) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            "builders-unreadable",
            f"the list of builders in {path} cannot be used",
            why="it cannot be read, or a table [[builder]] does not contain id, operator, and key or both identity and"
            " issuer, or contains other fields or a level other than 1, 2 or 3",
            fix="see the example in docs/trust.md",
        ) from error
    _require_distinct(builders)
    return builders


def _require_distinct(builders: Sequence[Builder]) -> None:
    """Raise ConfigError if the list of builders is ambiguous, or if it lists the local builder as hosted."""
    owners: dict[str, str] = {}
    for row in builders:
        name = " ".join(row.operator.casefold().split())
        # By default, every build outside of a CI has the local id, so this id identifies no operator.
        ids = [f"the id {row.id}"] if row.id != LOCAL_BUILDER else []
        if row.level > 1 and not ids:
            raise ConfigError(
                "builder-not-hosted",
                f"--builders: level {row.level} requires a hosted builder, but {row.id} is the id of local builds",
                why="every build outside of a CI has this id, unless its publisher names another one",
                fix="remove the level, or give the hosted builder's own id",
            )
        for what in (f"the signer {row.signer.id}", *ids, f"the operator {name!r}"):
            if (other := owners.setdefault(what, row.operator)) != row.operator:
                raise ConfigError(
                    "builders-not-distinct",
                    f"--builders: {what} is listed as {other!r} and as {row.operator!r}",
                    why="each operator counts once, and these names mean the same operator, or share a signer or an id",
                    fix="write each operator's name always in the same way, and give each operator its own key and id",
                )
    if len({(row.id, row.signer.id) for row in builders}) != len(builders):
        raise ConfigError(
            "builders-not-distinct",
            "--builders: a builder is listed twice with the same id and signer",
            why="its level would depend on the order",
            fix="remove one of the tables",
        )


def _builder(row: dict[str, Any], folder: Path, sigstore: Path | None) -> Builder:
    level = row.pop("level", 1)
    if (
        isinstance(level, bool)
        or level not in (1, *_HOSTED)
        or not all(isinstance(value, str) and value for value in row.values())
    ):
        raise ValueError(level)
    signer: PublicKey | Identity
    if "key" in row:
        signer = load_public(folder / row.pop("key"))
    else:
        signer = Identity(row.pop("identity"), row.pop("issuer"), sigstore)
    return Builder(signer=signer, level=int(level), **row)


def granted_level(
    builders: Iterable[Builder], signer: PublicKey | Identity, provenances: Iterable[Mapping[str, Any]]
) -> int:
    """Return the lowest SLSA build level of the given provenances; 1 if there are none.

    A provenance has the level of the builder that it names, if this builder is listed with `signer`, and otherwise 1.

    Args:
        signer: the key or identity that signed all of the provenances.
    """
    levels = {row.id: row.level for row in builders if row.signer == signer}
    ids = (str(text["predicate"]["runDetails"]["builder"]["id"]) for text in provenances)
    return min((levels.get(id_, 1) for id_ in ids), default=1)


def require(rebuilders: Rebuilders, evidence: Sequence[Evidence], digest: str, *, input_digest: str | None) -> str:
    """Return a sentence with the operators that have signed provenance of an image; raise UntrustedError for too few.

    A provenance counts if its signer and its `builder.id` are those of a listed builder, if its build type is that of
    this tool, and if it contains both the digest of the image's manifest and the input digest of the image.

    Args:
        input_digest: the input digest in the label of the image. If it is None, no provenance counts.
    """
    operators = set()
    for row in rebuilders.builders:
        try:
            texts = signed_by(row.signer, evidence, digest, {})
        except UntrustedError:
            continue
        if any(_is_about(text, row.id, digest, input_digest) for text in texts):
            operators.add(row.operator)
    if len(operators) < rebuilders.needed:
        raise UntrustedError(
            "rebuilders-too-few",
            f"rebuilders: {len(operators)} independent builders made it, but {rebuilders.needed} are required",
            why=f"operators with valid provenance: {', '.join(sorted(operators)) or 'none'}",
            fix="ask the rebuilders, or build it again yourself: toolchain reproduce REF",
        )
    return f"{len(operators)} independent builders made it: {', '.join(sorted(operators))}"


def _is_about(text: Mapping[str, Any], builder: str, digest: str, input_digest: str | None) -> bool:
    if input_digest is None or text["predicateType"] != attest.PREDICATE or digest not in subjects_of(text):
        return False
    try:
        definition, run = text["predicate"]["buildDefinition"], text["predicate"]["runDetails"]
        named = (definition["buildType"], definition["internalParameters"]["inputDigest"], run["builder"]["id"])
    except (KeyError, TypeError):
        return False
    return named == (attest.BUILD_TYPE, input_digest, builder)
