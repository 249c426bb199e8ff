"""Check the provenance of an image against the requirements of `verify`, after its signature was verified."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from toolchain.catalog.stages import of_packages
from toolchain.core.digest import sha256_json
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.trust import attest
from toolchain.trust.contents import of_provenance
from toolchain.trust.invocation import request_command

_TIME = "%Y-%m-%dT%H:%M:%SZ"
# The clocks of the builder and of this machine may differ by this much.
_SLACK = timedelta(hours=1)
_DAY = 86400.0
POLICIES = ("source-only", "isolated", "fresh", "no-kernel-store")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The requirements of `verify` for the provenance of an image. None, empty and false values require nothing.

    Args:
        source_only: whether prebuilt inputs are refused, except for those in `allow`. The packages of the base are not
            prebuilt inputs.
        isolated: whether the provenance must contain proof that the build was isolated.
        fresh: whether an image that was built with a compiler cache is refused.
        no_kernel_store: whether an image with kernels from a kernel store is refused.
        allow: the names of the prebuilt inputs that `source_only` permits, as in `--allow-binary`.
        source_repos: the repositories from which the sources of the image's own stage may come, in the form that
            `normal_repository` returns.
        max_age: the maximum number of days since the end of the build.
    """

    source_only: bool = False
    isolated: bool = False
    fresh: bool = False
    no_kernel_store: bool = False
    allow: tuple[str, ...] = ()
    source_repos: tuple[str, ...] = ()
    max_age: float | None = None
    input_digest: str | None = None
    image: str | None = None

    @property
    def empty(self) -> bool:
        """Whether the policy has no requirements; `allow` by itself is not a requirement."""
        return self == Policy(allow=self.allow)


def make_policy(
    name: str | None,
    *,
    allow: Sequence[str] = (),
    source_repos: Sequence[str] = (),
    max_age: float | None = None,
    image: str | None = None,
) -> Policy:
    """Return the policy that the options of `verify` describe; raise ConfigError for an invalid value.

    Args:
        name: the value of `--policy`: names in `POLICIES`, separated by commas; None if the option is not used.
        source_repos: repositories as the user writes them.
    """
    names = [] if name is None else [part.strip() for part in name.split(",")]
    if unknown := [part for part in names if part not in POLICIES]:
        raise ConfigError(
            "unknown-policy", f"{unknown[0]!r} is not a policy", fix=f"one of {', '.join(POLICIES)}, comma-separated"
        )
    return Policy(
        source_only="source-only" in names,
        isolated="isolated" in names,
        fresh="fresh" in names,
        no_kernel_store="no-kernel-store" in names,
        allow=tuple(allow),
        source_repos=tuple(normal_repository(repo) for repo in source_repos),
        max_age=max_age,
        image=image,
    )


def normal_repository(text: str) -> str:
    """Return the normal form of a repository's address, so that different spellings of an address can be compared.

    `OWNER/NAME` becomes the URL of that repository on GitHub. In an `https`, `http` or `ssh` URL, the part before
    the path and, on GitHub, the path become lower case, and slashes and then `.git` at the end of the path are removed.
    A word of lower-case letters and digits, such as `pypi`, is not changed. ConfigError is raised for any other text,
    and for a URL with a part after `#`.
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*", text):
        text = f"https://github.com/{text}"
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")  # it is not a URL, so it is refused below
    if parts.fragment:
        raise ConfigError(
            "not-a-repository",
            f"{text!r} is not a repository",
            why="the URL has a fragment after #",
            fix="remove the fragment",
        )
    if parts.scheme in {"https", "http", "ssh"} and parts.netloc:
        path = parts.path.rstrip("/").removesuffix(".git")
        # The path becomes lower case only on GitHub, because other hosts may distinguish paths by case.
        if parts.hostname == "github.com":
            path = path.lower()
        query = f"?{parts.query}" if parts.query else ""  # some hosts name the repository in the query
        return f"{parts.scheme}://{parts.netloc.lower()}{path}{query}"
    if re.fullmatch(r"[a-z0-9]+", text):
        return text
    raise ConfigError(
        "not-a-repository", f"{text!r} is not a repository", fix="give OWNER/NAME or a URL such as https://HOST/PATH"
    )


def _same(repository: str, wanted: Sequence[str]) -> bool:
    try:
        return normal_repository(repository) in wanted
    except ConfigError:
        return False


@contextlib.contextmanager
def reading(check: str) -> Iterator[None]:
    """Raise UntrustedError instead of the exceptions that reading a malformed statement raises."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UntrustedError(
            "statement-malformed", f"{check}: the statement is malformed", why="a field is missing, or has another form"
        ) from error


