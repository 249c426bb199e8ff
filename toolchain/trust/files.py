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
from toolchain.trust.statements import Evidence, about, signed_by


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
        covered = left & _named(statement)
        if not covered and chosen is not None:
            continue
        try:
            policy.first("provenance", policy.check_provenance(statement, demands, label=None))
            policy.first("source-repo", policy.check_sources(statement, demands))
            policy.first("age", policy.check_age(statement, demands, now))
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
    if demands.source_repos:
        checks["source-repo"] = f"every source comes from {' or '.join(demands.source_repos)}"
    if demands.max_age is not None:
        checks["age"] = f"built within {demands.max_age:g} days"
    if held := policy.kept(demands):
        checks["policy"] = held
    return chosen


def _named(statement: Mapping[str, Any]) -> set[tuple[str, str]]:
    named = set()
    for subject in statement["subject"]:
        digest = subject.get("digest") if isinstance(subject, dict) else None
        if isinstance(digest, dict) and isinstance(digest.get("sha256"), str):
            named.add((str(subject.get("name")), f"sha256:{digest['sha256']}"))
    return named
