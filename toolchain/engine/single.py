"""Make OCI layouts that contain a single tagged image, for programs that can select an image only by its tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain.core.digest import canonical, sha256_bytes
from toolchain.core.errors import EngineError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import check_digest
from toolchain.oci.image import diff_ids_of
from toolchain.oci.manifest import CONFIG_KEYS, parse_object


def single_layout(layout: Path, digest: str, into: Path) -> Path:
    """Make a layout below `into` that contains only one image, tagged `image`, and return the path of the new layout.

    The image's configuration and layers are links into `layout`. A manifest in docker's format is converted to OCI's.
    Raise an EngineError if the manifest is not in `layout`.
    """
    content = _content(layout, digest)
    single = into / f"layout-{into.name}"
    single.mkdir()
    manifest = parse_object(content, digest)
    if manifest.get("mediaType") == media.DOCKER_MANIFEST:
        content = canonical(_as_oci(manifest))
        digest = sha256_bytes(content)
    _link_blobs(layout, manifest, single / "blobs" / "sha256")
    (single / "blobs" / digest.replace(":", "/")).write_bytes(content)
    entry: dict[str, object] = {
        "mediaType": media.MANIFEST,
        "digest": digest,
        "size": len(content),
        "annotations": {media.REF_NAME: "image"},
    }
    (single / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="ascii")
    index: Mapping[str, object] = {"schemaVersion": 2, "manifests": [entry]}
    (single / "index.json").write_text(json.dumps(index), encoding="ascii")
    return single


def layers_of(layout: Path, digest: str) -> list[str]:
    """Return the digests of an image's uncompressed layers, lowest first."""
    config = str(parse_object(_content(layout, digest), digest)["config"]["digest"])
    return diff_ids_of(parse_object(_content(layout, check_digest(config)), config, keys=CONFIG_KEYS))


def _content(layout: Path, digest: str) -> bytes:
    try:
        return (layout.absolute() / "blobs" / digest.replace(":", "/")).read_bytes()
    except OSError as error:
        raise EngineError(
            "build-image-missing",
            f"{layout} has no image {digest}",
            why=str(error.strerror),
            fix="build the image again",
        ) from error


def _as_oci(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a docker manifest with OCI's media types, which programs expect in an OCI layout."""

    def converted(part: Mapping[str, Any]) -> dict[str, Any]:
        return {**part, "mediaType": media.AS_OCI.get(part["mediaType"], part["mediaType"])}

    return {
        **converted(manifest),
        "config": converted(manifest["config"]),
        "layers": [converted(layer) for layer in manifest["layers"]],
    }


def _link_blobs(layout: Path, manifest: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True)
    for digest in {str(part["digest"]) for part in (manifest["config"], *manifest["layers"])}:
        blob = check_digest(digest).replace(":", "/")
        (folder / Path(blob).name).symlink_to(layout.absolute() / "blobs" / blob)
