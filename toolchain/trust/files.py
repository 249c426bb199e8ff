"""Whether files that were published beside an image are signed by a trusted key or identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from toolchain.errors import HostileInputError, RegistryError, UntrustedError
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import PlainFile, read_files
from toolchain.trust import attest, policy
from toolchain.trust.keyless import Identity
from toolchain.trust.keys import PublicKey
from toolchain.trust.policy import Policy
from toolchain.trust.statements import Evidence, about, named_subjects, signed_by


def named_files(value: Mapping[str, Any], manifest: Descriptor) -> tuple[PlainFile, ...]:
    """The files of an artifact.

    Raises:
        UntrustedError: a name that could become a path, or the artifact is malformed.
    """
    try:
        return read_files(value, manifest)
    except (HostileInputError, RegistryError) as error:
        raise UntrustedError(f"names: {error.what}", why=error.why) from error


def signed_files(
    key: PublicKey | Identity,
    files: Sequence[PlainFile],
    manifest: Descriptor,
    evidence: Sequence[Evidence],
    *,
    demands: Policy,
    now: datetime,
    checks: dict[str, str],
) -> Mapping[str, Any]:
    """Check that provenances by `key` about this artifact name each file, by name and digest.

    Files of several architectures come from several builds, each with a provenance of its own.

    Returns:
        The last provenance that was needed.

    Raises:
        UntrustedError: the first thing that is wrong.
    """
    statements = signed_by(key, evidence, manifest.digest, checks)
    left = {(file.name, file.blob.digest) for file in files}
    chosen: Mapping[str, Any] | None = None
    problem: UntrustedError | None = None
    for statement in about(statements, {manifest.digest}, {attest.PREDICATE}, "provenance"):
        covered = left & named_subjects(statement)
        if not covered and chosen is not None:
            continue
        try:
            policy.check_build_facts(statement, demands, now, label=None)
            policy.require_policy(statement, demands)
        except UntrustedError as error:  # one good one is enough, whatever else was signed
            problem = problem or error
            continue
        left -= covered
        chosen = statement
    if left or chosen is None:
        names = ", ".join(sorted(name for name, _ in left)) or "nothing"
        raise problem or UntrustedError(f"provenance: what is signed does not name {names}, or names other bytes")
    checks["provenance"] = f"it names each of {len(files)} files by name and digest, and agrees with itself"
    checks |= policy.facts_that_held(demands) | policy.policy_that_held(demands)
    return chosen
