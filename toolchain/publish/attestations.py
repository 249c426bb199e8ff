"""SBOM and provenance of finished images: what a build leaves for them, how they are made, and where they go."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.floors import load_floors
from toolchain.digest import canonical, sha256_json, write_atomically
from toolchain.errors import UnsupportedError, UntrustedError
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import diff_ids_of, timestamp
from toolchain.oci.layer_files import layer_files, read_member
from toolchain.oci.layout import Layout
from toolchain.oci.reference import Target
from toolchain.oci.referrers import attach, write_artifact
from toolchain.oci.registry import Registry
from toolchain.settings import EPOCH, Cache, Request
from toolchain.sources.patch import listed
from toolchain.stages.stage import Planned
from toolchain.trust import attest, dsse, keyless, sbom
from toolchain.trust.image_facts import Material, Package, Record, parse_dpkg_status, parse_lock
from toolchain.trust.keyless import Keyless
from toolchain.trust.keys import Signer
from toolchain.trust.verify import gather

PREDICATE_TYPE = "in-toto.io/predicate-type"
_BUNDLE = {"dev.sigstore.bundle.content": "dsse-envelope"}  # as cosign marks them
_ANNOTATED = {"org.opencontainers.image.created": timestamp(EPOCH)}


@dataclass(frozen=True)
class AttachedEvidence:
    """What was attached to an image: its kinds, by which way, and the bytes that were sent for it."""

    kinds: tuple[str, ...]
    signed_by: str
    how: str
    pushed_bytes: int

    def as_json(self) -> dict[str, Any]:
        """As `publish --json` prints it."""
        return {
            "kinds": list(self.kinds),
            "signed_by": self.signed_by,
            "how": self.how,
            "pushed_bytes": self.pushed_bytes,
        }


# At the end of a build


def run_facts(request: Request, planned: Planned, seconds: float) -> dict[str, Any]:
    """What a record holds for the provenance: when, by whom, on which request, with which sources.

    Paths of this machine and what the environment holds stay out of it.

    Args:
        seconds: that the build took; it ends now.
    """
    now = time.time()
    tool: dict[str, str] = {"version": __version__, "builder": attest.LOCAL_BUILDER}
    if os.environ.get("GITHUB_ACTIONS") == "true":
        server, repository = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
        tool["builder"] = f"{server}/{os.environ.get('GITHUB_WORKFLOW_REF', repository)}"
        tool["run"] = f"{server}/{repository}/actions/runs/{os.environ.get('GITHUB_RUN_ID', '')}"
    facts: dict[str, Any] = {
        "sources": [
            {
                **source.as_plan(),
                "kind": source.kind,
                "license": source.licensed,
                "locked": source.locked,
                "patches": listed(request.patches.get(source.name, ())),
            }
            for source in planned.sources
        ],
        "request": _request(request, planned),
        "started": round(now - seconds, 1),
        "finished": round(now, 1),
        "tool": tool,
    }
    if isolation := _isolation(request.cache):
        facts["isolation"] = isolation
    return facts


def _request(request: Request, planned: Planned) -> dict[str, Any]:
    named = {source.name: source.ref for source in planned.sources if source.name in request.sources}
    asked = {
        "stage": planned.name,
        # Of a local image the digest counts, which is among the inputs; its path is this machine's affair.
        "base": "oci:" if request.base.startswith("oci:") else request.base,
        "glibc": request.glibc or None,
        "arch": list(request.arch),
        "sources": named,
        "patches": {name: [path.name for path in files] for name, files in request.patches.items()},
        "triton": request.triton,
        "aotriton": request.aotriton,
        "gpus": list(request.gpus),
        "select": request.select,
        "limit": request.limit,
        "keep_going": request.keep_going,
        "allow_binary": list(request.allow_binary),
        "drop_binary": list(request.drop_binary),
        "pythons": list(request.pythons),
        "only": request.only,
        "compression": request.compression,
        "contract": request.contract,
    }
    return {name: value for name, value in asked.items() if value not in (None, [], {})}


def _isolation(cache: Cache) -> dict[str, Any] | None:
    try:
        value = json.loads((cache.engine / "isolation.json").read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


# When it is published


def collect(cache: Cache, record: Record, plan: Sequence[Planned]) -> Material:
    """What is known of a finished image.

    Args:
        record: of the image.
        plan: the stages that it was planned with, lowest first; those it rests on are found by their digests.
    """
    wanted = _digests_in(record)
    below: list[Record] = []
    for planned in reversed(plan):
        digest = planned.input_digest
        if digest is not None and digest in wanted and digest != record["input_digest"]:
            found = _record(cache, planned, digest)
            below.insert(0, found)
            wanted |= _digests_in(found)
    base = record if record["stage"] == "base" else next((one for one in below if one["stage"] == "base"), None)
    packages = _packages(cache, base) if base else ()
    for one in (record, *below):
        if one["stage"] == "sysroot":  # headers of these packages were compiled in
            packages = tuple(sorted({*packages, *_compiled_against(cache, one)}))
    return Material(
        record=record,
        below=tuple(below),
        packages=packages,
        isolation=_isolation(cache),
        finished=cache.record(record["input_digest"]).stat().st_mtime,
    )


def write_record(cache: Cache, record: Record) -> None:
    """Write the record of a finished stage: from now on the stage counts as finished."""
    write_atomically(cache.record(record["input_digest"]), json.dumps(record, indent=1).encode())


def read_record(cache: Cache, digest: str) -> Record:
    """The record of a finished stage."""
    value: Record = json.loads(cache.record(digest).read_bytes())
    return value


def _record(cache: Cache, planned: Planned, digest: str) -> Record:
    try:
        return read_record(cache, digest)
    except (OSError, ValueError):
        # A local image as base is taken as it is and leaves no record.
        inputs = dict(planned.inputs or {})
        return {
            "stage": planned.name,
            "image": planned.image,
            "input_digest": digest,
            "inputs": inputs,
            "manifest": inputs.get("image", ""),
            "arch": inputs.get("arch", ""),
        }


def _digests_in(record: Record) -> set[str]:
    return {value for value in (record.get("inputs") or {}).values() if isinstance(value, str)}


def _resolved(cache: Cache, stage: str, record: Record) -> tuple[Package, ...]:
    """What a base or sysroot was resolved to; nothing where its list is no longer the one that it was made of."""
    inputs = record.get("inputs") or {}
    try:
        name, arch = str(inputs.get("base", "")), str(inputs.get("arch", ""))
        if stage == "base":
            name = base_recipe(name, arch).name
        lock = json.loads(cache.package_list(stage, name, arch).read_bytes())
        return parse_lock(lock["packages"]) if sha256_json(lock) == inputs.get("packages") else ()
    except (OSError, ValueError, KeyError, UnsupportedError):
        return ()


def _compiled_against(cache: Cache, record: Record) -> tuple[Package, ...]:
    """The packages of a sysroot; those of an old system say of which, since the base has others of the same names."""
    found = _resolved(cache, "sysroot", record)
    glibc = str((record.get("inputs") or {}).get("base", "")).removeprefix("glibc-")
    floor = load_floors().get(glibc)
    return tuple(replace(one, system=floor.distro) for one in found) if floor else found


def _packages(cache: Cache, base: Record) -> tuple[Package, ...]:
    """The base's packages: from its resolved list if that is still the one of this base, else from its layers."""
    if found := _resolved(cache, "base", base):
        return found
    layout = Layout(cache.images)
    if not base.get("manifest") or not layout.has(base["manifest"]):
        return ()
    for layer in reversed(layout.children(layout.resolve(base["manifest"]))[1:]):
        content = read_member(layout.blob(layer.digest), layer.media_type, "var/lib/dpkg/status")
        if content is not None:
            return parse_dpkg_status(content.decode("utf-8", "replace"))
    return ()


