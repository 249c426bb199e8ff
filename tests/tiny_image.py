"""A container image of a few hundred kilobytes, made from the host's shell, so that engine tests take seconds."""

from __future__ import annotations

import gzip
import io
import json
import platform
import tarfile
from pathlib import Path

from toolchain.core.digest import sha256_bytes
from toolchain.engine.isolation import tiny_root


def make(folder: Path) -> tuple[Path, str]:
    """Write an OCI layout with one image with /bin/sh to `folder/layout`; return it and the manifest's digest."""
    root = tiny_root(folder / "root")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, path.relative_to(root).as_posix(), recursive=False)
    layout = folder / "layout"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, media: str) -> dict[str, object]:
        digest = sha256_bytes(content)
        (blobs / digest.removeprefix("sha256:")).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": digest, "size": len(content)}

    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256_bytes(raw.getvalue())]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(config).encode(), "config.v1+json"),
        "layers": [put(gzip.compress(raw.getvalue(), mtime=0), "layer.v1.tar+gzip")],
    }
    descriptor = put(json.dumps(manifest).encode(), "manifest.v1+json")
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [descriptor]}))
    return layout, str(descriptor["digest"])
