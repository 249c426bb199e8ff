"""Write and read OCI artifacts that have a layer for each plain file.

The title annotation of a layer is the name of its file, so that `oras pull` can download the files.
"""

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
    """The name of a file in an artifact, and the descriptor of its blob."""

    name: str
    blob: Descriptor

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "media_type": self.blob.media_type,
            "digest": self.blob.digest,
            "bytes": self.blob.size,
        }


def is_plain_name(text: str) -> bool:
    """Return whether a file name is safe.

    A safe name has at most 255 characters, contains only ASCII letters, digits and `. _ + ~ ! -`, and begins with a
    letter or digit.
    """
    return _NAME.fullmatch(text) is not None


def file_media_type(name: str) -> str:
    """Return the media type for the suffix of a file name; `application/octet-stream` if the suffix is unknown."""
    return next((kind for end, kind in _MEDIA_TYPES.items() if name.endswith(end)), _ANY)


def tag_of(tag: str = "") -> str:
    """Return the tag for the plain files of an image: `TAG-files`, or `files` if `tag` is empty."""
    return f"{tag}-{TAG}" if tag else TAG


def write_files(layout: Layout, subject: Descriptor, paths: Sequence[Path], *, title: str) -> Descriptor:
    """Move files into a layout, store an artifact that contains them, and return the descriptor of its manifest.

    The manifest does not depend on the order of `paths`. HostileInputError is raised if the name of a file is unsafe,
    and RegistryError if two files have the same name.

    Args:
        subject: the index of the image to which the files belong; `layout` need not contain it.
    """
    import jsonschema  # noqa: PLC0415 - reading artifacts does not need it
    import oras.oci  # noqa: PLC0415
    import oras.schemas  # noqa: PLC0415

    layers: dict[str, Descriptor] = {}
    for path in sorted(paths, key=lambda path: path.name):
        _require_plain(path.name)
        if path.name in layers:
            raise RegistryError(
                "files-same-name", f"two files are named {path.name}", fix="publish each architecture separately"
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
    # This check ensures that oras accepts the manifest.
    jsonschema.validate(value, oras.schemas.manifest)
    return replace(layout.put_json(value, media.MANIFEST), artifact_type=TYPE, annotations=notes)


def are_files(value: Mapping[str, Any]) -> bool:
    """Return whether a manifest belongs to an artifact with plain files."""
    return value.get("artifactType") == TYPE


def read_files(value: Mapping[str, Any], manifest: Descriptor) -> tuple[PlainFile, ...]:
    """Return the files in an artifact's manifest.

    RegistryError is raised if the manifest is malformed, or if its artifact type is not `TYPE`. The manifest is not
    trusted, so HostileInputError is raised for a name that is unsafe or occurs twice.
    """
    if not are_files(value):
        raise RegistryError(
            "not-a-files-artifact",
            f"{manifest.digest} is not an artifact with plain files",
            why=f"its type is {value.get('artifactType')!r}",
            fix="name an artifact from `toolchain publish --files`",
        )
    files: dict[str, PlainFile] = {}
    for blob in children_of(dict(value), manifest)[1:]:
        name = blob.annotations.get(TITLE, "")
        _require_plain(name)
        if name in files:
            raise HostileInputError(
                "artifact-file-twice", f"the artifact contains {name} twice", fix="do not use this artifact"
            )
        files[name] = PlainFile(name, blob.plain)
    return tuple(files.values())


def _require_plain(name: str) -> None:
    if not is_plain_name(name):
        raise HostileInputError(
            "artifact-name-unsafe",
            f"the artifact contains a file with the name {name[:200]!r}",
            why="the name is a path, is hidden, or has unusual characters",
            fix="do not use this artifact",
        )
