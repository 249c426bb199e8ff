"""Layout folders with a signed image and a stranger's image, which programs could read differently.

Each case changes a copy of one layout. `verify` must not trust a case in which another program reads the image of the
stranger.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from tests.evidence_fixtures import Stand, small_image
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import write_index

NAME = "thing"
_REF = media.REF_NAME
Change: TypeAlias = Callable[["Shelf"], object]


@dataclass
class Shelf:
    """A layout with a signed image and a stranger's image.

    Args:
        good: the signed index, which `NAME` points to.
        good_image: the image in it.
        bad: the stranger's index, without a name.
        bad_image: the only image in that index.
        rest: the entries of index.json that are about the signed image.
        good_blobs: the digests of all blobs of the signed image.
    """

    folder: Path
    good: Descriptor
    good_image: Descriptor
    bad: Descriptor
    bad_image: Descriptor
    rest: list[dict[str, Any]]
    good_blobs: frozenset[str]

    @property
    def index(self) -> Path:
        """The path of index.json, which is not signed."""
        return self.folder / "index.json"

    def blob(self, descriptor: Descriptor) -> Path:
        """Return the path of a blob."""
        return self.folder / "blobs" / descriptor.digest.replace(":", "/")

    def copy(self, folder: Path) -> Shelf:
        """Copy the layout to a folder."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return replace(self, folder=folder)

    def entry(self, descriptor: Descriptor, name: str | None = NAME, **more: Any) -> dict[str, Any]:
        """Return an entry of index.json."""
        annotations = {"annotations": {_REF: name}} if name is not None else {}
        return {**descriptor.plain.as_json(), **annotations, **more}

    def write(self, *entries: Any, **more: Any) -> None:
        """Write an index.json with these entries after those about the signed image."""
        self.index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*self.rest, *entries], **more}))

    def raw(self, *parts: str, top: str = "") -> None:
        """Write an index.json whose entries are given as text, because no JSON writer writes such entries."""
        entries = ",".join([*(json.dumps(one) for one in self.rest), *parts])
        self.index.write_text(f'{{"schemaVersion":2,"manifests":[{entries}]{top}}}')

    def text(self, descriptor: Descriptor, name: str | None = NAME, *, more: str = "") -> str:
        """Return an entry as text, with `more` after its last key."""
        return json.dumps(self.entry(descriptor, name))[:-1] + more + "}"


def make_shelf(stand: Stand) -> Shelf:
    """Make a layout with a signed image and a stranger's image."""
    stand.say_all()
    files = {"usr/lib64/thing/bin/tool": b"EVIL"}
    image = small_image(stand.layout, stand.work, files=files, label=stand.image_facts.record.input_digest)
    bad = write_index(stand.layout, [image])
    index = json.loads((stand.layout.root / "index.json").read_text())
    rest = [one for one in index["manifests"] if not one.get("annotations", {}).get(_REF)]
    blobs = frozenset(item.digest for item in stand.layout.walk(stand.index))
    shelf = Shelf(stand.layout.root, stand.index, stand.manifest, bad, image, rest, blobs)
    shelf.write(shelf.entry(shelf.good))
    return shelf


def _both(more: str) -> Change:
    """Return a change that adds the stranger's entry under another key at the end of index.json."""

    def change(shelf: Shelf) -> None:
        shelf.raw(shelf.text(shelf.good), top=more % f"[{shelf.text(shelf.bad)}]")

    return change


def _in_entry(more: str) -> Change:
    """Return a change that adds keys to the signed entry; `%(digest)s` is the digest of the stranger's index."""

    def change(shelf: Shelf) -> None:
        said = {"digest": shelf.bad.digest, "size": shelf.bad.size, "image": shelf.bad_image.digest}
        shelf.raw(shelf.text(shelf.good, more=more % {**said, "image_size": shelf.bad_image.size}))

    return change


def _entries(*make: Callable[[Shelf], Any], **more: Any) -> Change:
    return lambda shelf: shelf.write(*(one(shelf) for one in make), **more)


def _raw(*make: Callable[[Shelf], str]) -> Change:
    return lambda shelf: shelf.raw(*(one(shelf) for one in make))


def _bytes(change: Callable[[bytes], bytes]) -> Change:
    return lambda shelf: _rewrite(shelf.index, change)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _good(shelf: Shelf) -> dict[str, Any]:
    return shelf.entry(shelf.good)


def _bad(name: str | None, **more: Any) -> Callable[[Shelf], dict[str, Any]]:
    return lambda shelf: shelf.entry(shelf.bad, name, **more)


