"""Build a finished image again from a clean tree, and compare the two images."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_json
from toolchain.core.errors import DigestError, SourceError, UnsupportedError
from toolchain.core.filesystem import make_private
from toolchain.core.locks import held
from toolchain.core.record import Record
from toolchain.engine.storage import Storage, discard, remove_tree, sweep_discarded
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import diff_ids_of, platform_of, standard_annotations, write_index
from toolchain.oci.layer_diff import Blob, FileDifference, differences
from toolchain.oci.layout import Layout
from toolchain.pipeline.fetching import stored_for
from toolchain.pipeline.plan import PlanRow, plan
from toolchain.pipeline.records import image_tag, read_record, write_record
from toolchain.pipeline.run import build
from toolchain.request.model import Request
from toolchain.stages.stage import Built


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """The result of building a stage a second time. Each pair contains the values of the first and the second build.

    Args:
        diff_ids: the digests of the stage's own layer without compression.
        blobs: the digests of the stored layer, which depend on the compressor.
        indexes: the digests of an index that contains only this image; the first is empty if the image was published
            without an index, or in an index with other images.
        contents: the results of `content_digest`.
        differing: the files of the layer or the wheels of the stage that differ; empty if they are equal.
        varied: the result of `Variation.as_json` for the second build; None without `--vary`.
    """

    image: str
    input_digest: str
    diff_ids: tuple[str, str]
    blobs: tuple[str, str]
    indexes: tuple[str, str]
    contents: tuple[str, str]
    differing: tuple[FileDifference, ...] = ()
    varied: Mapping[str, Any] | None = None

    @property
    def equal(self) -> bool:
        """Whether the images have the same settings and uncompressed layers, and the stage's wheels are equal."""
        return self.same_layer and self.contents[0] == self.contents[1] and not self.differing

    @property
    def same_layer(self) -> bool:
        """Whether the stage's own layers have the same bytes without compression."""
        return self.diff_ids[0] == self.diff_ids[1]

    def as_json(self) -> dict[str, Any]:
        """Return the result as `reproduce --json` prints it."""
        document = {**asdict(self), "equal": self.equal, "differing": [file.as_json() for file in self.differing]}
        if self.varied is None:
            del document["varied"]
        return document


def reproduce(request: Request, target: str, expected: Mapping[str, Any]) -> Reproduced:
    """Build the topmost stage of `target` again, in a separate cache folder, and compare it with the first build.

    Sources and the finished stages below are reused, because each stage is reproduced separately. The separate cache
    folder contains no compiler caches and no unfinished trees except those of an interrupted reproduction.

    SourceError is raised if a stage below is not finished here, or if a source is not in the store. UnsupportedError is
    raised if the request is for several architectures or has another input digest than the first build.

    Args:
        expected: the image to compare with, as a dictionary with the keys `input_digest`, `diff_id`, `blob`, `index`,
            `content`, `media_type` and `path`, and with `wheels` if the wheels that the stage built are known.
    """
    if len(request.arch) != 1:
        raise UnsupportedError(
            "several-architectures",
            f"{len(request.arch)} architectures cannot be reproduced at once",
            fix="name one: --arch amd64",
        )
    rows = plan(request, target)
    top = rows[-1]
    missing = [row.planned for row in rows[:-1] if row.built is None]
    if missing:
        raise SourceError(
            "stages-not-built",
            f"not built yet: {', '.join(planned.image for planned in missing)}",
            why="a stage is reproduced on the stages that it was built on",
            # The advice names each stage, because building one of them may not build the others.
            fix=" and ".join(f"toolchain build {planned.name}" for planned in missing) + ", with the same options",
        )
    digest = top.planned.input_digest
    if digest != expected["input_digest"]:
        raise UnsupportedError(
            "other-inputs",
            f"these options build {top.planned.image} from other inputs than the image was built from",
            why=f"the input digest is {digest}, and that of the image is {expected['input_digest']}",
            fix="use the options, the sources and the version of the tool that built it",
        )
    if absent := [source for source in top.planned.sources if not stored_for(request, source)]:
        raise SourceError(
            "not-stored",
            f"not in the store: {', '.join(f'{source.name} {source.ref}' for source in absent)}",
            why="a rebuild has no network",
            fix=f"run `toolchain fetch {top.planned.name}` with the same options, or import the publisher's bundle",
        )
    seed = request.variation.seed if request.variation is not None else None
    with clean_cache(request.cache, rows[:-1], str(digest), seed=seed) as cache:
        again = build(replace(request, cache=cache), target)[-1]
        result = _compare(expected, again, cache)
    return result if request.variation is None else replace(result, varied=request.variation.as_json())


def expected_of(cache: Cache, record: Record) -> dict[str, Any]:
    """Return the argument `expected` of `reproduce` for a finished image in the cache.

    Raise DigestError if the image does not match its digests.
    """
    layout = Layout(cache.images)
    require_whole(layout, layout.resolve(record.manifest), record.image)
    return _own_layer(record, layout)


