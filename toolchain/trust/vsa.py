"""Write the result of `verify` as a SLSA verification summary (VSA), for programs that do not verify themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from toolchain import __version__
from toolchain.core.digest import sha256_json
from toolchain.oci.image import timestamp
from toolchain.trust import attest

PREDICATE = "https://slsa.dev/verification_summary/v1"
# SLSA's working draft has this property; it asks for provenance by two or more independent builders.
REPRODUCED = "SLSA_BUILD_REPRODUCED"
_INDEPENDENT = 2


def statement(
    ref: str, digests: Sequence[str], policy: Mapping[str, Any], *, ok: bool, level: int, rebuilders: int
) -> attest.Statement:
    """Return the unsigned verification summary of images.

    Args:
        policy: the requirements, whose digest the summary contains.
        level: the SLSA build level: 0 without a signature, and above 1 only for a hosted builder that the policy lists.
        rebuilders: the required number of independent builders.
    """
    draft = [REPRODUCED] if rebuilders >= _INDEPENDENT else []
    predicate = {
        "verifier": {"id": "urn:toolchain:verifier:local", "version": {"toolchain": __version__}},
        "timeVerified": timestamp(time.time()),
        "resourceUri": ref,
        "policy": {"uri": "urn:toolchain:policy:v1", "digest": {"sha256": sha256_json(policy).removeprefix("sha256:")}},
        "verificationResult": "PASSED" if ok else "FAILED",
        "verifiedLevels": [f"SLSA_BUILD_LEVEL_{level}", *draft] if ok else ["FAILED"],
        "slsaVersion": "1.0",
        **({"toolchain_draft": draft} if ok and draft else {}),
    }
    return attest.statement(attest.subjects(ref, digests), PREDICATE, predicate)