def check_build_facts(statement: Mapping[str, Any], demands: Policy, now: datetime, *, label: str | None) -> None:
    """Raise UntrustedError if a provenance is malformed, contradicts itself or the image, or violates a requirement.

    The caller must have checked the signature and the subjects of the provenance.

    Args:
        demands: the requirements. Only those for the sources, the age, the input digest and the name of the image are
            checked here.
        now: the time at which the age of the build is computed.
        label: the image's label `toolchain.input-digest`; None if the image has no such label.
    """
    _check_provenance(statement, demands, label)
    _check_sources(statement, demands)
    _check_age(statement, demands, now)


@reading("provenance")
def _check_provenance(statement: Mapping[str, Any], demands: Policy, label: str | None) -> None:
    """Check that a provenance agrees with itself, with the label, and with the required input digest and name."""
    definition = statement["predicate"]["buildDefinition"]
    if definition["buildType"] != attest.BUILD_TYPE:
        raise UntrustedError(
            "provenance-build-type", f"provenance: its build type {definition['buildType']} is not that of this tool"
        )
    inner = definition["internalParameters"]
    inputs = inner["inputDigest"]
    if sha256_json(inner["inputs"]) != inputs:
        raise UntrustedError(
            "provenance-digest-mismatch",
            "provenance: its input digest is not the digest of its inputs",
        )
    if label is not None and inputs != label:
        raise UntrustedError(
            "provenance-label-mismatch",
            f"provenance: its input digest is {inputs}, but the label of the image is {label}",
        )
    if demands.input_digest is not None and inputs != demands.input_digest:
        raise UntrustedError(
            "provenance-other-inputs",
            f"provenance: its input digest is {inputs}, but {demands.input_digest} is required",
        )
    if demands.image is not None and inner["image"] != demands.image:
        raise UntrustedError(
            "provenance-other-image", f"provenance: it is about the image {inner['image']}, not about {demands.image}"
        )
    for row in inner.get("kernelStores", ()):
        stored(row)
    if not any(row["annotations"]["role"] == "source" for row in definition["resolvedDependencies"]) and (
        inner["stage"] not in of_packages()  # these stages have packages instead, which the SBOM lists
    ):
        raise UntrustedError("provenance-without-source", "provenance: it names no source")
    # Read what `Verdict.as_json` and `granted_level` read later, so that a statement without it is refused here.
    summary(statement)
    str(statement["predicate"]["runDetails"]["builder"]["id"])


@reading("source-repo")
def _check_sources(statement: Mapping[str, Any], demands: Policy) -> None:
    if not demands.source_repos:
        return
    definition = statement["predicate"]["buildDefinition"]
    stage = definition["internalParameters"]["stage"]
    rows = [
        row
        for row in definition["resolvedDependencies"]
        if (row["annotations"]["role"], row["annotations"]["stage"]) == ("source", stage)
    ]
    if not rows:
        raise UntrustedError("image-without-source", "source-repo: the image has no source of its own")
    wanted = " or ".join(demands.source_repos)
    for row in rows:
        repository = str(row["annotations"]["repository"])
        if not _same(repository, demands.source_repos):
            raise UntrustedError(
                "source-other-repository",
                f"source-repo: the source {row['name']} comes from {repository}, not from {wanted}",
            )


@reading("age")
def _check_age(statement: Mapping[str, Any], demands: Policy, now: datetime) -> None:
    text = str(statement["predicate"]["runDetails"]["metadata"]["finishedOn"])
    finished = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    if finished > now + _SLACK:
        raise UntrustedError("build-in-future", f"age: the build ended at {text}, which is in the future")
    if demands.max_age is not None and (now - finished).total_seconds() > demands.max_age * _DAY:
        raise UntrustedError(
            "build-too-old", f"age: the build ended at {text}, longer ago than {demands.max_age:g} days"
        )