def require_whole(layout: Layout, image: Descriptor, name: str) -> None:
    """Raise DigestError if an image does not match its digests."""
    for fault in verify_layout(layout, image):
        raise DigestError(
            "stage-digest-mismatch", f"{name} does not match its digests", why=fault.text, fix="fetch or build it again"
        )


def content_digest(config: Mapping[str, Any]) -> str:
    """Return a digest of an image's platform, its settings such as the environment, and all its layers.

    A rebuilder vouches for the whole image, so an equal topmost layer is not enough.
    """
    named = {name: config.get(name) for name in ("os", "architecture", "variant", "config")}
    return sha256_json({**named, "diff_ids": diff_ids_of(config)})


def _own_layer(record: Record, layout: Layout) -> dict[str, Any]:
    layer, manifest = record.layers[-1], layout.resolve(record.manifest).plain
    config = layout.read_json(layout.children(manifest)[0])
    annotations = standard_annotations(record.image)
    return {
        "image": record.image,
        "input_digest": record.input_digest,
        "diff_id": diff_ids_of(config)[-1],
        "blob": layer["digest"],
        "index": write_index(layout, [replace(manifest, platform=platform_of(config))], annotations).digest,
        "content": content_digest(config),
        "media_type": layer["mediaType"],
        "path": layout.blob(layer["digest"]),
        "wheels": wheels_in(record.facts),
    }


def wheels_in(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the wheels that a stage built, by file name, from the facts in its record.

    The image of the stage contains only one of the wheels.
    """
    return {str(wheel["file"]): str(wheel["digest"]) for wheel in facts.get("wheels", ())}


def _differing_wheels(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[FileDifference]:
    for name in sorted({*first, *second}):
        if name not in first:
            yield FileDifference(name, "only in the second")
        elif name not in second:
            yield FileDifference(name, "only in the first")
        elif first[name] != second[name]:
            yield FileDifference(name, "content")


def _compare(first: Mapping[str, Any], again: Built, cache: Cache) -> Reproduced:
    second = _own_layer(read_record(cache, again.input_digest), Layout(cache.images))
    result = Reproduced(
        image=again.planned.image,
        input_digest=again.input_digest,
        diff_ids=(str(first["diff_id"]), str(second["diff_id"])),
        blobs=(str(first["blob"]), str(second["blob"])),
        indexes=(str(first["index"]), str(second["index"])),
        contents=(str(first["content"]), str(second["content"])),
        differing=tuple(_differing_wheels(first.get("wheels", second["wheels"]), second["wheels"])),
    )
    if result.same_layer:
        return result
    console.note("the layers differ; looking for the files that differ")
    old, new = (Blob(Path(side["path"]), str(side["media_type"])) for side in (first, second))
    return replace(result, differing=(*differences(old, new), *result.differing))


@contextmanager
def clean_cache(
    cache: Cache, dependencies: Sequence[PlanRow], digest: str, *, seed: int | None = None
) -> Iterator[Cache]:
    """Yield a cache folder with only the store of sources, the lists of packages, and the finished `dependencies`.

    The folder is removed at the end of the block. If the block raises an error or is interrupted, the folder remains,
    and the next reproduction of the same inputs with the same seed continues there, because a build of LLVM takes
    hours. The folder then also contains the work of the interrupted reproduction.

    Args:
        digest: the input digest of the stage to reproduce.
        seed: the seed of `--vary`; None without it. Each seed has a folder of its own, because a build must not
            continue what was built under other conditions.
    """
    name = digest.removeprefix("sha256:")[:12] + ("" if seed is None else f"-seed-{seed}")
    root = cache.root / "reproduce" / name
    cache.locks.mkdir(parents=True, exist_ok=True)
    with held(cache.locks / f"reproduce-{root.name}.lock", what="the same reproduction"):
        sweep_discarded(root)
        fresh = Cache(root)
        if root.is_dir():
            console.note(f"continuing the interrupted reproduction ({root}); delete that folder to start over")
        root.mkdir(parents=True, exist_ok=True)
        # The store of sources is shared, because its entries are checked against their digests. It is missing if all
        # images here were taken from a publisher.
        make_private(cache.store)
        # The link of an interrupted reproduction points to a wrong folder if the cache was moved since then.
        fresh.store.unlink(missing_ok=True)
        fresh.store.symlink_to(cache.store, target_is_directory=True)
        if (cache.root / "locked").is_dir():
            shutil.copytree(cache.root / "locked", root / "locked", dirs_exist_ok=True)
        for row in dependencies:
            assert row.built is not None  # noqa: S101 - the caller has checked this
            _take(cache, fresh, row.built)
        yield fresh
        runroot = Storage(fresh).runroot
        discard(root)
        remove_tree(runroot)


def _take(cache: Cache, fresh: Cache, built: Built) -> None:
    """Link or copy the blobs of a finished stage into another cache folder, and write the stage's record last."""
    old, new = Layout(cache.images), Layout(fresh.images).ensure()
    manifest = old.resolve(built.manifest)
    for part in (*old.children(manifest), manifest):
        new.link(old.blob(part.digest), part.digest)
    new.tag(manifest, image_tag(built.planned.image, built.input_digest))
    write_record(fresh, read_record(cache, built.input_digest))
