"""Copy published images with everything that is attached to them: SBOMs, provenance, signatures and plain files."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from toolchain.core import console
from toolchain.core.errors import ConfigError, RegistryError, UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import TYPE as FILES
from toolchain.oci.files import tag_of
from toolchain.oci.image import labels_of
from toolchain.oci.labels import INPUT_DIGEST, TITLE
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import is_artifact
from toolchain.oci.manifest import parse_object, subject_of
from toolchain.oci.place import Place
from toolchain.oci.places import open_place
from toolchain.oci.reference import Target
from toolchain.oci.tagged import Kind, Tagged, about_tag, read_layers_under
from toolchain.pipeline.reuse import input_tags
from toolchain.publish.packing import PACKINGS
from toolchain.trust.verify import verify

# This is the maximum of `_Everything.attached`. There is a limit, because anyone who may push can attach artifacts.
_MOST_ARTIFACTS = 1000
_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Copied:
    """The result of copying an image.

    Args:
        platforms: the number of images in the index; 1 for a single image.
        attached: the number of attached artifacts, and of signatures and attestations under cosign's tags.
        skipped_bytes: the number of bytes of the image that the destination already had.
    """

    image: str
    refs: tuple[str, ...]
    digest: str
    platforms: int
    attached: int
    pushed_bytes: int
    skipped_bytes: int

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"refs": list(self.refs)}


@dataclass
class _Everything:
    """An image to copy, with everything that is attached to it.

    Args:
        images: the images in the index, or the image itself.
        tags: the tags to set in the destination, each with its target: the image, or the artifact with its plain
            files. The empty tag means `latest`.
        artifacts: the attached artifacts, by the digest of their subject.
    """

    layout: Layout
    top: Descriptor
    images: list[Descriptor]
    name: str = ""
    tags: dict[str, Descriptor] = field(default_factory=dict)
    artifacts: dict[str, list[Descriptor]] = field(default_factory=dict)
    tagged: list[Tagged] = field(default_factory=list)

    @property
    def attached(self) -> int:
        """Return the number of attached artifacts plus the number of layers under cosign's tags."""
        return sum(map(len, self.artifacts.values())) + sum(len(entry.layers) for entry in self.tagged)


def copy_images(source: Target, dest: Target, scratch: Path) -> list[Copied]:
    """Copy an image, or all tagged images of a folder, to a namespace or folder, and return a result for each image.

    The tags of an image are set after everything that is attached to it has been copied.

    Args:
        scratch: a folder for temporary files, which needs space for two copies of the largest image.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    copied = []
    with open_place(source) as place:
        known = frozenset(place.tags())
        for ref in _named(source):
            # Each image has its own folder, so that the disk needs space for one of them at a time.
            with tempfile.TemporaryDirectory(dir=scratch, prefix="copy-") as folder, open_place(ref) as one:
                found = _gather(one, Layout(Path(folder) / "image").ensure(), known)
                _name(one, found, known)
                copied.append(_bring(found, dest))
    return copied


def _named(source: Target) -> list[Target]:
    """Return references to the images to copy: `source` itself, or a reference to each tagged image in a folder.

    ConfigError is raised if the folder contains no tagged image.
    """
    if source.path is None or source.tag or source.digest:
        return [source]
    layout = Layout(source.path)
    refs: dict[tuple[str, str], Target] = {}
    for tag, image in layout.images().items():
        if not is_artifact(layout, image):
            # A copy takes all tags that begin with one name, so an image with two names is copied twice.
            refs.setdefault((image.digest, tag.partition(".")[0]), source.at(tag=tag))
        elif image.artifact_type != FILES:  # plain files are copied with their image
            console.note(f"not copied, because it is not an image: {source.at(tag=tag)}")
    if not refs:
        raise ConfigError(
            "copy-without-tag",
            f"{source} contains no image with a tag",
            fix=f"name it by skopeo copy {shlex.quote(str(source))} oci:OTHER:NAME, or publish an image to the folder",
        )
    return list(refs.values())


def _gather(place: Place, layout: Layout, known: frozenset[str]) -> _Everything:
    """Download an image, and everything that is attached to it, into a layout; `known` contains the source's tags."""
    top = place.fetch(layout)
    _require_intact(place, layout, top, "before the copy")
    found = _Everything(layout, top, layout.images_below(top) if top.media_type in media.MANIFESTS else [])
    waiting = list(dict.fromkeys([top.digest, *(image.digest for image in found.images)]))
    seen = set(waiting)
    while waiting:
        subject = waiting.pop(0)
        for artifact in place.referrers(subject):
            try:
                content = place.manifest(artifact.digest)[1]
            except RegistryError as error:
                if error.id == "blob-missing" or error.why.startswith("HTTP 404"):
                    error.why = f"{error.why}; it is listed as attached to {subject}".removeprefix("; ")
                    error.fix = (
                        f"publish the image to {place.ref} again, which restores what this tool attached, "
                        "or remove the entry from the list of attached artifacts"
                    )
                raise
            if subject_of(parse_object(content, artifact.digest)) != subject:
                continue
            place.fetch_below(artifact, content, layout)
            found.artifacts.setdefault(subject, []).append(artifact)
            _require_few(place, found)
            if artifact.digest not in seen:
                seen.add(artifact.digest)
                waiting.append(artifact.digest)
        found.tagged += _cosign_layers(place, subject, layout, known)
        _require_few(place, found)
    return found


