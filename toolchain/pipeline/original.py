"""Find out from a record or from verified provenance how an image was requested, so that it can be built again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, UnsupportedError, UntrustedError
from toolchain.core.record import Record
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import diff_ids_of, labels_of
from toolchain.oci.labels import INPUT_DIGEST
from toolchain.oci.layout import Layout
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.pipeline.finished_images import named_images, one_image
from toolchain.pipeline.records import known_record, stages_below
from toolchain.pipeline.reproduce import content_digest, expected_of, require_whole, wheels_in
from toolchain.request.declaration import Option
from toolchain.request.model import options
from toolchain.sources.store import Store
from toolchain.trust.attest import REPORT, asked_for, byproduct
from toolchain.trust.image_facts import ImageFacts
from toolchain.trust.keys import PublicKey
from toolchain.trust.policy import reading
from toolchain.trust.verify import verify


@dataclass(frozen=True, kw_only=True)
class Original:
    """An image to build again, and the request that made it.

    Args:
        name: the name or the reference of the image.
        parameters: the request, in the form of the external parameters in provenance.
        patches: the digests of the user's patches for each source, in the order in which they were applied.
        expected: the image to compare with, in the form that `reproduce.reproduce` takes; empty for no comparison.
    """

    name: str
    parameters: Mapping[str, Any]
    patches: Mapping[str, tuple[str, ...]]
    expected: Mapping[str, Any]

    @property
    def stage(self) -> str:
        return str(self.parameters["stage"])


def of_name(cache: Cache, name: str, arch: str) -> Original:
    """Return a finished image of the cache, and the request in its record; see `one_image` for the errors.

    DigestError is raised if the image does not match its digests.
    """
    record = one_image(cache, name, arch)
    return _of_record(cache, record, expected_of(cache, record))


def of_architectures(cache: Cache, name: str) -> Original:
    """Return the request for the first image that a name matches, extended to the architectures of all these images.

    `expected` of the result is empty. See `named_images` for the errors.
    """
    records = named_images(cache, [name])
    first = _of_record(cache, records[0], {})
    return replace(first, parameters={**first.parameters, "arch": sorted(record.arch for record in records)})


def of_reference(cache: Cache, ref: str, arch: str, key: PublicKey | None, scratch: Path) -> Original:
    """Return a published image and the request that made it.

    With a key, the request comes from the image's provenance, and UntrustedError is raised if the image does not
    verify. Without a key, it comes from the record of an image here that was built from the same inputs, and
    ConfigError is raised if there is none. UnsupportedError is raised if the reference does not name exactly one image
    of this tool, and DigestError if the image does not match its digests.

    Args:
        arch: the architecture of the image to select if the index contains several.
        scratch: a folder for fetched blobs, which must exist until the comparison ends.
    """
    with open_place(parse(ref)) as place:
        layout, refs = place.images(scratch)
        if len(refs) != 1:
            raise UnsupportedError(
                "original-ambiguous", f"{ref} names {len(refs)} images", fix="name one of them: oci:DIR:TAG"
            )
        top = refs[0].image
        images = layout.images_below(top)
        configs = [(image, layout.read_json(layout.children(image)[0])) for image in images]
        chosen = [row for row in configs if len(images) == 1 or row[1].get("architecture") == arch]
        if len(chosen) != 1:
            raise UnsupportedError(
                "original-ambiguous",
                f"{ref} contains {len(images)} images, {len(chosen)} for {arch or 'no architecture'}",
                fix="name one of them: --arch ARCH",
            )
        ((manifest, content),) = chosen
        require_whole(layout, manifest, ref)
        layers, diff_ids = layout.children(manifest)[1:], diff_ids_of(content)
        if not layers or len(layers) != len(diff_ids):
            raise _not_ours(ref, f"it has {len(layers)} layers, and its config names {len(diff_ids)}")
        label = labels_of(content).get(INPUT_DIGEST, "")
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", label):
            raise _not_ours(ref, f"its label {INPUT_DIGEST} is not a digest")
        expected = {
            "image": ref,
            "input_digest": label,
            "diff_id": diff_ids[-1],
            "blob": layers[-1].digest,
            "index": top.digest if top.media_type == media.INDEX and len(images) == 1 else "",
            "content": content_digest(content),
            "published": [manifest.digest, *_indexes_of_only(layout, top, manifest)],
            "media_type": layers[-1].media_type,
            "path": layout.blob(layers[-1].digest),
        }
        if key is not None:
            verdict = verify(place, layout, manifest, key=key)
            if verdict.problems or verdict.provenance is None:
                raise UntrustedError(
                    verdict.id,
                    f"{ref}: {verdict.problems[0] if verdict.problems else 'it has no provenance'}",
                    fix=verdict.fix,
                )
            with reading("provenance"):
                expected["wheels"] = wheels_in(byproduct(verdict.provenance, REPORT) or {})
            return _of_provenance(ref, verdict.provenance, expected)
    record = known_record(cache, label)
    if record is None:
        raise ConfigError(
            "original-unproved",
            f"no trusted record says how {ref} was made",
            why="without --public-key no provenance is trusted, and no image here was built from the same inputs",
            fix="give the publisher's key: --public-key FILE",
        )
    return replace(_of_record(cache, record, expected), name=ref)


def _indexes_of_only(layout: Layout, top: Descriptor, image: Descriptor) -> list[str]:
    """Return the digest of an index that lists nothing except an image; an empty list for anything else.

    A rebuilder must not sign an index that also lists images which were not rebuilt.
    """
    listed = [child.digest for child in layout.children(top)] if top.media_type in media.INDEXES else []
    return [top.digest] if listed == [image.digest] else []


def _not_ours(ref: str, why: str) -> UnsupportedError:
    fix = "name an image that `toolchain publish` or `toolchain build` made"
    return UnsupportedError("not-our-image", f"{ref} is not an image of this tool", why=why, fix=fix)


def _of_record(cache: Cache, record: Record, expected: Mapping[str, Any]) -> Original:
    facts = ImageFacts(record=record, dependencies=tuple(stages_below(cache, record.inputs)))
    parameters = asked_for(facts)
    patches = _patches(
        parameters,
        (
            (row.name, [(patch.name, patch.digest) for patch in row.patches])
            for made in (*facts.dependencies, record)
            for row in made.sources
        ),
    )
    return Original(name=record.image, parameters=parameters, patches=patches, expected=expected)


@reading("provenance")
def _of_provenance(ref: str, statement: Mapping[str, Any], expected: Mapping[str, Any]) -> Original:
    definition = statement["predicate"]["buildDefinition"]
    parameters = dict(definition["externalParameters"])
    patches = _patches(
        parameters,
        (
            (
                str(row["name"]),
                [(patch["name"], str(patch["digest"])) for patch in row["annotations"].get("patches", ())],
            )
            for row in definition["resolvedDependencies"]
        ),
    )
    return Original(name=ref, parameters=parameters, patches=patches, expected=expected)


def _patches(
    parameters: Mapping[str, Any], sources: Iterable[tuple[str, Sequence[tuple[str, str]]]]
) -> dict[str, tuple[str, ...]]:
    """Return the digests of the user's patches by source; the tool's own edits are not among them.

    Args:
        parameters: the request, which lists the file names of the user's patches.
        sources: the sources of all stages, each with the names and digests of its patches.
    """
    named = parameters.get("patches") or {}
    return {
        source: digests
        for source, patches in sources
        if (digests := tuple(digest for name, digest in patches if name in named.get(source, ())))
    }


def given_options(original: Original, cache: Cache) -> dict[str, Any]:
    """Return the command-line values that repeat the request of an original, by the name of the parameter.

    Raise ConfigError if one of the user's patches is not in the store.
    """
    values = dict(original.parameters)
    values.pop("base" if values.get("glibc") else "glibc", None)  # a portable LLVM depends on no base
    if str(values.get("base", "")).startswith("oci:DIR@"):
        values["base"] = f"oci:{cache.images}@{str(values['base']).removeprefix('oci:DIR@')}"
    store = Store(cache.store)
    paths: dict[str, list[str]] = {}
    for name, digests in original.patches.items():
        for digest in digests:
            if (path := store.file(digest)) is None:
                raise ConfigError(
                    "patch-not-stored",
                    f"a patch of {name} is not in the store: {digest}",
                    fix=f"name all patches of that source: --patch {name}=FILE",
                )
            paths.setdefault(name, []).append(str(path))
    values["patches"] = paths
    return {
        option.parameter: _given(option, values[option.field])
        for option in options()
        if option.is_input and values.get(option.field) not in (None, "", [], {})
    }


def _given(option: Option, value: Any) -> Any:
    """Return a recorded value of an option in the form that the command line produces."""
    if option.kind in {"flag", "count", "seconds"}:
        return value
    if option.name == "shard":
        return "/".join(map(str, value))
    texts = option.words(value)[1::2]
    return texts if option.kind in {"names", "pairs"} else texts[0]
