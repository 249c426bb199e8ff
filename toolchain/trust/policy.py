"""Demands on an image beyond authenticity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from toolchain.catalog.stages import of_packages
from toolchain.digest import sha256_json
from toolchain.errors import ConfigError, UntrustedError
from toolchain.trust import attest, sbom
from toolchain.trust.contents import of_provenance
from toolchain.trust.invocation import invocation

_TIME = "%Y-%m-%dT%H:%M:%SZ"
# Clocks differ; a later time is forged or from a broken clock.
_SLACK = timedelta(hours=1)
_DAY = 86400.0


POLICIES = ("source-only", "isolated", "fresh")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Demands.

    Args:
        source_only: nothing prebuilt but what `allow` names. The base distribution's own packages are not meant: they
            are listed in the SBOM and are the distribution's.
        isolated: an isolation of the build was proved on the machine that built.
        fresh: it was built without a compiler cache.
        allow: names of prebuilt things, as `--allow-binary` takes them.
        source_repos: every source of the image must come from one of these (see `normal_repository`).
        max_age: days since the build ended; None for no limit.
        input_digest: the image must be made from exactly these inputs; None for any.
        image: the name that its provenance must give it; None for any.
    """

    source_only: bool = False
    isolated: bool = False
    fresh: bool = False
    allow: tuple[str, ...] = ()
    source_repos: tuple[str, ...] = ()
    max_age: float | None = None
    input_digest: str | None = None
    image: str | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is demanded."""
        return self == Policy(allow=self.allow)


def make_policy(
    name: str | None,
    *,
    allow: Sequence[str] = (),
    source_repos: Sequence[str] = (),
    max_age: float | None = None,
    image: str | None = None,
) -> Policy:
    """A policy from option values.

    Raises:
        ConfigError: no such policy, or not a repository.
    """
    names = [] if name is None else [part.strip() for part in name.split(",")]
    if unknown := [part for part in names if part not in POLICIES]:
        raise ConfigError(f"no such policy: {unknown[0]!r}", fix=f"one of {', '.join(POLICIES)}, comma-separated")
    repos = tuple(normal_repository(repo) for repo in source_repos)
    return Policy(
        source_only="source-only" in names,
        isolated="isolated" in names,
        fresh="fresh" in names,
        allow=tuple(allow),
        source_repos=repos,
        max_age=max_age,
        image=image,
    )


def normal_repository(text: str) -> str:
    """A repository as it is compared: `OWNER/NAME` is GitHub's, URLs lose `.git` and a slash at the end.

    Raises:
        ConfigError: neither, nor a single word such as `debian` or `pypi`.
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*", text):
        text = f"https://github.com/{text}"
    parts = urlsplit(text)
    if parts.fragment:
        raise ConfigError(f"{text!r} is not a repository", why="it names a part of one", fix="leave out what follows #")
    if parts.scheme in {"https", "http", "ssh"} and parts.netloc:
        host = parts.netloc.lower()
        path = parts.path.rstrip("/").removesuffix(".git")
        # GitHub does not tell upper from lower case; others may.
        query = f"?{parts.query}" if parts.query else ""  # some hosts choose the repository by it
        return f"{parts.scheme}://{host}{path.lower() if host == 'github.com' else path}{query}"
    if re.fullmatch(r"[a-z0-9]+", text):
        return text
    raise ConfigError(f"{text!r} is not a repository", fix="give OWNER/NAME or the URL, as https://HOST/PATH")


def _same(repository: str, wanted: Sequence[str]) -> bool:
    try:
        return normal_repository(repository) in wanted
    except ConfigError:
        return False


# What is looked at, in order. Each gives the first thing that is wrong, or nothing.

Check = Literal["provenance", "source-repo", "age", "policy"]


def check_provenance(statement: Mapping[str, Any], demands: Policy, *, label: str | None) -> Iterator[str]:
    """Whether a provenance is this tool's and agrees with itself and with the image.

    Args:
        statement: whose subject is right and whose signature was checked.
        demands: which inputs and which image it must be about.
        label: the image's `toolchain.input-digest`; None if the image has none.
    """
    definition = statement["predicate"]["buildDefinition"]
    if definition["buildType"] != attest.BUILD_TYPE:
        yield f"it is of another kind of build: {definition['buildType']}"
    inner = definition["internalParameters"]
    if sha256_json(inner["inputs"]) != inner["inputDigest"]:
        yield "input digest mismatch: its inputs have another digest than it names"
    if label is not None and inner["inputDigest"] != label:
        yield f"it is about the inputs {inner['inputDigest']}, the image was labelled with {label}"
    if demands.input_digest is not None and inner["inputDigest"] != demands.input_digest:
        yield f"it is about the inputs {inner['inputDigest']}, wanted is what is made from {demands.input_digest}"
    if demands.image is not None and inner["image"] != demands.image:
        yield f"it is about {inner['image']}, not about {demands.image}"
    if not any(row["annotations"]["role"] == "source" for row in definition["resolvedDependencies"]) and (
        inner["stage"] not in of_packages()  # they are packages, which the SBOM lists
    ):
        yield "it names no source"


