"""Export a bundle: an OCI artifact with all inputs of a build, for machines without a network."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from toolchain.catalog.architectures import this_machine
from toolchain.core import console, strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, HostileInputError, SourceError
from toolchain.oci import descriptor as media
from toolchain.oci import labels
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import standard_annotations
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.oci.place import Published
from toolchain.oci.places import open_place
from toolchain.oci.reference import Target
from toolchain.pipeline import lockfile
from toolchain.pipeline.fetching import fetch_for
from toolchain.pipeline.lockfile import Lock, LockedBase
from toolchain.pipeline.locking import lock_of, locked_source, resolve, safe_name
from toolchain.pipeline.plan import PlanRow, plan, resolved_plan
from toolchain.pipeline.records import read_record
from toolchain.request.model import Request
from toolchain.sources.store import Store
from toolchain.sources.tree import Source
from toolchain.stages.makers import make as make_stage

TYPE = "application/vnd.toolchain.bundle.v1"
Kind = Literal["lock", "file", "tree", "patch", "base", "record", "blob"]
_KIND, _OWNER, _MEDIA = "toolchain.bundle.kind", "toolchain.bundle.name", "toolchain.bundle.media-type"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~!-]{0,254}")
_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9.+_-]{1,120}")


def _unsafe(id: str, what: str) -> HostileInputError:
    return HostileInputError(id, what, fix="do not use this bundle")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of a bundle, which is a layer of the artifact.

    Args:
        kind: `lock` for the lock of the bundle; `file` for a source that is a file; `tree` for the tar of a source
            tree; `patch` for a patch to a source; `base` for the package list of a `LockedBase`; `record` for the
            record of a `LockedBase`; `blob` for the manifest, the config or a layer of its image.
        name: the name of the source, or the `owner` of the `LockedBase`; `toolchain` for the lock.
        of: the media type of the manifest, config or layer of an image; empty for other entries.
    """

    kind: Kind
    name: str
    title: str
    blob: Descriptor
    of: str = ""

    def descriptor(self) -> Descriptor:
        notes = {_KIND: self.kind, _OWNER: self.name, labels.TITLE: self.title, _MEDIA: self.of}
        kept = {key: text for key, text in notes.items() if text}
        return replace(self.blob, media_type=f"application/vnd.toolchain.bundle.{self.kind}.v1", annotations=kept)

    @classmethod
    def parse(cls, layer: Descriptor) -> Entry:
        """Return an entry from an untrusted manifest.

        HostileInputError is raised for an unknown kind, an unsafe name or an invalid media type.
        """
        kind, title = layer.annotations.get(_KIND, ""), layer.annotations.get(labels.TITLE, "")
        name, of = layer.annotations.get(_OWNER, ""), layer.annotations.get(_MEDIA, "")
        if kind not in get_args(Kind):
            raise _unsafe("bundle-entry-kind", f"the bundle contains an entry of an unknown kind: {kind[:80]!r}")
        for text in (name, title):
            if not _NAME.fullmatch(text):
                raise _unsafe("bundle-entry-name", f"the bundle contains an entry with an unsafe name: {text[:200]!r}")
        if of and not _MEDIA_TYPE.fullmatch(of):
            raise _unsafe(
                "bundle-entry-media-type", f"the bundle contains an entry with an invalid media type: {of[:200]!r}"
            )
        return cls(kind=cast("Kind", kind), name=name, title=title, blob=layer.plain, of=of)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "file": self.title, "digest": self.blob.digest,
                "bytes": self.blob.size}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """An exported bundle, its lock and its entries."""

    published: Published
    lock: Lock
    entries: tuple[Entry, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "ref": self.published.ref,
            "tags": list(self.published.tags),
            "digest": self.published.digest,
            "pushed_bytes": self.published.pushed_bytes,
            "skipped_bytes": self.published.skipped_bytes,
            "entries": [entry.as_json() for entry in self.entries],
        }


def export(request: Request, target: str, dest: Target) -> Exported:
    """Write a bundle with the lock of a build and its inputs: sources, patches and the image of each `LockedBase`.

    ConfigError is raised if `dest` contains a digest, and SourceError if a base cannot be exported.

    Args:
        dest: the reference under which the bundle is published.
    """
    if dest.digest:
        raise ConfigError(
            "bundle-exists", f"{dest} names an existing bundle by digest", fix="replace the digest by a tag"
        )
    rows = [*resolved_plan(request, target), *(_old_systems(request) if target == "base" else ())]
    planned = [row.planned for row in rows]
    bases = [(base, _row_of(base, rows)) for base in resolve(request, planned, target).bases]
    request.cache.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=request.cache.work, prefix="bundle-") as folder:
        packer = _Packer(request, Layout(Path(folder) / "layout").ensure(), Path(folder))
        sources = {source.name: source for row in rows for source in row.planned.sources}
        for _, source in sorted(sources.items()):
            packer.source(source)
        for base, row in bases:
            packer.base(base, row)
        lock = resolve(request, planned, target)  # resolve again, because now the digests of all trees are known
        if lock.bases != tuple(base for base, _ in bases):
            raise SourceError("base-changed", "a base changed while it was exported", fix="run the command again")
        packer.content("lock", "toolchain", lockfile.DEFAULT, lockfile.render(lock))
        manifest = packer.manifest(target)
        tag = dest.tag or ("latest" if dest.remote else f"bundle-{target}")  # a folder may contain several bundles
        with open_place(dest) as place:
            done = place.put(packer.layout, manifest, (tag,))
    return Exported(done, lock, tuple(packer.sorted()))


