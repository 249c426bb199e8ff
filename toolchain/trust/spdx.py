"""Make an SBOM in SPDX 2.3.

Images get an SPDX document in addition to a CycloneDX document, because SPDX has a standard list of files, and because
Grype and Trivy read this version of SPDX.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from toolchain import __version__
from toolchain.core.digest import EPOCH, sha256_bytes
from toolchain.oci.image import timestamp
from toolchain.oci.layer_files import LayerFile
from toolchain.trust.image_facts import (
    ImageFacts,
    Origin,
    binary_row,
    distribution,
    is_tool,
    origin,
    purl,
)
from toolchain.trust.sbom import BINARY, IMAGE, LAYER

_NOTHING = "NOASSERTION"
_BUILT_FROM = "built package from: "  # the wording that Trivy writes and reads
# This is the spelling in the JSON schema of SPDX. In the tag-value format of SPDX, it is OPERATING-SYSTEM.
_OS = "OPERATING_SYSTEM"
# Scanners call these distributions by other names than package URLs do. The keys are the names in package URLs.
_SYSTEMS = {"almalinux": "alma"}


def spdx(image_facts: ImageFacts, *, manifest: bytes, diff_id: str, files: Sequence[LayerFile]) -> dict[str, Any]:
    """Return the SPDX document of an image.

    Args:
        manifest: the bytes of the image's manifest.
        diff_id: the digest of the image's own uncompressed layer.
        files: the files of that layer.
    """
    record = image_facts.record
    digest = sha256_bytes(manifest)
    packages = [_image(image_facts, manifest, diff_id, files)]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", IMAGE)]
    for package, related in (*_sources(image_facts), *_binaries(image_facts), *_base(image_facts)):
        packages.append(package)
        relations += related
    packages = list({package["SPDXID"]: package for package in packages}.values())
    licences = _declare(packages)
    rows = [_file(file) for file in files]
    relations += [(IMAGE, "CONTAINS", row["SPDXID"]) for row in rows]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": record.image,
        # SPDX recommends this form for documents without a web address. The input digest and the digest of the manifest
        # make it unique.
        "documentNamespace": f"https://spdx.org/spdxdocs/{record.image}-{_hex(record.input_digest)}-{_hex(digest)}",
        "creationInfo": {
            "created": timestamp(EPOCH),
            "creators": [f"Tool: toolchain-{__version__}"],
            "comment": "Build",  # the type of this SBOM, as CISA's "Types of SBOM documents" names it
        },
        **({"hasExtractedLicensingInfos": licences} if licences else {}),
        "packages": packages,
        "files": rows,
        "relationships": [
            {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": target}
            for element, kind, target in dict.fromkeys(relations)
        ],
    }


def _image(image_facts: ImageFacts, manifest: bytes, diff_id: str, files: Sequence[LayerFile]) -> dict[str, Any]:
    record = image_facts.record
    # SPDX defines the verification code as the SHA-1 of the sorted and concatenated SHA-1s of all files.
    code = hashlib.sha1("".join(sorted(file.sha1 for file in files)).encode(), usedforsecurity=False).hexdigest()
    comment = f"input digest {record.input_digest}"
    if record.partial:
        comment += f"; partial: {record.partial}"
    if glibc := record.inputs.get("glibc"):
        comment += f"; links with glibc {glibc} and later"
    return _package(
        IMAGE, record.image, _hex(record.input_digest)[:12], "CONTAINER",
        purl("oci", record.image, version=sha256_bytes(manifest), arch=record.arch),
        filesAnalyzed=True, packageVerificationCode={"packageVerificationCodeValue": code},
        checksums=_checksums(SHA256=_hex(sha256_bytes(manifest)), SHA512=hashlib.sha512(manifest).hexdigest()),
        sourceInfo=f"{LAYER}{diff_id}", comment=comment,
    )  # fmt: skip


def _file(file: LayerFile) -> dict[str, Any]:
    comment = f"{file.size} bytes"
    if file.kind == "link":
        comment = f"symbolic link; the checksums are those of its target: {file.target}"
    return {
        # An SPDX id cannot contain all characters of a path, so it contains a digest of the path.
        "SPDXID": f"SPDXRef-File-{_hex(sha256_bytes(file.path.encode()))[:32]}",
        "fileName": f"./{file.path}",
        "checksums": _checksums(SHA1=file.sha1, SHA256=file.sha256, SHA512=file.sha512),
        "licenseConcluded": _NOTHING,
        "copyrightText": _NOTHING,
        "comment": comment,
    }


def _package(spdx_id: str, name: str, version: str, purpose: str, url: str, **more: Any) -> dict[str, Any]:
    return {
        "SPDXID": spdx_id,
        "name": name,
        **({"versionInfo": version} if version else {}),
        "primaryPackagePurpose": purpose,
        "downloadLocation": _NOTHING,
        "filesAnalyzed": False,
        "licenseConcluded": _NOTHING,
        "licenseDeclared": _NOTHING,
        "copyrightText": _NOTHING,
        **({"externalRefs": [_purl(url)]} if url else {}),
        **{key: value for key, value in more.items() if value},
    }


_Related = tuple[dict[str, Any], list[tuple[str, str, str]]]


def _sources(image_facts: ImageFacts) -> Iterator[_Related]:
    prebuilt = [binary_row(name, record) for name, record in image_facts.binaries()]
    for record in (image_facts.record, *reversed(image_facts.dependencies)):
        for row in sorted(record.sources, key=lambda source: source.name):
            if any(row is binary for binary in prebuilt):
                continue  # `_binaries` yields it
            source = origin(row)
            spdx_id = f"SPDXRef-Source-{_id(record.stage)}-{_id(row.name)}"
            purpose = "LIBRARY" if is_tool(row) else "SOURCE"
            package = _package(
                spdx_id, row.name, source.version, purpose, source.purl,
                checksums=_checksums(SHA256=source.sha256),
                sourceInfo=f"{row.ref} from {row.repository}; digest {row.digest}",
                downloadLocation=source.location, licenseDeclared=row.license,
            )  # fmt: skip
            if is_tool(row):
                yield package, [(spdx_id, "BUILD_TOOL_OF", IMAGE)]
            else:
                yield package, [(IMAGE, "GENERATED_FROM" if record is image_facts.record else "DEPENDS_ON", spdx_id)]
            for number, patch in enumerate(row.patches, 1):
                patch_id = f"{spdx_id}-Patch-{number}"
                url = purl("generic", patch.name, version="", checksum=patch.digest)
                package = _package(
                    patch_id, patch.name, "", "SOURCE", url, checksums=_checksums(SHA256=_hex(patch.digest))
                )
                yield package, [(patch_id, "PATCH_FOR", spdx_id)]


def _binaries(image_facts: ImageFacts) -> Iterator[_Related]:
    inside = _inside(image_facts)
    for name, record in image_facts.binaries():
        row = binary_row(name, record)
        known = origin(row) if row else Origin(purl("generic", *name.split("/"), version=""), "", _NOTHING)
        spdx_id = f"{BINARY}{_id(name)}"
        package = _package(
            spdx_id, name, known.version, "LIBRARY", known.purl,
            checksums=_checksums(SHA256=known.sha256),
            comment=f"prebuilt; accepted by --allow-binary {name}",
            licenseDeclared=row.license if row else None,
        )  # fmt: skip
        contained = record is image_facts.record or record.stage in inside
        yield package, [(IMAGE, "CONTAINS", spdx_id) if contained else (spdx_id, "BUILD_DEPENDENCY_OF", IMAGE)]
    for file, record in image_facts.prebuilt_files():
        path = str(file["path"])
        spdx_id = f"SPDXRef-Prebuilt-{_id(record.stage)}-{_id(path)}"
        sums = _checksums(SHA256=_hex(file["sha256"]))
        url = purl("generic", path.rpartition("/")[2], version="", checksum=str(file["sha256"]))
        why = f"{file['what']} in a source of {record.image}; {file['fate']}"
        package = _package(spdx_id, path, "", "FILE", url, checksums=sums, comment=why)
        yield package, [(spdx_id, "BUILD_DEPENDENCY_OF", IMAGE)]


def _inside(image_facts: ImageFacts) -> set[str]:
    """Return the names of the lower stages whose layers are part of the image."""
    own = {*image_facts.record.layer_digests}
    return {
        dependency.stage
        for dependency in image_facts.dependencies
        if dependency.layers and {*dependency.layer_digests} <= own
    }


def _base(image_facts: ImageFacts) -> Iterator[_Related]:
    if not image_facts.packages:
        return
    contained = image_facts.record.stage == "base" or "base" in _inside(image_facts)
    family, release = distribution(image_facts.base_name)
    # Scanners recognise this package by its id or its purpose, and select the security advisories of its distribution.
    system = f"SPDXRef-OperatingSystem-{_id(family)}-{_id(release)}".rstrip("-")
    package = _package(system, _SYSTEMS.get(family, family), release, _OS, "")
    yield package, [_part(system, contained=contained)]
    for installed in image_facts.packages:
        # A system may contain several versions of a package, such as a kernel.
        parts = (installed.kind, installed.name, installed.version, installed.arch, installed.system)
        spdx_id = "SPDXRef-Package-" + "-".join(_id(part) for part in parts if part)
        package = _package(
            spdx_id, installed.name, installed.version, "LIBRARY", installed.purl(image_facts.base_name),
            checksums=_checksums(SHA256=installed.sha256),
            comment="prebuilt by the distribution",
            sourceInfo=f"{_BUILT_FROM}{installed.source}" if installed.source else "",
        )  # fmt: skip
        yield package, [_part(spdx_id, contained=contained), (system, "CONTAINS", spdx_id)]


def _part(spdx_id: str, *, contained: bool) -> tuple[str, str, str]:
    return (IMAGE, "CONTAINS", spdx_id) if contained else (spdx_id, "BUILD_DEPENDENCY_OF", IMAGE)


def _declare(packages: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Replace the declared licence of each package by a valid SPDX expression.

    A licence that is not a valid expression is replaced by an id. The replaced texts and their ids are returned in the
    form of SPDX's `hasExtractedLicensingInfos`, sorted by id. `NOASSERTION` and `NONE` are not changed.
    """
    extracted: dict[str, dict[str, str]] = {}
    for package in packages:
        declared = package["licenseDeclared"]
        if declared in {_NOTHING, "NONE"}:
            continue
        try:
            package["licenseDeclared"] = str(canonicalize_license_expression(declared))
        except InvalidLicenseExpression:
            own = f"LicenseRef-{_hex(sha256_bytes(declared.encode()))[:12]}"
            package["licenseDeclared"] = own
            extracted[own] = {"licenseId": own, "extractedText": declared, "name": declared.splitlines()[0][:80]}
    return [extracted[name] for name in sorted(extracted)]


def _checksums(**values: str) -> list[dict[str, str]]:
    return [{"algorithm": name, "checksumValue": value} for name, value in values.items() if value]


def _purl(text: str) -> dict[str, str]:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": text}


def _hex(digest: str) -> str:
    return str(digest).removeprefix("sha256:")


def _id(text: str) -> str:
    """Return `text` in a form that can be part of an SPDX id.

    Characters that an id must not contain become dashes. If a character was replaced, a digest of the text is appended,
    so that different texts still have different ids.
    """
    plain = "".join(char if char.isascii() and (char.isalnum() or char in ".-") else "-" for char in str(text))
    return plain if plain == text else f"{plain}-{_hex(sha256_bytes(str(text).encode()))[:8]}"
