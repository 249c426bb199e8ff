"""Write and read configs, manifests and indexes; the same content is always written as the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from toolchain.core.digest import EPOCH
from toolchain.core.errors import RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.labels import CREATED, TITLE
from toolchain.oci.layer import Blob
from toolchain.oci.layout import Layout


@dataclass(frozen=True)
class LayerBlob:
    """A layer of an image: its blob, the digest of its tar, and the text `created_by` for the image's history."""

    descriptor: Descriptor
    diff_id: str
    created_by: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """The content of an image for one platform.

    Args:
        arch: OCI's name for the architecture (`amd64`, `arm64`); the operating system is Linux.
        layers: the layers, lowest first.
        labels: the labels of the config.
        annotations: the annotations of the manifest.
        environment: the environment variables in the config.
    """

    arch: str
    layers: tuple[LayerBlob, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def timestamp(seconds: float) -> str:
    """Return a Unix time as an RFC 3339 timestamp in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def standard_annotations(title: str) -> dict[str, str]:
    """Return the annotations `created`, with the fixed time `EPOCH`, and `title` for a manifest or index."""
    return {CREATED: timestamp(EPOCH), TITLE: title}


def add_layer(layout: Layout, blob: Blob, *, created_by: str = "", move: bool = False) -> LayerBlob:
    """Store the blob of a layer in a layout, and return the layer; with `move`, its file is moved instead of copied."""
    stored = layout.put_file(blob.path, digest=blob.digest, move=move, media_type=blob.media_type)
    return LayerBlob(stored, blob.diff_id, created_by)


def read_layers(layout: Layout, manifest: Descriptor) -> tuple[LayerBlob, ...]:
    """Return the layers of an image, lowest first.

    RegistryError is raised if the number of diff ids in the config differs from the number of layers.
    """
    config, *layers = layout.children(manifest)
    diff_ids = diff_ids_of(layout.read_json(config))
    if len(diff_ids) != len(layers):
        raise RegistryError(
            "image-malformed",
            f"the image {manifest.digest} is malformed",
            why=f"it has {len(layers)} layers and {len(diff_ids)} diff_ids",
            fix="download or build it again",
        )
    return tuple(LayerBlob(layer, diff_id) for layer, diff_id in zip(layers, diff_ids, strict=True))


def with_layers(layout: Layout, manifest: Descriptor, layers: Sequence[LayerBlob]) -> Descriptor:
    """Store a copy of an image's manifest with `layers` as its layers, and return the descriptor of the copy.

    Args:
        layers: the layers, lowest first. Their diff ids must be those in the image's config.
    """
    value = layout.read_json(manifest)
    value["layers"] = [layer.descriptor.plain.as_json() for layer in layers]
    return layout.put_json(value, media.MANIFEST)


def diff_ids_of(config: Mapping[str, Any]) -> list[str]:
    """Return the diff ids in a config, lowest first; an empty list if there is no such list.

    A diff id is the digest of an uncompressed layer.
    """
    rootfs = config.get("rootfs")
    values = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    return [str(text) for text in values] if isinstance(values, list) else []


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a config; an empty dictionary if there are none."""
    run = config.get("config")
    values = run.get("Labels") if isinstance(run, dict) else None
    return {str(name): str(text) for name, text in values.items()} if isinstance(values, dict) else {}


def platform_of(config: Mapping[str, Any]) -> Platform:
    """Return the platform that a config names; a field that the config lacks is empty."""
    return Platform(
        str(config.get("os") or ""), str(config.get("architecture") or ""), str(config.get("variant") or "")
    )


def write_image(layout: Layout, spec: ImageSpec) -> Descriptor:
    """Store the config and the manifest of an image whose layers the layout contains; return the image's descriptor."""
    for layer in spec.layers:
        layout.blob(layer.descriptor.digest)
    history = [layer.created_by or "toolchain" for layer in spec.layers]
    platform = Platform("linux", spec.arch)
    created = timestamp(EPOCH)
    run: dict[str, Any] = {"Labels": dict(spec.labels)} if spec.labels else {}
    if spec.environment:
        run["Env"] = [f"{name}={value}" for name, value in sorted(spec.environment.items())]
    config = layout.put_json(
        {
            **platform.as_json(),
            "created": created,
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in spec.layers]},
            "history": [{"created": created, "created_by": line} for line in history],
        },
        media.CONFIG,
    )
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": media.MANIFEST,
        "config": config.as_json(),
        "layers": [layer.descriptor.plain.as_json() for layer in spec.layers],
    }
    if spec.annotations:
        manifest["annotations"] = dict(spec.annotations)
    return replace(layout.put_json(manifest, media.MANIFEST), platform=platform)


def write_index(
    layout: Layout, manifests: Sequence[Descriptor], annotations: Mapping[str, str] | None = None
) -> Descriptor:
    """Store an index of images, sorted by platform, and return its descriptor; the order of `manifests` is ignored.

    RegistryError is raised if `manifests` is empty, if the layout lacks an image, if an image has no platform, or if
    two different images have the same platform.
    """
    if not manifests:
        raise RegistryError("index-empty", "there is no image for the index", fix="build at least one architecture")
    keyed: dict[Platform, Descriptor] = {}
    for manifest in manifests:
        layout.blob(manifest.digest)
        if manifest.platform is None:
            raise RegistryError(
                "image-without-platform",
                f"{manifest.digest} has no platform",
                why="an index needs the platform of each image",
                fix="build the image again",
            )
        if keyed.setdefault(manifest.platform, manifest).digest != manifest.digest:
            raise RegistryError(
                "platform-twice",
                f"there are two images for {manifest.platform}",
                why=f"{keyed[manifest.platform].digest} and {manifest.digest}",
                fix="remove one of them",
            )
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": media.INDEX,
        "manifests": [keyed[platform].as_json() for platform in sorted(keyed)],
    }
    if annotations:
        value["annotations"] = dict(annotations)
    return layout.put_json(value, media.INDEX)
