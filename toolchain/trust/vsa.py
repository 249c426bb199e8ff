"""Make a SLSA verification summary (VSA) of the result of `verify`, for programs that do not verify images."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from toolchain import __version__
from toolchain.core.digest import sha256_json
from toolchain.oci.image import timestamp
from toolchain.trust import attest

PREDICATE = "https://slsa.dev/verification_summary/v1"
# The working draft of SLSA defines this property. It requires provenance by at least two independent builders.
REPRODUCED = "SLSA_BUILD_REPRODUCED"
_INDEPENDENT = 2


def statement(
    ref: str, digests: Sequence[str], policy: Mapping[str, Any], *, ok: bool, level: int, rebuilders: int
) -> attest.Statement:
    """Return the verification summary of images as a statement, which is not signed.

    Args:
        policy: the requirements that the images were checked against; the summary contains only the digest of this
            object.
        ok: whether the verification passed.
        level: the SLSA build level of the images: 0 if no signature was required, and above 1 only for a hosted builder
            in the file of `--builders`.
        rebuilders: the required number of independent builders; 0 if none was required.
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