def bill(material: Material, layout: Layout, manifest: Descriptor) -> dict[str, Any]:
    """The SBOM of an image in a layout."""
    config, *layers = layout.children(manifest)
    files = layer_files(layout.blob(layers[-1].digest), layers[-1].media_type)
    diff_id = diff_ids_of(layout.read_json(config))[-1]
    return sbom.sbom(material, manifest=manifest.digest, diff_id=diff_id, files=files)


def attach_evidence(
    material: Material,
    layout: Layout,
    manifest: Descriptor,
    index: Descriptor,
    dest: Target,
    *,
    signer: Signer | Keyless | None,
    registry: Registry | None = None,
    scratch: Path,
) -> AttachedEvidence:
    """Make SBOM and provenance of an image, and attach them to it and to its index.

    With a key or an identity both go in signed envelopes. Without one only the SBOM goes, as plain SPDX: what it lists
    anyone can compare with the bytes, while a provenance that nobody signed could not be told from an invented one.

    Args:
        layout: holds the image.
        dest: the repository or folder that holds it too.
        registry: an open connection to use.
        scratch: a folder for temporary files.

    Raises:
        RegistryError, DigestError, UnreachableError: as `oci.referrers.attach`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    document = bill(material, layout, manifest)
    contents: list[tuple[bytes, str, Mapping[str, str]]] = []
    known: dict[bytes, bytes] | None = None
    if signer is None:
        contents.append((canonical(document), sbom.MEDIA_TYPE, {}))
    else:
        about = attest.subjects(material.record["image"], [manifest.digest, index.digest])
        for statement in (attest.sbom_statement(document, about), attest.provenance(material, about)):
            notes = {PREDICATE_TYPE: statement["predicateType"]}
            if isinstance(signer, Signer):
                contents.append((dsse.sign(statement, signer).as_bytes(), dsse.MEDIA_TYPE, notes))
            else:
                if known is None:
                    known = _signed_before(signer, manifest, dest, scratch=scratch, registry=registry)
                content = known.get(canonical(statement)) or signer.sign(statement)
                contents.append((content, keyless.MEDIA_TYPE, {**notes, **_BUNDLE}))
    pushed, how = 0, "none"
    with tempfile.TemporaryDirectory(dir=scratch, prefix="evidence-") as folder:
        own = Layout(Path(folder)).ensure()
        blobs = [own.put_bytes(content, kind) for content, kind, _ in contents]
        for subject in (manifest, index):
            artifacts = [
                write_artifact(own, subject, blob, artifact_type=kind, annotations={**_ANNOTATED, **notes})
                for blob, (_, kind, notes) in zip(blobs, contents, strict=True)
            ]
            done = attach(own, artifacts, dest, registry=registry)
            pushed += done.pushed_bytes
            how = done.how if done.how != "none" else how
    kinds = ("sbom",) if signer is None else ("sbom", "provenance")
    who = signer.public.id if isinstance(signer, Signer) else signer.identity.id if signer is not None else ""
    return AttachedEvidence(kinds, who, how, pushed)


def _signed_before(
    signer: Keyless, manifest: Descriptor, dest: Target, *, scratch: Path, registry: Registry | None
) -> dict[bytes, bytes]:
    """Bundles of this identity by their payload: a new one would be another, and another entry in a public log."""
    found = {}
    with tempfile.TemporaryDirectory(dir=scratch, prefix="evidence-") as folder:
        for one in gather(dest, [manifest.digest], Layout(Path(folder)).ensure(), registry=registry):
            if one.media_type == keyless.MEDIA_TYPE:
                with contextlib.suppress(UntrustedError):
                    found[signer.identity.opened(one.content).payload] = one.content
    return found