@reading("policy")
def check_binaries(statement: Mapping[str, Any], listed: Sequence[str]) -> None:
    """Raise UntrustedError unless the provenance names exactly the prebuilt inputs that an SBOM lists.

    Args:
        listed: the names of the prebuilt inputs in the SBOM, sorted.
    """
    named = _binaries(statement)
    if named != list(listed):
        raise UntrustedError(
            "prebuilt-lists-differ",
            "policy: the provenance and the SBOM list different prebuilt inputs:"
            f" {', '.join(named) or 'none'} and {', '.join(listed) or 'none'}",
        )


@reading("policy")
def require_policy(statement: Mapping[str, Any], demands: Policy) -> None:
    """Raise UntrustedError if a provenance does not meet the requirements that `--policy` names."""
    inner = statement["predicate"]["buildDefinition"]["internalParameters"]
    names = [name for name in _binaries(statement) if name not in demands.allow] if demands.source_only else []
    if names:
        raise UntrustedError(
            "prebuilt-forbidden",
            f"policy: it was built with prebuilt inputs that are not allowed: {', '.join(names)}",
            fix=f"if you accept them: {' '.join(f'--allow-binary {name}' for name in names)}",
        )
    how = "with --fresh for `fresh`, and without --kernel-store for `no-kernel-store`"
    again = f"have it built again ({how}), or require less"
    if demands.isolated and str(inner["isolation"]) == "none":
        raise UntrustedError(
            "isolation-unproved", "policy: its provenance contains no proof that the build was isolated", fix=again
        )
    if demands.fresh and str(inner["compilerCache"]) != "none":
        why = f"it was built with the compiler cache {inner['compilerCache']}"
        raise UntrustedError("compiler-cache-used", f"policy: {why}", fix=again)
    if demands.no_kernel_store and (taken := [stored(row) for row in inner["kernelStores"]]):
        raise UntrustedError("kernel-store-used", f"policy: {'; '.join(taken)}", fix=again)


def _binaries(statement: Mapping[str, Any]) -> list[str]:
    return sorted(statement["predicate"]["buildDefinition"]["internalParameters"]["binaries"])


def met(demands: Policy, *names: str) -> dict[str, str]:
    """Return a phrase about each of the named checks, by name.

    The image must have passed these checks. A check without requirements is missing from the result.
    """
    policies = (
        (demands.source_only, "no prebuilt inputs except the allowed ones"),
        (demands.isolated, "built in isolation, as its provenance proves"),
        (demands.fresh, "built without a compiler cache"),
        (demands.no_kernel_store, "no kernel from a kernel store"),
    )
    checks = {
        "source-repo": demands.source_repos
        and f"every source of the image itself comes from {' or '.join(demands.source_repos)}",
        "age": demands.max_age is not None and f"built within {demands.max_age:g} days",
        "policy": "; ".join(text for required, text in policies if required),
    }
    return {name: text for name in names if (text := checks[name])}


def summary(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts in a trusted provenance that `verify --json` prints, such as the contents of the image."""
    definition = statement["predicate"]["buildDefinition"]
    inner, request = definition["internalParameters"], definition.get("externalParameters")
    return {
        "image": str(inner.get("image", "")),
        "stage": str(inner.get("stage", "")),
        "partial": str(inner.get("partial", "")),
        "contract": request.get("contract") is not False if isinstance(request, dict) else None,
        "input_digest": str(inner["inputDigest"]),
        "isolation": str(inner.get("isolation", "")),
        "compiler_cache": str(inner.get("compilerCache", "")),
        "kernel_stores": [dict(row) for row in inner.get("kernelStores", ())],
        **of_provenance(statement).as_json(),
        "command": request_command(request),
    }


def stored(row: Mapping[str, Any]) -> str:
    """Return a sentence with the number of kernels from a kernel store, and the key that signed them, if any."""
    signer = f"signed by {row['signer']}" if row["signer"] else "unsigned"
    return f"{int(row['kernels'])} kernels were taken from the kernel store {row['store']}, {signer}"


def named(statement: Mapping[str, Any]) -> str:
    """Return the name of the image in a provenance, with a note if it is partial or its contract was not checked."""
    row = summary(statement)
    part = f", a part: {row['partial']}" if row["partial"] else ""
    return f"{row['image']}{part}{'' if row['contract'] is not False else ', built without its contract check'}"