def _elsewhere(shelf: Shelf, path: Path) -> Path:
    """Move `path` out of the layout, put a link in its place, and return the new path."""
    away = shelf.folder.with_name(f"{shelf.folder.name} elsewhere")
    away.mkdir(exist_ok=True)
    path.rename(away / path.name)
    path.symlink_to(away / path.name, target_is_directory=(away / path.name).is_dir())
    return away / path.name


def _swapped(shelf: Shelf) -> None:
    shelf.blob(shelf.good).write_bytes(shelf.blob(shelf.bad).read_bytes())


def _docker(shelf: Shelf) -> None:
    """Write a manifest.json that names the stranger's image; `docker load` prefers this file if a folder has one."""
    manifest = json.loads(shelf.blob(shelf.bad_image).read_text())
    paths = {key: f"blobs/{one['digest'].replace(':', '/')}" for key, one in (("Config", manifest["config"]),)}
    layers = [f"blobs/{one['digest'].replace(':', '/')}" for one in manifest["layers"]]
    value = [{**paths, "RepoTags": [f"localhost/x:{NAME}"], "Layers": layers}]
    (shelf.folder / "manifest.json").write_text(json.dumps(value))


def _marker(text: str) -> Change:
    return lambda shelf: (shelf.folder / "oci-layout").write_text(text)


_IMAGE_NAME = "io.containerd.image.name"

