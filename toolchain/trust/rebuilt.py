"""Statements of second parties that built an image again, and how many of them hold."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolchain import __version__
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.trust import attest, dsse
from toolchain.trust.keys import PublicKey
from toolchain.trust.statements import Evidence, opened, subjects_of

# A name of this project's own, not an address; explained in docs/rebuilders.md.
PREDICATE = "urn:toolchain:rebuilt:v1"
EQUAL, DIFFERENT = "equal", "different"


def statement(image: str, digests: Sequence[str], result: Mapping[str, Any]) -> attest.Statement:
    """The statement that an image was built again.

    Nothing of the machine is in it but its architecture and kernel's version: no name, path, user or time.

    Args:
        digests: of the image's manifest and of the indexes that name it.
        result: as in `Reproduced.as_json`.
    """
    first = next(iter(result["differing"]), None)
    equal = bool(result["equal"])
    predicate = {
        "result": EQUAL if equal else DIFFERENT,
        "inputDigest": result["input_digest"],
        "diffId": result["diff_ids"][0],
        "rebuiltDiffId": result["diff_ids"][1],
        "firstDifference": None if first is None else {key: first[key] for key in ("path", "what", "offset")},
        "machine": {
            "architecture": platform.machine(),
            "kernel": ".".join(platform.release().split(".")[:2]),
            "tool": __version__,
        },
    }
    return attest.statement(attest.subjects(image, digests), PREDICATE, predicate)


@dataclass(frozen=True)
class Rebuilders:
    """The number of keys, and the keys, that must have rebuilt an image to the same bytes."""

    needed: int
    keys: tuple[PublicKey, ...]

    def __post_init__(self) -> None:
        different = len({key.id for key in self.keys})
        if not 1 <= self.needed <= different:
            raise ConfigError(
                f"--rebuilders {self.needed} cannot be met",
                why=f"{different} different keys are given by --rebuilder-key; two files of one key are one",
                fix="give the public key of each rebuilder, and a number up to theirs",
            )


def require(
    rebuilders: Rebuilders, evidence: Iterable[Evidence], digests: set[str], *, input_digest: str, diff_id: str
) -> str:
    """Check that enough keys have signed a rebuild of an image to the same bytes; their names, for display.

    A key is counted once. A statement holds if it names the image's manifest, input digest and layer.

    Args:
        digests: of the image's manifest, and of the index over it.
    """
    by_key: dict[str, set[str]] = {key.id: set() for key in rebuilders.keys}
    for attached in evidence:
        if attached.media_type != dsse.MEDIA_TYPE:
            continue
        try:
            envelope = attached.envelope()
            signers = [key.id for key in rebuilders.keys if envelope.signed_by(key)]
            if not signers:
                continue
            text = opened(envelope)
        except UntrustedError:
            continue
        if text["predicateType"] == PREDICATE:
            result = _held(text, digests, input_digest, diff_id)
            for name in signers:
                by_key[name].add(result)
    equal = [name for name, results in by_key.items() if EQUAL in results]
    different = [name for name, results in by_key.items() if DIFFERENT in results and EQUAL not in results]
    words = [
        f"{len(equal)} of {len(by_key)} keys say that it was rebuilt equal",
        *(f"{name} got other bytes" for name in different),
    ]
    if len(equal) < rebuilders.needed:
        why = [*words[1:], *sorted({result for results in by_key.values() for result in results} - {EQUAL, DIFFERENT})]
        raise UntrustedError(
            f"rebuilders: {words[0]}, {rebuilders.needed} are needed",
            why="; ".join(why),
            fix="ask the rebuilders, or build it again yourself: toolchain reproduce REF",
        )
    return "; ".join(words)


def _held(text: Mapping[str, Any], digests: set[str], input_digest: str, diff_id: str) -> str:
    """The result of a statement about this image; otherwise why it is not about it."""
    predicate = text["predicate"]
    if not digests & subjects_of(text):
        return "a statement is about another image"
    if (predicate.get("inputDigest"), predicate.get("diffId")) != (input_digest, diff_id):
        return "a statement is about another layer"
    if predicate.get("result") == EQUAL and predicate.get("rebuiltDiffId") == diff_id:
        return EQUAL
    return DIFFERENT
