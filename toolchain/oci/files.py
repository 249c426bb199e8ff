"""Plain files as an OCI artifact, one layer for each file, named by its title as other clients expect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.core.errors import HostileInputError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import standard_annotations
from toolchain.oci.labels import TITLE
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of

TYPE = "application/vnd.toolchain.files.v1"
TAG = "files"
_MEDIA_TYPES = {".whl": "application/zip", ".tar.gz": "application/gzip", ".json": "application/json"}
_ANY = "application/octet-stream"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~!-]{0,254}")


@dataclass(frozen=True)
class PlainFile:
    """A file of an artifact, and its blob with the file's own media type."""

    name: str
    blob: Descriptor

    def as_json(self) -> dict[str, Any]:
        """Return the form of `--json`."""
        return {
            "file": self.name,
            "media_type": self.blob.media_type,
            "digest": self.blob.digest,
            "bytes": self.blob.size,
        }


def is_plain_name(text: str) -> bool:
    """Return whether a text is safe as a file's name: no path, no hidden file, no control characters."""
    return _NAME.fullmatch(text) is not None


def file_media_type(name: str) -> str:
    """Return the media type of a file, by its suffix."""
    return next((kind for end, kind in _MEDIA_TYPES.items() if name.endswith(end)), _ANY)


def tag_of(tag: str = "") -> str:
    """Return the tag of the files that belong to the image under `tag`; the empty tag is `latest`."""
    return f"{tag}-{TAG}" if tag else TAG


def write_files(layout: Layout, subject: Descriptor, paths: Sequence[Path], *, title: str) -> Descriptor:
    """Move files into a layout, and store the manifest of the artifact that holds them.

    The order of `paths` does not change the manifest.

    Args:
        subject: the image index that they belong to, which need not be in `layout`.
    """
    import jsonschema  # noqa: PLC0415 - to write, not to read
    import oras.oci  # noqa: PLC0415
    import oras.schemas  # noqa: PLC0415

    layers: dict[str, Descriptor] = {}
    for path in sorted(paths, key=lambda path: path.name):
        _require_plain(path.name)
        if path.name in layers:
            raise RegistryError(
                "files-same-name", f"two files are called {path.name}", fix="publish the architectures one by one"
            )
        blob = layout.put_file(path, move=True, media_type=file_media_type(path.name))
        layers[path.name] = blob.annotated({TITLE: path.name})
    notes = standard_annotations(title)
    value = {
        **oras.oci.NewManifest(),
        "artifactType": TYPE,
        "config": layout.put_bytes(b"{}", media.EMPTY).as_json(),
        "layers": [layer.as_json() for layer in layers.values()],
        "subject": subject.plain.as_json(),
        "annotations": notes,
    }
    # oras must be able to pull it.
    jsonschema.validate(value, oras.schemas.manifest)
    return replace(layout.put_json(value, media.MANIFEST), artifact_type=TYPE, annotations=notes)


def are_files(value: Mapping[str, Any]) -> bool:
    """Return whether a manifest's JSON is that of such an artifact."""
    return value.get("artifactType") == TYPE


def read_files(value: Mapping[str, Any], manifest: Descriptor) -> tuple[PlainFile, ...]:
    """Return the files in an artifact's untrusted manifest; refuse names that are not plain or occur twice."""
    if not are_files(value):
        raise RegistryError(
            "not-a-files-artifact",
            f"{manifest.digest} holds no files",
            why=f"it is of the type {value.get('artifactType')!r}",
            fix="name an artifact that `toolchain publish --files` made",
        )
    files: dict[str, PlainFile] = {}
    for blob in children_of(dict(value), manifest)[1:]:
        name = blob.annotations.get(TITLE, "")
        _require_plain(name)
        if name in files:
            raise HostileInputError("artifact-file-twice", f"the artifact holds {name} twice", fix="do not use it")
        files[name] = PlainFile(name, blob.plain)
    return tuple(files.values())


def _require_plain(name: str) -> None:
    if not is_plain_name(name):
        raise HostileInputError(
            "artifact-name-unsafe",
            f"the artifact holds the name {name[:200]!r}",
            why="it is not a plain name of a file",
            fix="do not use it",
        )