def check_sources(statement: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """The sources of the image itself that come from none of the repositories that are demanded."""
    if not policy.source_repos:
        return
    definition = statement["predicate"]["buildDefinition"]
    stage = definition["internalParameters"]["stage"]
    rows = [
        row
        for row in definition["resolvedDependencies"]
        if (row["annotations"]["role"], row["annotations"]["stage"]) == ("source", stage)
    ]
    if not rows:
        yield "the image has no source of its own"
    for row in rows:
        repository = str(row["annotations"]["repository"])
        if not _same(repository, policy.source_repos):
            yield f"the source {row['name']} comes from {repository}, not from {' or '.join(policy.source_repos)}"


def check_age(statement: Mapping[str, Any], policy: Policy, now: datetime) -> Iterator[str]:
    """Whether the build is too old, or from the future."""
    text = str(statement["predicate"]["runDetails"]["metadata"]["finishedOn"])
    finished = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    if finished > now + _SLACK:
        yield f"the build ended at {text}, which is in the future"
    if policy.max_age is not None and (now - finished).total_seconds() > policy.max_age * _DAY:
        yield f"the build ended at {text}, longer ago than {policy.max_age:g} days"


def check_binaries(statement: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Whether provenance and SBOM name the same prebuilt things."""
    named, listed = _binaries(statement), sbom.binaries_in(document)
    if named != listed:
        yield f"provenance and SBOM disagree about prebuilt things: {', '.join(named)} and {', '.join(listed)}"


def require_policy(statement: Mapping[str, Any], policy: Policy) -> None:
    """Check an image against a policy.

    Raises:
        UntrustedError: it is not met; where an option would lift the refusal, `fix` names it.
    """
    try:
        first("policy", check_allowed(statement, policy))
    except UntrustedError as error:
        error.fix = remedy(statement, policy)
        raise
    try:
        first("policy", check_build(statement, policy))
    except UntrustedError as error:
        error.fix = "have it built again as the policy demands (with --fresh for `fresh`), or demand less"
        raise


def kept(policy: Policy) -> str:
    """The demands of a policy that was met, for display; empty if none was demanded."""
    held = (
        (policy.source_only, "nothing prebuilt but what was allowed"),
        (policy.isolated, "built in a proved isolation"),
        (policy.fresh, "built without a compiler cache"),
    )
    return "; ".join(text for demanded, text in held if demanded)


def check_build(statement: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """Whether the build was isolated, and without a compiler cache, as far as that is demanded."""
    inner = statement["predicate"]["buildDefinition"]["internalParameters"]
    if policy.isolated and str(inner["isolation"]) == "none":
        yield "no isolation of the build was proved"
    if policy.fresh and str(inner["compilerCache"]) != "none":
        yield f"it was built with the compiler cache {inner['compilerCache']}, and not with `fresh`"


def check_allowed(statement: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    """The prebuilt things that a provenance names and the policy does not allow."""
    if policy.source_only:
        names = [name for name in _binaries(statement) if name not in policy.allow]
        if names:
            yield f"it was made with the prebuilt {', '.join(names)}, which is not allowed"


def _binaries(statement: Mapping[str, Any]) -> list[str]:
    return sorted(statement["predicate"]["buildDefinition"]["internalParameters"]["binaries"])


def first(check: Check, problems: Iterator[str]) -> None:
    """Raise for the first problem.

    Raises:
        UntrustedError: there is one, or what was looked at is malformed.
    """
    try:
        problem = next(problems, None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UntrustedError(f"{check}: the statement is malformed", why=repr(error)) from error
    if problem is not None:
        raise UntrustedError(f"{check}: {problem}")


def summary(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize a trusted provenance: the image's name, whether it is partial, and whether its contract was checked."""
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
        **of_provenance(statement).as_json(),
        "command": invocation(statement),
    }


def remedy(statement: Mapping[str, Any], policy: Policy) -> str:
    """The option that would lift the refusal of an otherwise trusted image; empty if there is none."""
    names = [name for name in _binaries(statement) if name not in policy.allow] if policy.source_only else []
    return f"if you accept them: {' '.join(f'--allow-binary {name}' for name in names)}" if names else ""


def named(statement: Mapping[str, Any]) -> str:
    """`summary` in a few words for display."""
    row = summary(statement)
    part = f", a part: {row['partial']}" if row["partial"] else ""
    return f"{row['image']}{part}{'' if row['contract'] is not False else ', built without its contract check'}"