def _require_few(place: Place, found: _Everything) -> None:
    # This is checked after each artifact, because anybody who may push can attach artifacts.
    if found.attached > _MOST_ARTIFACTS:
        raise RegistryError(
            "too-many-attached",
            f"more than {_MOST_ARTIFACTS} artifacts are attached to {place.ref}",
            why="a copy must contain all of them, and this is more than any image needs",
            fix="delete the artifacts that do not belong to the image, and copy it again",
        )


def _cosign_layers(place: Place, subject: str, layout: Layout, known: frozenset[str]) -> list[Tagged]:
    tagged = []
    for kind in _KINDS:
        if (tag := about_tag(subject, kind)) in known:
            manifest, content = place.manifest(tag)
            layers = [Descriptor.from_json(layer) for layer in read_layers_under(content, tag)["layers"]]
            place.fetch_below(manifest, content, layout)
            tagged.append(Tagged(subject, kind, tuple(layers)))
    return tagged


def _name(place: Place, found: _Everything, known: frozenset[str]) -> None:
    """Set `found.name` and `found.tags` from the names of the image in the source.

    ConfigError is raised if the image has no name or no tag.
    """
    ref, top, layout = place.ref, found.top, found.layout
    files = {artifact.digest: artifact for artifact in found.artifacts.get(top.digest, ())}
    if ref.path is None:
        found.name = str(ref.at()).rpartition("/")[2]
        configs = [layout.read_json(layout.children(image)[0]) for image in found.images]
        works = {str(config.get("architecture")): labels_of(config).get(INPUT_DIGEST, "") for config in configs}
        made = {tag for how in PACKINGS for tag in input_tags(works, how)}
        named = {ref.tag or ("" if ref.digest else "latest"), *made} & known
        named |= {tag_of("" if tag == "latest" else tag) for tag in named} & known
        by_tag = {tag: place.manifest(tag)[0] for tag in sorted(named)}
    else:
        title = str(dict(layout.read_json(top).get("annotations") or {}).get(TITLE) or "")
        tag = ref.tag or ""
        # The title is the name unless the image has another tag now.
        found.name = (
            title if title and (not tag or tag == title or tag.startswith(f"{title}.")) else tag.partition(".")[0]
        )
        refs = {tag: there for tag, there in Layout(ref.path).refs().items() if tag.startswith(found.name)}
        tags = {tag.removeprefix(found.name): there for tag, there in refs.items()}
        by_tag = {tag.removeprefix("."): there for tag, there in tags.items() if not tag or tag.startswith(".")}
    found.tags = {
        "" if tag == "latest" else tag: top if there.digest == top.digest else files[there.digest]
        for tag, there in by_tag.items()
        if there.digest in {top.digest, *files}
    }
    if not found.name or top not in found.tags.values():
        raise ConfigError(
            "copy-without-tag",
            f"{ref} has no tag that can be copied",
            why="without a tag, nobody finds the image in the destination, and registries delete it",
            fix="name the image by a tag: REGISTRY/NS/NAME:TAG or oci:DIR:NAME",
        )


def _bring(found: _Everything, dest: Target) -> Copied:
    layout, top = found.layout, found.top
    refs = {dest.image(found.name, tag): there for tag, there in found.tags.items()}
    with open_place(next(iter(refs))) as there:
        done = there.put(layout, top, ())
        pushed = done.pushed_bytes
        for subject, artifacts in found.artifacts.items():
            for artifact in artifacts:
                pushed += there.put(layout, artifact, ()).pushed_bytes
            pushed += there.attach(layout, subject, artifacts).pushed_bytes
        pushed += there.attach_layers(layout, found.tagged)
        _require_complete(there, found)
        with tempfile.TemporaryDirectory(dir=layout.root.parent, prefix="read-back-") as folder:
            back = Layout(Path(folder)).ensure()
            there.fetch_below(top, there.manifest(top.digest)[1], back)
            _require_intact(there, back, top, "after the copy")
        # The tags of the image are set last, because they show that the copy is complete.
        for ref, what in sorted(refs.items(), key=lambda item: item[1].digest == top.digest):
            there.tag(layout, what, [str(ref.tag)])
    return Copied(
        image=found.name,
        refs=tuple(str(ref) for ref, what in refs.items() if what.digest == top.digest),
        digest=top.digest,
        platforms=len(found.images),
        attached=found.attached,
        pushed_bytes=pushed,
        skipped_bytes=done.skipped_bytes,
    )


def _require_complete(there: Place, found: _Everything) -> None:
    """Raise RegistryError unless the destination lists all attached artifacts and layers."""
    for subject, artifacts in found.artifacts.items():
        listed = {artifact.digest for artifact in there.referrers(subject)}
        if missing := [artifact.digest for artifact in artifacts if artifact.digest not in listed]:
            raise _lost(there, missing[0], subject)
    for entry in found.tagged:
        if missing_layers := entry.missing(read_layers_under(there.manifest(entry.tag)[1], entry.tag)):
            raise _lost(there, missing_layers[0].digest, entry.subject)


def _lost(there: Place, digest: str, subject: str) -> RegistryError:
    return RegistryError(
        "copy-lost-attached",
        f"{there.ref} does not list {digest}, which is attached to {subject} in the source",
        why="no tag was set, because the copy is incomplete",
        fix="copy the image again; if it fails again, use a registry that supports attached artifacts",
    )


def _require_intact(place: Place, layout: Layout, top: Descriptor, when: str) -> None:
    """Raise UntrustedError if `verify` finds a problem; signatures are not checked."""
    verdict = verify(place, layout, top)
    if verdict.problems:
        raise UntrustedError(
            verdict.id,
            f"{place.ref}: {verdict.problems[0]}",
            why=f"the check {when} failed",
            fix="do not use the image; build or publish it again",
        )
