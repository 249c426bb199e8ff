"""Make the SLSA v1 provenance of an image as an in-toto statement, and read its byproducts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from toolchain import __version__
from toolchain.core import strict_json
from toolchain.core.digest import canonical, sha256_json
from toolchain.core.record import LOCAL_BUILDER, STORED_KERNELS, Record, RecordedSource
from toolchain.core.strict_json import Keys
from toolchain.oci.image import timestamp
from toolchain.trust import sbom
from toolchain.trust.image_facts import ImageFacts, is_tool, origin, purl

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
# The project has no web address, so the build type is a URN. "Build type" in docs/trust.md documents it.
BUILD_TYPE = "urn:toolchain:build:v1"
_RESOURCE: Keys = dict.fromkeys(("name", "uri", "digest", "content", "downloadLocation", "mediaType", "annotations"))
KEYS: Keys = {
    **dict.fromkeys(("_type", "predicateType")),
    "subject": _RESOURCE,
    # The predicate may be an SBOM or a provenance, so the keys of both are listed.
    "predicate": {
        **sbom.KEYS,
        "buildDefinition": {
            **dict.fromkeys(("buildType", "externalParameters")),
            "internalParameters": dict.fromkeys(
                ("image", "stage", "partial", "inputs", "inputDigest", "recipeDigest", "binaries")
            ),
            "resolvedDependencies": _RESOURCE,
        },
        "runDetails": {
            "builder": dict.fromkeys(("id", "version", "builderDependencies")),
            "metadata": dict.fromkeys(("invocationId", "startedOn", "finishedOn")),
            "byproducts": _RESOURCE,
        },
    },
}
WITH_THE_BUILD = "with the build"
REPORT = "build-report"
_OF_PROBE = ("mode", "interfaces", "measures", "held", "buildah", "kernel", "runner")


class Resource(TypedDict, total=False):
    """A ResourceDescriptor of in-toto."""

    name: str
    uri: str
    digest: dict[str, str]
    content: str
    mediaType: str
    annotations: dict[str, Any]


class Statement(TypedDict):
    """An in-toto statement about the resources in `subject`."""

    _type: str
    subject: list[Resource]
    predicateType: str
    predicate: dict[str, Any]


def subjects(image: str, digests: Sequence[str]) -> list[Resource]:
    """Return one subject for each digest (`sha256:<hex>`); all subjects have the name `image`."""
    return [{"name": image, "digest": {"sha256": digest.removeprefix("sha256:")}} for digest in digests]


def statement(subject: Sequence[Resource], kind: str, predicate: Mapping[str, Any]) -> Statement:
    """Return an in-toto statement about the resources in `subject`, with a predicate of the type `kind`."""
    return {"_type": STATEMENT, "subject": list(subject), "predicateType": kind, "predicate": dict(predicate)}


def provenance(image_facts: ImageFacts, subject: Sequence[Resource]) -> Statement:
    """Return the provenance of an image as a statement about the resources in `subject`."""
    record = image_facts.record
    inputs = dict(record.inputs)
    finished = record.finished or image_facts.finished
    # Only the machine that built an image knows when its build started.
    started = finished if record.started is None else record.started
    metadata = {"startedOn": timestamp(started), "finishedOn": timestamp(finished)}
    if run := record.tool.get("run"):
        metadata["invocationId"] = str(run)
    return statement(
        subject,
        PREDICATE,
        {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": asked_for(image_facts),
                "internalParameters": {
                    "image": record.image,
                    "stage": record.stage,
                    "partial": record.partial,
                    "isolation": isolation_of(record),
                    "compilerCache": str(record.facts.get("compiler_cache", "none")),
                    "kernelStores": [dict(row) for row in record.rows(STORED_KERNELS)],
                    "inputs": inputs,
                    "inputDigest": record.input_digest,
                    "recipeDigest": sha256_json(inputs.get("recipe") or {}),
                    "binaries": sorted(name for name, _ in image_facts.binaries()),
                    "compressors": dict(image_facts.compressors),
                },
                "resolvedDependencies": _dependencies(image_facts),
            },
            "runDetails": {
                "builder": {
                    "id": record.tool.get("builder") or LOCAL_BUILDER,
                    "version": {"toolchain": record.tool.get("version") or __version__},
                },
                "metadata": metadata,
                "byproducts": _byproducts(image_facts),
            },
        },
    )


def isolation_of(record: Record) -> str:
    """Return the isolation mode of a build and the shortened digest of its isolation measures, separated by a space.

    If the record contains neither, return `none`.
    """
    facts = record.isolation or {}
    return " ".join(str(facts[key])[:19] for key in ("mode", "measures") if facts.get(key)) or "none"


def asked_for(image_facts: ImageFacts) -> dict[str, Any]:
    """Return the request in an image's record, with the sources that the requests for the lower stages named.

    The sources have the form of `--source`. A checkout is replaced by its tree in the store
    (`stored:NAME@sha256:DIGEST`), and a base in a layout folder by `oci:DIR@` and the digest of its manifest.
    """
    record = image_facts.record
    request = dict(record.request or {"stage": record.stage})
    sources = {str(name): str(text) for name, text in (request.get("sources") or {}).items()}
    for dependency in (*image_facts.dependencies, record):
        named = dependency.request.get("sources") or {}
        sources |= {row.name: spec_of(row) for row in dependency.sources if row.name in named}
    base = image_facts.base
    if request.get("base") == "oci:" and base is not None:
        request["base"] = f"oci:DIR@{base.manifest}"
    return request | ({"sources": sources} if sources else {})


def spec_of(row: RecordedSource) -> str:
    """Return the value of `--source` that selects a recorded source, without the `NAME=` before it."""
    match row.kind:
        case "git":
            return f"{row.repository}@{row.ref}"
        case "local":
            return f"stored:{row.ref.removeprefix('local:')}@{row.digest}"
        case _:
            return row.ref


def _dependencies(image_facts: ImageFacts) -> list[Resource]:
    sources = [
        _source(record, row)
        for record in (image_facts.record, *reversed(image_facts.dependencies))
        for row in sorted(record.sources, key=lambda source: source.name)
    ]
    return sources + [_stage(record) for record in reversed(image_facts.dependencies)]


def _source(record: Record, row: RecordedSource) -> Resource:
    known = origin(row)
    digest: dict[str, str] = {}
    if known.commit:
        digest = {"gitCommit": known.commit}
    elif (row.digest or "").startswith("sha256:"):
        # The digest of a checkout is the digest of a tree, so it must not be written as the SHA-256 of a file.
        value = str(row.digest).removeprefix("sha256:")
        digest = {"sha256": value} if known.sha256 and row.kind != "local" else {"toolchainTree": value}
    about: dict[str, Any] = {
        "role": "tool" if is_tool(row) else "source",
        "stage": record.stage,
        "repository": row.repository,
        "ref": row.ref,
    }
    if row.license:
        about["license"] = row.license
    about["locked"] = row.locked
    if row.patches:
        about["patches"] = [{"name": patch.name, "digest": patch.digest} for patch in row.patches]
    return {"name": row.name, "uri": known.purl, "digest": digest, "annotations": about}


def _stage(record: Record) -> Resource:
    name, manifest = record.image, record.manifest
    return {
        "name": name,
        "uri": purl("oci", name, version=manifest, arch=record.arch),
        "digest": {"sha256": manifest.removeprefix("sha256:")} if manifest else {},
        "annotations": {
            "role": "base" if record.stage == "base" else "stage",
            "stage": record.stage,
            "inputDigest": record.input_digest,
            # Unlike the digest of the manifest, the diff id does not depend on the compression.
            "diffId": record.diff_id,
        },
    }


def byproduct(statement: Mapping[str, Any], name: str, *, recorded: str | None = None) -> dict[str, Any] | None:
    """Return the JSON object in the byproduct `name` of a provenance; None if the provenance has no such byproduct.

    Args:
        recorded: the value that the byproduct's annotation `recorded` must have; None to accept any value.
    """
    for byproduct in statement["predicate"]["runDetails"].get("byproducts") or ():
        if byproduct["name"] == name and recorded in {None, (byproduct.get("annotations") or {}).get("recorded")}:
            value = strict_json.read(base64.b64decode(byproduct["content"], validate=True), name)
            return dict(value)
    return None


def _byproducts(image_facts: ImageFacts) -> list[Resource]:
    record = image_facts.record
    resources: list[Resource] = []
    if probe := record.isolation or image_facts.isolation:
        resources.append(_json_resource("isolation", {key: probe[key] for key in _OF_PROBE if key in probe}))
        when = WITH_THE_BUILD if record.isolation else "on the machine that published, after the build"
        resources[0]["annotations"] = {"recorded": when}
    return [*resources, *([_json_resource(REPORT, dict(record.facts))] if record.facts else [])]


def _json_resource(name: str, value: Mapping[str, Any]) -> Resource:
    content = base64.b64encode(canonical(value)).decode()
    return {"name": name, "mediaType": "application/json", "content": content}
