"""Find finished images by name, and record their publications, their uses and the checks of their kernels."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.stages import STAGES
from toolchain.core import console, strict_json
from toolchain.core.cache import Cache
from toolchain.core.check_result import describe, enough
from toolchain.core.digest import canonical, write_atomically
from toolchain.core.errors import ConfigError, SourceError
from toolchain.core.record import Record
from toolchain.core.stored_file import StoredFile
from toolchain.oci.image import timestamp
from toolchain.oci.layer_files import open_members
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import (
    image_tag,
    mark_used,
    published_mark,
    read_record,
    records,
    stages_below,
    write_record,
)
from toolchain.request.model import Request
from toolchain.stages.kernel_check import check_files
from toolchain.stages.stage import Built
from toolchain.trust.contents import Contents, of_records

_DIGITS = re.compile(r"(sha256:)?[0-9a-f]{4,64}")
_LISTED = 20


@dataclass(frozen=True)
class Publication:
    """A reference under which an image was published.

    Args:
        digest: the digest of the published index.
        when: the Unix time of the publication.
    """

    ref: str
    digest: str
    when: float

    def as_json(self) -> dict[str, Any]:
        """Return the publication as `images --json` prints it."""
        return {"ref": self.ref, "digest": self.digest, "when": timestamp(self.when)}


def full_name(record: Record) -> str:
    """Return an image's name and the first 12 digits of its input digest: `llvm-triton-22.1.8.0123456789ab`."""
    return image_tag(record.image, record.input_digest)


def finished_images(cache: Cache) -> list[Record]:
    """Return the records of the finished images whose manifest and layers are in the cache, last written first."""
    layout = Layout(cache.images)
    return [
        record
        for record in reversed(records(cache))
        if layout.has(record.manifest) and all(layout.has(digest) for digest in record.layer_digests)
    ]


def named_images(cache: Cache, texts: Sequence[str]) -> list[Record]:
    """Return the records of the finished images that the user names, each once, in the order of the names.

    A name is an image's name, an input digest, or `NAME.DIGITS`, which combines both. A prefix is enough; a digest
    without a name needs at least four digits. A name may match several images if they are for different architectures.
    SourceError is raised if a name matches no image, and ConfigError if it matches images with different names, or
    several images for one architecture.
    """
    finished = finished_images(cache)
    by_digest: dict[str, Record] = {}
    for text in texts:
        by_digest |= {record.input_digest: record for record in _named(finished, text)}
    return list(by_digest.values())


def one_image(cache: Cache, text: str, arch: str = "") -> Record:
    """Return the record of the finished image that a name matches.

    Raise the errors of `named_images`, and ConfigError if the name matches several images and `arch` does not select
    one of them.
    """
    matching = named_images(cache, [text])
    of_arch = [record for record in matching if record.arch == arch]
    if len(matching) > 1 and len(of_arch) != 1:
        raise _ambiguous(text, matching)
    return matching[0] if len(matching) == 1 else of_arch[0]


def names_of(cache: Cache, images: Sequence[Record]) -> list[str]:
    """Return names for these images, for display.

    If `images` contains every finished image with a certain name, the result contains this name once. Otherwise the
    result contains the full name (see `full_name`) of each image in `images` with this name.
    """
    finished = finished_images(cache)
    names: list[str] = []
    for image in dict.fromkeys(record.image for record in images):
        own = [record for record in images if record.image == image]
        known = {record.input_digest for record in finished if record.image == image}
        names += [image] if known == {record.input_digest for record in own} else [full_name(record) for record in own]
    return names


def _near(finished: Sequence[Record], text: str) -> str:
    """Return `; did you mean NAME?` with the most similar name, or an empty string if no name is similar."""
    by_beginning = {record.image[: len(text) + 1]: record.image for record in reversed(finished)}
    near = difflib.get_close_matches(text, by_beginning, n=1)
    return f"; did you mean {by_beginning[near[0]]}?" if near else ""


def _named(finished: Sequence[Record], text: str) -> list[Record]:
    exact = [record for record in finished if text == record.image]
    # An empty string, for example from an unset environment variable, would match every name.
    matching = exact or [record for record in finished if text and full_name(record).startswith(text)]
    if not matching and _DIGITS.fullmatch(text):
        digits = text.removeprefix("sha256:")
        matching = [record for record in finished if record.input_digest.removeprefix("sha256:").startswith(digits)]
    if not matching:
        raise SourceError(
            "image-not-found",
            f"no finished image here is named {text[:200]!r}{_near(finished, text)}",
            why="\n".join(_lines(finished[:_LISTED])) or "this cache has no finished image",
            fix="`toolchain images` lists the images here; `toolchain build STAGE` builds another",
        )
    names = {record.image for record in matching}
    arches = [record.arch for record in matching]
    if len(names) > 1 or len(set(arches)) < len(arches):
        raise _ambiguous(text, matching)
    return sorted(matching, key=lambda record: record.arch)


