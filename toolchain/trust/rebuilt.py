"""Sign SLSA provenance of a rebuild, and count the independent builders whose provenance names an image."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.oci.image import timestamp
from toolchain.trust import attest, dsse
from toolchain.trust.keys import PublicKey, load_public
from toolchain.trust.statements import Evidence, opened, subjects_of

_FIELDS = ("id", "key", "operator")


def provenance(
    image: str, digests: Sequence[str], *, builder: str, input_digest: str, parameters: Mapping[str, Any]
) -> attest.Statement:
    """Return the provenance of a rebuild to equal bytes.

    It names the input digest, but not the inputs: they are in the publisher's provenance. It contains no host, user or
    path.

    Args:
        digests: of the image's manifest and of the indexes that name it.
        builder: the rebuilder's URI.
        parameters: the request that was built again.
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
    """Refuse a builder's id that is not a URI."""
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:[!-~]+", builder):
        raise ConfigError(
            "not-a-uri", f"{builder!r} is not a URI", fix="e.g. --builder-id https://ci.example.org/builder"
        )


@dataclass(frozen=True)
class Builder:
    """A builder that a policy lists. Builders of one operator are not independent of each other."""

    id: str
    key: PublicKey
    operator: str


@dataclass(frozen=True)
class Rebuilders:
    """The number of independent builders, and the builders, whose provenance must name an image."""

    needed: int
    builders: tuple[Builder, ...]

    def __post_init__(self) -> None:
        # Builders that share a key cannot be told apart, so neither keys nor operators are counted twice.
        most = min(len({row.operator for row in self.builders}), len({row.key.id for row in self.builders}))
        if not 1 <= self.needed <= most:
            raise ConfigError(
                "rebuilders-not-listed",
                f"--rebuilders {self.needed} cannot be met",
                why=f"the file of --builders lists {most} different operators with keys of their own",
                fix="list more builders, or require fewer",
            )
        owners: dict[str, str] = {}
        for row in self.builders:
            if owners.setdefault(row.key.id, row.operator) != row.operator:
                raise ConfigError(
                    "rebuilders-same-key",
                    f"--builders: two operators have the key {row.key.id}",
                    fix="give each its own key",
                )


def read_builders(path: Path) -> tuple[Builder, ...]:
    """Read the builders of a policy: tables `[[builder]]` with `id`, `key` (a file beside this one) and `operator`."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["builder"]
        builders = [tuple(row[name] for name in _FIELDS) for row in rows if row.keys() == set(_FIELDS)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path) from error
    if len(builders) != len(rows) or not all(isinstance(text, str) and text for row in builders for text in row):
        raise _unusable(path)
    return tuple(Builder(id_, load_public(path.parent / key), operator) for id_, key, operator in builders)


def _unusable(path: Path) -> ConfigError:
    return ConfigError(
        "builders-unreadable",
        f"{path} lists no builders",
        why="it cannot be read, or it is not TOML with tables [[builder]] of exactly id, key and operator",
        fix="see the example in docs/trust.md",
    )


def require(rebuilders: Rebuilders, evidence: Iterable[Evidence], digest: str, *, input_digest: str) -> str:
    """Check that enough operators have signed provenance of an image; return their names, for display.

    A provenance counts if its key and `builder.id` are those of one listed builder, and if it names the manifest and
    the input digest.
    """
    operators = set()
    for attached in evidence:
        if attached.media_type != dsse.MEDIA_TYPE:
            continue
        try:
            envelope = attached.envelope()
            signers = [row for row in rebuilders.builders if envelope.signed_by(row.key)]
            text = opened(envelope) if signers else {}
        except UntrustedError:
            continue
        operators |= {row.operator for row in signers if _is_about(text, row.id, digest, input_digest)}
    if len(operators) < rebuilders.needed:
        raise UntrustedError(
            "rebuilders-too-few",
            f"rebuilders: {len(operators)} independent builders made it, {rebuilders.needed} are needed",
            why=f"with provenance: {', '.join(sorted(operators)) or 'none'}",
            fix="ask the rebuilders, or build it again yourself: toolchain reproduce REF",
        )
    return f"{len(operators)} independent builders made it: {', '.join(sorted(operators))}"


def _is_about(text: Mapping[str, Any], builder: str, digest: str, input_digest: str) -> bool:
    if text["predicateType"] != attest.PREDICATE or digest not in subjects_of(text):
        return False
    try:
        definition, run = text["predicate"]["buildDefinition"], text["predicate"]["runDetails"]
        named = (definition["buildType"], definition["internalParameters"]["inputDigest"], run["builder"]["id"])
    except (KeyError, TypeError):
        return False
    return named == (attest.BUILD_TYPE, input_digest, builder)
