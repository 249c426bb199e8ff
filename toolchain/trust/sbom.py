"""Define the two SBOM formats, and read from both the facts that `verify` compares with an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolchain.core.errors import UntrustedError
from toolchain.core.strict_json import Keys
from toolchain.oci.layer_files import LayerFile

# In SPDX documents, the image itself is a package with this id, and the ids of prebuilt inputs have this prefix.
IMAGE, BINARY = "SPDXRef-Image", "SPDXRef-Binary-"
LAYER = "files are those of the layer with diff_id "
# In CycloneDX documents, these properties contain the diff id of the image's layer, and the name of a prebuilt input.
DIFF_ID, ALLOWED = "toolchain:diff-id", "toolchain:allow-binary"
# This is the limit in bytes for a document. An SBOM needs 750 bytes for a file, and the limit of `strict_json` for the
# number of values allows 150,000 files.
LARGEST = 160 << 20
_CHECKSUM: Keys = dict.fromkeys(("algorithm", "checksumValue"))
_COMPONENT: Keys = {
    **dict.fromkeys(("type", "name", "bom-ref", "components")),
    "hashes": dict.fromkeys(("alg", "content")),
    "properties": dict.fromkeys(("name", "value")),
}
_MALFORMED = (KeyError, TypeError, AttributeError, StopIteration)
# These are the known keys of documents in either format (see `strict_json.read`).
KEYS: Keys = {
    **dict.fromkeys(("spdxVersion", "SPDXID", "name", "relationships")),
    "packages": {**dict.fromkeys(("SPDXID", "name", "sourceInfo")), "checksums": _CHECKSUM},
    "files": {**dict.fromkeys(("SPDXID", "fileName")), "checksums": _CHECKSUM},
    **dict.fromkeys(("bomFormat", "specVersion", "serialNumber", "dependencies")),
    "metadata": {"component": {**_COMPONENT, "components": _COMPONENT}},
    "components": _COMPONENT,
}


@dataclass(frozen=True)
class Listing:
    """The facts about an image that its SBOM states.

    Args:
        diff_id: the digest of the uncompressed layer that contains the files.
        files: a SHA-256 in hex for each path in the layer. For a file, it is the SHA-256 of the content. For a symbolic
            link, it is the SHA-256 of the path to which the link points.
        binaries: the names of the prebuilt inputs, as in `--allow-binary`, sorted.
    """

    manifest: str
    diff_id: str
    files: Mapping[str, str]
    binaries: tuple[str, ...]

    def require(self, files: Sequence[LayerFile]) -> None:
        """Raise UntrustedError if the files of a layer differ from the listed files.

        The error names the first path that is missing on one side, or that has different content.
        """
        there = {file.path: file for file in files}
        for path in sorted(self.files.keys() | there.keys()):
            if path not in there:
                raise UntrustedError("sbom-extra-file", f"sbom: /{path} is in the SBOM but not in the layer")
            if path not in self.files:
                raise UntrustedError("sbom-lacks-file", f"sbom: /{path} is in the layer but not in the SBOM")
            if self.files[path] != there[path].sha256:
                raise UntrustedError("sbom-other-content", f"sbom: /{path} has other content than the SBOM states")


@dataclass(frozen=True)
class Format:
    """A format of SBOMs.

    Args:
        kind: the name under which `publish` reports a document in this format.
        media_type: the media type of an unsigned document.
        predicate: the predicate type of a signed statement that contains a document.
        manifest: a function that returns the digest of the image that a document describes.
        parse: a function that returns the facts in a document. `parse` and `manifest` raise KeyError, TypeError,
            AttributeError or StopIteration for a malformed document. `parse` raises UntrustedError if a file is listed
            twice.
    """

    kind: str
    media_type: str
    predicate: str
    manifest: Callable[[Mapping[str, Any]], str]
    parse: Callable[[Mapping[str, Any]], Listing]

    def describes(self, document: Mapping[str, Any], manifest: str) -> bool:
        """Return whether a document describes the image with the digest `manifest`.

        Only the digest in the document is read, so its other fields may still be malformed.
        """
        try:
            return self.manifest(document) == manifest
        except _MALFORMED:
            return False

    def read(self, document: Mapping[str, Any]) -> Listing:
        """Return the facts in a document; raise UntrustedError if it is malformed or lists a file twice."""
        try:
            return self.parse(document)
        except _MALFORMED as error:
            raise UntrustedError(
                "sbom-malformed", "sbom: it is malformed", why="a field is missing, or has another form"
            ) from error


def _files(rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    files = dict(rows)
    if len(files) != len(rows):
        raise UntrustedError("sbom-file-twice", "sbom: it lists a file twice")
    return files


def _spdx_image(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(package for package in document["packages"] if package["SPDXID"] == IMAGE)


def _spdx_sha256(row: Mapping[str, Any]) -> str:
    return next(str(each["checksumValue"]) for each in row["checksums"] if each["algorithm"] == "SHA256")


def _spdx_manifest(document: Mapping[str, Any]) -> str:
    return f"sha256:{_spdx_sha256(_spdx_image(document))}"


def _from_spdx(document: Mapping[str, Any]) -> Listing:
    names = (str(row["name"]) for row in document["packages"] if str(row["SPDXID"]).startswith(BINARY))
    return Listing(
        manifest=_spdx_manifest(document),
        diff_id=str(_spdx_image(document)["sourceInfo"]).removeprefix(LAYER),
        files=_files([(str(row["fileName"]).removeprefix("./"), _spdx_sha256(row)) for row in document["files"]]),
        binaries=tuple(sorted(names)),
    )


def _cyclonedx_sha256(row: Mapping[str, Any]) -> str:
    return next(str(each["content"]) for each in row["hashes"] if each["alg"] == "SHA-256")


def _cyclonedx_manifest(document: Mapping[str, Any]) -> str:
    return f"sha256:{_cyclonedx_sha256(document['metadata']['component'])}"


def _values(row: Mapping[str, Any], name: str) -> list[str]:
    return [str(each["value"]) for each in row.get("properties", ()) if each["name"] == name]


def _from_cyclonedx(document: Mapping[str, Any]) -> Listing:
    image = document["metadata"]["component"]
    names = (name for row in document.get("components", ()) for name in _values(row, ALLOWED))
    return Listing(
        manifest=_cyclonedx_manifest(document),
        diff_id=next(iter(_values(image, DIFF_ID))),
        files=_files([(str(row["name"]), _cyclonedx_sha256(row)) for row in image.get("components", ())]),
        binaries=tuple(sorted(names)),
    )


# in-toto defines two predicate types for SPDX, one of which contains the version of SPDX. The other one is used here,
# because cosign and similar programs use it.
SPDX = Format("sbom", "application/spdx+json", "https://spdx.dev/Document", _spdx_manifest, _from_spdx)
CYCLONEDX = Format(
    "cyclonedx", "application/vnd.cyclonedx+json", "https://cyclonedx.org/bom", _cyclonedx_manifest, _from_cyclonedx
)
FORMATS = (SPDX, CYCLONEDX)
