"""Make a CycloneDX 1.6 SBOM from the SPDX document of the same image.

Importing the CycloneDX library is slow, so callers import this module only when they need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model import (
    AttachedText,
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from toolchain import __version__
from toolchain.core import strict_json
from toolchain.core.digest import EPOCH
from toolchain.oci.layer_files import LayerFile
from toolchain.trust import sbom

_TYPES = {
    "CONTAINER": ComponentType.CONTAINER,
    "OPERATING_SYSTEM": ComponentType.OPERATING_SYSTEM,
    "FILE": ComponentType.FILE,
}
_STRAY = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ALGORITHMS = {"SHA256": HashAlgorithm.SHA_256, "SHA512": HashAlgorithm.SHA_512}
# SPDX relationships of these types mark a package as used only during the build.
_BUILD_ONLY = frozenset({"BUILD_DEPENDENCY_OF", "BUILD_TOOL_OF"})


def cyclonedx(spdx: Mapping[str, Any], files: Sequence[LayerFile], *, input_digest: str) -> dict[str, Any]:
    """Return a CycloneDX document with the content of an SPDX document.

    The document is deterministic: its serial number is a name-based UUID of the input digest, and its time is `EPOCH`.

    Args:
        files: the files of the image's own layer, which become components of the image's component.
    """
    texts = {row["licenseId"]: row for row in spdx.get("hasExtractedLicensingInfos", ())}
    rows = {row["SPDXID"]: row for row in spdx["packages"]}
    relations = [
        (row["spdxElementId"], row["relationshipType"], row["relatedSpdxElement"])
        for row in spdx["relationships"]
        if row["spdxElementId"] in rows and row["relatedSpdxElement"] in rows
    ]
    build_only = {element for element, kind, _ in relations if kind in _BUILD_ONLY}
    components = {name: _component(row, texts, build_only=name in build_only) for name, row in rows.items()}
    image = components.pop(sbom.IMAGE)
    image.properties.add(Property(name=sbom.DIFF_ID, value=rows[sbom.IMAGE]["sourceInfo"].removeprefix(sbom.LAYER)))
    for patch, kind, source in relations:
        if kind == "PATCH_FOR":
            (digest,) = (row["checksumValue"] for row in rows[patch]["checksums"])
            value = f"{rows[patch]['name']} sha256:{digest}"
            components[source].properties.add(Property(name="toolchain:patch", value=value))
            del components[patch]
    tool = Component(type=ComponentType.APPLICATION, name="toolchain", version=__version__, bom_ref="toolchain")
    bom = Bom(
        serial_number=uuid5(NAMESPACE_OID, input_digest),
        components=components.values(),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(EPOCH, UTC),
            tools=ToolRepository(components=[tool]),
            lifecycles=[PredefinedLifecycle(LifecyclePhase.BUILD)],
            component=image,
        ),
    )
    bom.register_dependency(image, components.values())
    document = dict(strict_json.read(JsonV1Dot6(bom).output_as_string()))
    if files:
        # The library is slow for thousands of files, so the files are added to its output.
        document["metadata"]["component"]["components"] = [
            _file(file) for file in sorted(files, key=attrgetter("path"))
        ]
    return document


def _component(row: Mapping[str, Any], texts: Mapping[str, Mapping[str, str]], *, build_only: bool) -> Component:
    name = row["SPDXID"]
    notes = {"toolchain:comment": row.get("comment"), "toolchain:source": row.get("sourceInfo")}
    if name.startswith(sbom.BINARY):
        notes[sbom.ALLOWED] = row["name"]
    purl = next((ref["referenceLocator"] for ref in row.get("externalRefs", ())), None)
    return Component(
        type=_TYPES.get(row["primaryPackagePurpose"], ComponentType.LIBRARY),
        name=row["name"],
        version=row.get("versionInfo"),
        bom_ref=name,
        scope=ComponentScope.EXCLUDED if build_only else None,
        hashes=[
            HashType(alg=_ALGORITHMS[sum_["algorithm"]], content=sum_["checksumValue"])
            for sum_ in row.get("checksums", ())
        ],
        licenses=_licenses(row["licenseDeclared"], texts),
        purl=PackageURL.from_string(purl) if purl else None,
        external_references=_locations(row["downloadLocation"]),
        properties=[Property(name=key, value=value) for key, value in notes.items() if value],
    )


def _file(file: LayerFile) -> dict[str, Any]:
    link = [{"name": "toolchain:symbolic-link", "value": file.target}] if file.kind == "link" else []
    return {
        "type": "file",
        "bom-ref": f"file:{file.path}",
        "name": file.path,
        "hashes": [{"alg": "SHA-256", "content": file.sha256}, {"alg": "SHA-512", "content": file.sha512}],
        **({"properties": link} if link else {}),
    }


def _licenses(
    declared: str, texts: Mapping[str, Mapping[str, str]]
) -> Iterable[LicenseExpression | DisjunctiveLicense]:
    declared_by = LicenseAcknowledgement.DECLARED
    if declared in {"NOASSERTION", "NONE"}:
        return []
    if text := texts.get(declared):
        content = AttachedText(content=text["extractedText"])
        return [DisjunctiveLicense(name=text["name"], text=content, acknowledgement=declared_by)]
    return [LicenseExpression(declared, acknowledgement=declared_by)]


def _locations(location: str) -> list[ExternalReference]:
    if location == "NOASSERTION":
        return []
    location = _STRAY.sub("%25", location)  # the library refuses a percent sign that encodes nothing
    kind = ExternalReferenceType.SCM if location.startswith("git+") else ExternalReferenceType.SOURCE_DISTRIBUTION
    return [ExternalReference(type=kind, url=XsUri(location))]