# Each case is a change by someone who can write to the folder, and whether `verify` may trust the name afterwards.
CASES: Mapping[str, tuple[Change, bool]] = {
    "as it was": (lambda _: None, True),
    # Keys
    "manifests twice": (_both(',"manifests":%s'), False),
    "Manifests too": (_both(',"Manifests":%s'), False),
    "MANIFESTS too": (_both(',"MANIFESTS":%s'), False),
    "long s": (_both(',"manife\\u017ft\\u017f":%s'), False),
    "escaped key": (_both(',"\\u006danifests":%s'), False),
    "digest twice": (_in_entry(',"digest":"%(digest)s","size":%(size)d'), False),
    "Digest too": (_in_entry(',"Digest":"%(digest)s","Size":%(size)d'), False),
    "Digest of an image": (
        _in_entry(f',"Digest":"%(image)s","Size":%(image_size)d,"MediaType":"{media.MANIFEST}"'),
        False,
    ),
    "size twice": (_in_entry(',"size":1'), False),
    "mediaType twice": (_in_entry(f',"mediaType":"{media.MANIFEST}"'), False),
    "Annotations too": (
        _raw(
            lambda shelf: shelf.text(shelf.good, more=f',"Annotations":{{"{_REF}":"other"}}'),
            lambda shelf: shelf.text(shelf.bad, "other", more=f',"Annotations":{{"{_REF}":"{NAME}"}}'),
        ),
        False,
    ),
    "annotations twice": (
        _raw(
            lambda shelf: shelf.text(shelf.bad, "other", more=f',"annotations":{{"{_REF}":"{NAME}"}}'),
            lambda shelf: shelf.text(shelf.good),
        ),
        False,
    ),
    "name twice": (
        _raw(
            lambda shelf: shelf.text(shelf.bad, None, more=f',"annotations":{{"{_REF}":"{NAME}","{_REF}":"x"}}'),
            lambda shelf: shelf.text(shelf.good),
        ),
        False,
    ),
    "null digest": (_in_entry(',"digest":null'), False),
    # Names
    "two images of one name": (_entries(_bad(NAME), _good), False),
    "two images of one name, the other way": (_entries(_good, _bad(NAME)), False),
    "one name as another type": (_entries(_bad(NAME, mediaType=media.DOCKER_INDEX), _good), False),
    "one name without a type": (_entries(_bad(NAME, mediaType=""), _good), False),
    "one name, twice the same": (_entries(_good, _good), True),
    "escaped name": (
        _raw(
            lambda shelf: shelf.text(shelf.bad, NAME).replace(f'"{NAME}"', f'"\\u0074{NAME[1:]}"'),
            lambda shelf: shelf.text(shelf.good),
        ),
        False,
    ),
    "another name": (_entries(_bad("other"), _good), True),
    "no name": (_entries(_bad(None), _good), True),
    "a name with a space": (_entries(_bad(f"{NAME} "), _good), True),
    "a name in capitals": (_entries(_bad(NAME.upper()), _good), True),
    "a name with a NUL": (_entries(_bad(f"{NAME}\0"), _good), True),
    "half a surrogate pair": (_entries(_bad(f"{NAME}\ud800"), _good), False),
    "a name of a repository": (_entries(_bad(f"localhost/x:{NAME}"), _good), False),
    "a name for containerd": (
        _entries(_good, _bad("other", annotations={_REF: "other", _IMAGE_NAME: f"localhost/x:{NAME}"})),
        False,
    ),
    "a name for containerd alone": (_entries(_good, _bad("", annotations={_IMAGE_NAME: NAME})), False),
    "a number as a name": (_entries(_good, _bad("x", annotations={_REF: 5})), False),
    "annotations that are a list": (_entries(_good, _bad("x", annotations=[_REF, NAME])), False),
    "a key of an annotation in another case": (
        _entries(_good, _bad("x", annotations={_REF.upper(): NAME, _REF: "x"})),
        True,
    ),
    # Entries
    "an entry that is none": (_entries(lambda _: None, _good, lambda _: 5), False),
    "a size that is too large": (_entries(lambda shelf: shelf.entry(shelf.good, size=shelf.good.size + 1)), False),
    "a size with a point": (_entries(lambda shelf: shelf.entry(shelf.good, size=float(shelf.good.size))), False),
    "a digest in capitals": (
        _entries(lambda shelf: shelf.entry(shelf.good, digest=shelf.good.digest.upper().replace("SHA", "sha"))),
        False,
    ),
    "the index as an image": (_entries(lambda shelf: shelf.entry(shelf.good, mediaType=media.MANIFEST)), False),
    "data of another": (
        _entries(
            lambda shelf: shelf.entry(shelf.good, data=base64.b64encode(shelf.blob(shelf.bad).read_bytes()).decode())
        ),
        True,
    ),
    "addresses": (_entries(lambda shelf: shelf.entry(shelf.good, urls=["http://127.0.0.1:9/x"])), True),
    "a platform of another": (
        _entries(
            lambda shelf: shelf.entry(shelf.good, platform={"os": "linux", "architecture": "arm64"}),
            _bad("other", platform={"os": "linux", "architecture": "amd64"}),
        ),
        True,
    ),
    "a subject": (lambda shelf: shelf.write(_good(shelf), subject=shelf.entry(shelf.bad)), True),
    # The whole file
    "an index that is an image too": (
        lambda shelf: shelf.write(
            _good(shelf), **json.loads(shelf.blob(shelf.bad_image).read_text()) | {"mediaType": media.INDEX}
        ),
        False,
    ),
    "an index of another type": (lambda shelf: shelf.write(_good(shelf), mediaType=media.MANIFEST), False),
    "another document behind it": (_bytes(lambda text: text + b' {"manifests":[]}'), False),
    "another document before it": (
        lambda shelf: _rewrite(
            shelf.index, lambda text: json.dumps({"manifests": [shelf.entry(shelf.bad)]}).encode() + b"\n" + text
        ),
        False,
    ),
    "a byte order mark": (_bytes(lambda text: b"\xef\xbb\xbf" + text), False),
    "UTF-16": (_bytes(lambda text: text.decode().encode("utf-16")), False),
    "not UTF-8": (_bytes(lambda text: text.replace(b'"schema', b'"x\xff":1,"schema')), False),
    "a comment": (_bytes(lambda text: text + b"// x"), False),
    "NaN": (_bytes(lambda text: text.replace(b'"schema', b'"x":NaN,"schema')), False),
    "deep": (_bytes(lambda text: text.replace(b'"schema', b'"x":' + b"[" * 9000 + b"]" * 9000 + b',"schema')), False),
    "a list": (_bytes(lambda text: b"[" + text + b"]"), False),
    # Files
    "index.json elsewhere": (lambda shelf: _elsewhere(shelf, shelf.index), False),
    "blobs elsewhere": (lambda shelf: _elsewhere(shelf, shelf.folder / "blobs" / "sha256"), False),
    "a blob elsewhere": (lambda shelf: _elsewhere(shelf, shelf.blob(shelf.good)), False),
    "a blob of other bytes": (_swapped, False),
    "a pipe as a blob": (lambda shelf: _pipe(shelf.blob(shelf.good)), False),
    "no oci-layout": (lambda shelf: (shelf.folder / "oci-layout").unlink(), False),
    "oci-layout of another version": (_marker('{"imageLayoutVersion":"2.0.0"}'), False),
    "oci-layout of two versions": (_marker('{"imageLayoutVersion":"1.0.0","ImageLayoutVersion":"2.0.0"}'), False),
    "docker's manifest.json": (_docker, False),
    "docker's repositories": (
        lambda shelf: (shelf.folder / "repositories").write_text(f'{{"localhost/x":{{"{NAME}":"abc"}}}}'),
        False,
    ),
}


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