def _ambiguous(text: str, matching: Sequence[Record]) -> ConfigError:
    why = "\n".join(_lines(matching))
    return ConfigError(
        "image-ambiguous",
        f"{text!r} matches {len(matching)} images",
        why=why,
        fix="give the full name of one of them",
    )


def _lines(images: Iterable[Record]) -> list[str]:
    return [f"{full_name(record)}  {record.arch}  {timestamp(record.finished or 0)}" for record in images]


def require_below(record: Record, below: Sequence[Record]) -> None:
    """Raise SourceError if the record of a stage below an image is missing.

    The SBOM and the provenance of the image cannot be written without it, because they describe the stages below.

    Args:
        below: the known records of the stages below.
    """
    known = {made.input_digest for made in below}
    for made in (record, *below):
        for row in STAGES:
            digest = made.inputs.get(row.name)
            if isinstance(digest, str) and digest.startswith("sha256:") and digest not in known:
                raise SourceError(
                    "record-missing",
                    f"the record of the stage {row.name} below {full_name(made)} is missing",
                    why=f"its SBOM and provenance describe that stage, whose input digest is {digest}",
                    fix=f"build the stage again with the same options: toolchain build {row.name}",
                )


def contents_of(cache: Cache, record: Record) -> Contents:
    """Return the Triton and the LLVM in a finished image, and the GPUs and Pythons for which it was built."""
    return of_records(record, stages_below(cache, record.inputs))


def note_use(cache: Cache, images: Iterable[Record]) -> None:
    """Mark these images, and the stages below them, as used now."""
    for record in images:
        for each in (record, *stages_below(cache, record.inputs)):
            mark_used(cache, each.input_digest)


def note_publication(cache: Cache, record: Record, publication: Publication) -> None:
    """Record where an image was published; only the latest publication of each reference is kept."""
    known = {place.ref: place for place in publications(cache, record)} | {publication.ref: publication}
    rows = [{"ref": place.ref, "digest": place.digest, "when": place.when} for place in known.values()]
    write_atomically(_published(cache, record), canonical(rows))


def publications(cache: Cache, record: Record) -> tuple[Publication, ...]:
    """Return where and when an image was published from this cache, the latest publication last.

    The result is empty if the file that lists the publications is missing or damaged.
    """
    try:
        rows = strict_json.read(_published(cache, record).read_bytes())
        places = [Publication(str(row["ref"]), str(row["digest"]), float(row["when"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):  # the file is only for display, so a damaged file is ignored
        return ()
    return tuple(sorted(places, key=lambda place: place.when))


def _published(cache: Cache, record: Record) -> Path:
    return published_mark(cache.record(record.input_digest))


def image_row(cache: Cache, record: Record) -> Mapping[str, Any]:
    """Return the row that `images --json` prints for an image."""
    return {
        "name": full_name(record),
        "image": record.image,
        "stage": record.stage,
        "arch": record.arch,
        "input_digest": record.input_digest,
        "manifest": record.manifest,
        **contents_of(cache, record).as_json(),
        "partial": record.partial,
        "binaries": list(record.binaries),
        **({"numbers": describe(numbers)} if (numbers := record.facts.get("numbers")) else {}),
        "bytes": sum(int(layer.get("size", 0)) for layer in record.layers),
        "finished": timestamp(record.finished or 0),
        "taken_from": record.taken_from.ref if record.taken_from is not None else "",
        "published": [publication.as_json() for publication in publications(cache, record)],
    }


_SUFFIXES = (".hsaco", ".json", ".zip", ".aks2", "__launch__")


class _Files:
    """The files of compiled kernels in a layer; the endings of their names identify them."""

    def __init__(self, path: Path, media_type: str) -> None:
        self._path, self._media_type = path, media_type

    def __iter__(self) -> Iterator[StoredFile]:
        for name, size, start in open_members(self._path, self._media_type):
            if name.endswith(_SUFFIXES):
                yield StoredFile(name, size, start)


def checked(request: Request, built: Built) -> Built:
    """Check kernels of a finished stage, record the result, and return the stage with the result in its facts.

    The stage is returned unchanged if `request.check` is None, or if enough of its kernels were checked before.
    NumbersError is raised, and nothing is recorded, if a kernel computes wrong results.
    """
    if request.check is None or enough(built.facts.get("numbers"), request.check):
        return built
    from toolchain.engine.resources import jobs_for  # noqa: PLC0415

    console.note(f"{built.planned.name}: checking the results of kernels in {built.planned.image}")
    record = read_record(request.cache, built.input_digest)
    layer = record.layers[-1]
    files = _Files(Layout(request.cache.images).blob(layer["digest"]), str(layer["mediaType"]))
    numbers = check_files(files, request, label=built.planned.image, jobs=jobs_for("kernel", request.jobs))
    write_record(request.cache, replace(record, facts={**record.facts, "numbers": numbers}))
    return replace(built, facts={**built.facts, "numbers": numbers})