def _old_systems(request: Request) -> list[PlanRow]:
    """Return the plan's rows for the sysroots that portable builds are compiled against.

    The result is empty if the request does not include this machine's architecture, or if the request or its lock needs
    no such sysroot. If the request is only for this machine's architecture and a sysroot is not built, a note is
    printed and the result is empty.
    """
    here = replace(request, arch=(this_machine(),))
    if make_stage("sysroot", here) is None or this_machine() not in request.arch:
        return []
    if (lock := lock_of(request)) is not None and all(base.stage != "sysroot" for base in lock.bases):
        return []
    rows = plan(here, "sysroot")
    if request.arch == here.arch and any(row.built is None for row in rows):
        console.note(
            "the sysroot for portable builds is not built, so the bundle contains only the base; to include it, run"
            " `toolchain build sysroot` with the same options, and export the bundle again"
        )
        return []
    return rows


def _row_of(base: LockedBase, rows: Sequence[PlanRow]) -> PlanRow:
    row = next(row for row in rows if row.planned.name == base.stage and (row.arch or this_machine()) == base.arch)
    if row.built is None and base.state != "image":
        raise SourceError(
            "base-not-built",
            f"{base} is not built yet",
            why="a bundle contains the finished image, because a build from package mirrors needs a network",
            fix=f"run `toolchain build {base.stage} --arch {base.arch}` with the same options",
        )
    return row


@dataclass
class _Packer:
    """The entries of a bundle, and the temporary layout that contains their blobs."""

    request: Request
    layout: Layout
    work: Path
    entries: list[Entry] = field(default_factory=list)

    def sorted(self) -> list[Entry]:
        """Return the entries in the order of the manifest: by kind, from the lock to the blobs of images."""
        order = ("lock", "base", "record", "patch", "file", "tree", "blob")
        return sorted(
            self.entries, key=lambda entry: (order.index(entry.kind), entry.name, entry.title, entry.blob.digest)
        )

    def source(self, source: Source) -> None:
        """Fetch a source if the store lacks it, and add it with its patches."""
        cache = self.request.cache
        console.note(f"{source.name}: {source.ref}")
        got = fetch_for(self.request, source, verify=True)
        title = locked_source(self.request, source).file  # the store may have the file under another name
        file = Store(cache.store).file(got.digest) if got.digest.startswith("sha256:") else None
        if file is not None:
            self.file("file", source.name, title or safe_name(file.name), file, got.digest)
        else:
            layer = write_layer(got.path, self.work / "tree.tar", whiteouts=True)
            packed = compress(layer, self.work / "tree.tar.gz", "gzip")
            self.file("tree", source.name, f"{source.name}.tar.gz", packed.path, packed.digest)
            layer.path.unlink()
            packed.path.unlink()
        for patch in self.request.patches.get(source.name, ()):
            self.content("patch", source.name, safe_name(patch.name), patch.read_bytes())

    def base(self, base: LockedBase, row: PlanRow) -> None:
        """Add the image, the record and the package list of a `LockedBase`; for a user's base, add only the image.

        SourceError is raised if the image was downloaded by `--reuse-from`, because a bundle does not contain the
        signature that was verified then. A base from another bundle may be passed on: no record in a bundle says who
        made the image.
        """
        cache = self.request.cache
        if base.state == "image":
            layout = Layout(row.planned.details.root)
            self.image(layout, layout.resolve(row.planned.details.digest), base.owner)
            return
        assert row.built is not None  # noqa: S101 - checked by `_row_of`
        layout = Layout(cache.images)
        self.image(layout, layout.resolve(row.built.manifest), base.owner)
        record = read_record(cache, row.built.input_digest)
        if taken := record.taken_from:
            raise SourceError(
                "base-not-made-here",
                f"{base} was not built on this machine",
                why=f"it was downloaded from {taken.ref}, and a bundle does not contain the signature of that image",
                fix="export the bundle where it was built, or build it here in another cache (--cache DIR)",
            )
        self.content("record", base.owner, "record.json", canonical(record.without_claims().as_json()))
        packages = cache.package_list(base.stage, base.name, base.arch)
        self.content("base", base.owner, packages.name, canonical(strict_json.read(packages.read_bytes())))

    def image(self, layout: Layout, manifest: Descriptor, name: str) -> None:
        for part in (manifest, *layout.children(manifest)):
            plain = part.digest.removeprefix("sha256:")
            self.file("blob", name, plain, layout.blob(part.digest), part.digest, of=part.media_type)

    def content(self, kind: Kind, name: str, title: str, content: bytes) -> None:
        blob = self.layout.put_bytes(content, media.EMPTY)
        self.entries.append(Entry(kind=kind, name=name, title=title, blob=blob))

    def file(self, kind: Kind, name: str, title: str, path: Path, digest: str, *, of: str = "") -> None:
        """Add a file; its digest need not be checked here, because an import checks it."""
        blob = Descriptor(media.LAYER, digest, self.layout.link(path, digest).stat().st_size)
        self.entries.append(Entry(kind=kind, name=name, title=title, blob=blob, of=of))

    def manifest(self, target: str) -> Descriptor:
        # An image may contain the same layer twice, but equal entries are listed once.
        layers = [entry.descriptor() for entry in dict.fromkeys(self.sorted())]
        return self.layout.put_artifact(TYPE, layers, annotations=standard_annotations(f"toolchain bundle: {target}"))
