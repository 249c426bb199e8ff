"""Read a Triton cache from an image by the rules of Model Cache Vault (MCV).

docs/tasks/wheels.md describes the image's format, which MCV calls "compat".
"""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, Any, cast

from toolchain.core import strict_json
from toolchain.core.errors import ConfigError, ContractError, DocumentError, PinError, UntrustedError
from toolchain.core.tar_headers import require
from toolchain.kernels.cache_entries import (
    BYTES,
    ENTRIES,
    FOLDER,
    MANIFEST,
    NO_KEY,
    SUMMARY,
    entry_folder,
    manifest_row,
)
from toolchain.oci import labels
from toolchain.oci.compressed import unpacked
from toolchain.oci.descriptor import DOCKER_LAYER_GZIP, LAYER_GZIP, Descriptor
from toolchain.oci.image import labels_of
from toolchain.oci.layer_files import LayerMember, shown
from toolchain.oci.layout import Layout

_CACHE, _MANIFEST = f"{FOLDER}/", f"{MANIFEST.partition('/')[0]}/"
_LARGEST = 64 << 20  # the limit in bytes for one file, and for all JSON together
_LARGEST_JSON, _LARGEST_MANIFEST = 1 << 20, 16 << 20
_MOST = 500_000  # the maximum number of files in a layer
_KEPT = ("hash", "target", "debug", "num_stages", "num_warps", "ptx_version")  # keys read from a kernel's JSON


@dataclass(frozen=True, kw_only=True)
class TritonCache:
    """A cache whose labels match its content.

    Args:
        size: the size of all files in the cache, in bytes.
        targets: LLVM's names for the GPUs of the kernels, sorted.
        calls: the calls whose kernels the cache contains, each with the GPU as the argument `gpu`; empty if the image
            does not list them.
    """

    entries: int
    size: int
    targets: tuple[str, ...]
    labels: Mapping[str, str]
    calls: Sequence[Mapping[str, str]]

    def as_json(self) -> dict[str, Any]:
        """Return the values about the cache that `kernels cached --json` prints."""
        return {
            "entries": self.entries,
            "bytes": self.size,
            "gpus": list(self.targets),
            "mount": self.labels.get(labels.CACHE_MOUNT, ""),
            "triton": self.labels.get(labels.CACHE_TRITON, ""),
            "calls": list(self.calls),
        }


def read_cache(layout: Layout, image: Descriptor) -> TritonCache:
    """Return the Triton cache in an image; raise ContractError if there is none, or if it breaks one of MCV's rules."""
    config, *layers = layout.children(image)
    image_labels = labels_of(layout.read_json(config))
    if ENTRIES not in image_labels:
        raise ContractError(
            "not-a-triton-cache",
            "this image is not a Triton cache",
            why=f"it has no label {ENTRIES}",
            fix="name an image that `toolchain build triton-cache` made; `toolchain images` lists them",
        )
    if len(layers) != 1 or layers[0].media_type not in (LAYER_GZIP, DOCKER_LAYER_GZIP):
        kinds = ", ".join(layer.media_type for layer in layers)
        fix = "publish it without --compression" if kinds.endswith("+zstd") else "build or fetch the image again"
        raise _broken("it does not have exactly one layer compressed with gzip", f"its layers: {kinds or 'none'}", fix)
    layout.verify(layers[0].digest)
    files = _files(layout, layers[0])
    cached = {name: file for name, file in files.items() if name.startswith(_CACHE)}
    size = sum(file.size for file in cached.values())
    _same(BYTES, image_labels, str(size))
    rows = _entries(cached)
    _same(ENTRIES, image_labels, str(len(rows)))
    targets = {json.dumps(row["target"], sort_keys=True) for row in rows}
    try:
        summary = strict_json.read(image_labels.get(SUMMARY, ""))["targets"]
        named = {json.dumps(target, sort_keys=True) for target in summary}
        manifest = list(strict_json.read(files[MANIFEST].json)["triton"])
    except (ValueError, KeyError, TypeError) as error:
        raise _broken("its summary or its manifest cannot be read", _reason(error)) from error
    if named != targets or len(summary) != len(named):
        raise _broken(
            "its summary names other GPUs than those of its kernels",
            f"the summary has {sorted(named)}, the kernels have {sorted(targets)}",
        )
    key = image_labels.get(labels.CACHE_MCV_KEY, NO_KEY)
    wanted = [manifest_row(row, key) for row in rows]
    if sorted(manifest, key=_text) != sorted(wanted, key=_text):
        odd = [row for row in [*manifest, *wanted] if row not in manifest or row not in wanted]
        raise _broken(
            "its manifest does not match its kernels",
            f"only one of them has {_text(odd[0])}" if odd else "one of them has an entry twice",
        )
    _groups(cached, image_labels.get(labels.CACHE_MOUNT))
    gpus = sorted({str(row["target"]["arch"]) for row in rows})
    calls = _calls(image_labels)
    return TritonCache(entries=len(rows), size=size, targets=tuple(gpus), labels=image_labels, calls=calls)


def _calls(image_labels: Mapping[str, str]) -> list[dict[str, str]]:
    try:
        names: list[str] = strict_json.read(image_labels.get(labels.CACHE_CALLS, "[]"))
        split = [name.partition("/") for name in names]
        return [{"gpu": gpu, **dict(part.split("=", 1) for part in shape.split(","))} for gpu, _, shape in split]
    except (ValueError, TypeError, AttributeError) as error:
        raise _broken("its list of calls cannot be read", _reason(error)) from error


@dataclass(frozen=True)
class _File:
    """A file of a cache, with its content if it is JSON."""

    size: int
    json: bytes = field(default=b"", repr=False)


def _files(layout: Layout, layer: Descriptor) -> dict[str, _File]:
    """Return the files of a layer by name; raise ContractError for damage and for members that MCV does not extract."""
    files: dict[str, _File] = {}
    left = _LARGEST
    require()
    try:
        with (
            unpacked(layout.blob(layer.digest), layer.media_type) as stream,
            tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", tarinfo=LayerMember.for_archive()) as tar,
        ):
            for member in tar:
                cast("Any", tar).members = []  # otherwise tarfile would keep every member in memory
                if member.isdir() and f"{member.name}/".startswith((_CACHE, _MANIFEST)):
                    continue
                parts = PurePosixPath(member.name).parts
                if not member.isreg() or not member.name.startswith((_CACHE, _MANIFEST)) or ".." in parts:
                    raise _broken("it contains a file or a link that MCV does not extract", shown(member.name))
                if member.size > _LARGEST or member.name in files or len(files) >= _MOST:
                    raise _broken(
                        "it has too many files, or a file that is too large or occurs twice", shown(member.name)
                    )
                content = tar.extractfile(member) if member.name.endswith(".json") else None
                if content is not None:
                    left -= member.size
                    limit = _LARGEST_MANIFEST if member.name.startswith(_MANIFEST) else _LARGEST_JSON
                    if left < 0 or member.size > limit:
                        raise _broken("it contains too much JSON", shown(member.name))
                files[member.name] = _File(member.size, content.read() if content is not None else b"")
    except UntrustedError as error:
        raise _broken("its layer cannot be unpacked", error.what) from error
    except (tarfile.TarError, EOFError, zlib.error, UnicodeError, ValueError) as error:
        raise _broken("its layer cannot be unpacked", "it is not a complete archive") from error
    return files


def _entries(cached: Mapping[str, _File]) -> list[dict[str, Any]]:
    """Return the values with a key in `_KEPT` from each kernel's JSON."""
    rows = []
    for name, file in cached.items():
        if not name.endswith(".json"):
            continue
        try:
            row = strict_json.read(file.json)
            if not row.get("hash"):
                continue
            folder = entry_folder(row["hash"])
            manifest_row(row, NO_KEY)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _broken(f"{name} cannot be read", _reason(error)) from error
        if PurePosixPath(name).parent.name != folder:
            raise _broken(f"{name} is in a folder where Triton does not look for it", f"its hash belongs to {folder}")
        rows.append({key: row[key] for key in _KEPT if key in row})
    return rows


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, DocumentError) else "it is not JSON of the expected form"


def _groups(cached: Mapping[str, _File], mount: str | None) -> None:
    """Raise ContractError unless each group file names exactly the other files of its folder.

    The paths must be those of a cache at `mount`, unless `mount` is None or empty.
    """
    folders: dict[str, set[str]] = {}
    for name in cached:
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, set()).add(last)
    for name, file in cached.items():
        path = PurePosixPath(name)
        if not path.name.startswith("__grp__"):
            continue
        beside = folders[str(path.parent)] - {path.name}
        try:
            children: dict[str, str] = dict(strict_json.read(file.json)["child_paths"])
        except (ValueError, KeyError, TypeError) as error:
            raise _broken(f"{name} cannot be read", _reason(error)) from error
        if set(children) != beside:
            raise _broken(
                f"{name} names other files than those in its folder", ", ".join(sorted(set(children) ^ beside))
            )
        wrong = [child for last, child in children.items() if mount and child != f"{mount}/{path.parent.name}/{last}"]
        if wrong:
            raise _broken(f"{name} is not for a cache at {mount}", f"it names {wrong[0]}")


def _same(name: str, image_labels: Mapping[str, str], actual: str) -> None:
    if image_labels.get(name) != actual:
        raise _broken(f"its label {name} is wrong", f"it says {image_labels.get(name)}, the layer has {actual}")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _broken(what: str, why: str, fix: str = "build or fetch the image again") -> ContractError:
    return ContractError("cache-mcv-unfit", f"MCV cannot use this Triton cache: {what}", why=why, fix=fix)


def require_hit(cache: TritonCache, here: Mapping[str, Any]) -> None:
    """Raise an error if the Triton that `here` describes would not find the kernels in a cache.

    Args:
        here: the JSON object in the first line that containerfiles/triton-cache/calls.py prints with that Triton.

    Raises:
        PinError: the cache was made with a Triton whose key differs from the key in `here`.
        ContractError: Triton is not at the path that it had when the cache was made.
        ConfigError: Triton does not look for its cache where this cache must be mounted, or environment variables are
            set that are part of the keys of kernels.
    """
    image_labels = cache.labels
    if f"sha256:{here['triton_key']}" != image_labels.get(labels.CACHE_TRITON_KEY):
        raise PinError(
            "cache-other-triton",
            "the cache is for a different Triton, so every kernel would be compiled again",
            why=f"Triton {here['triton']} has the key {here['triton_key'][:12]}…, the cache is for the key"
            f" {image_labels.get(labels.CACHE_TRITON_KEY, 'none')[:19]}…",
            fix=f"use the Triton image with the input digest {image_labels.get(labels.CACHE_TRITON, 'unknown')},"
            " or build the cache again",
        )
    if here["path"] != (path := image_labels.get(labels.CACHE_TRITON_PATH)):
        raise ContractError(
            "cache-other-path",
            "Triton is not where it was when the cache was made, so every kernel would be compiled again",
            why=f"it is at {here['path']}, not {path}, and the path of its bitcode is part of a kernel's key",
            fix=f"put Triton at {path}",
        )
    if here["variables"]:
        raise ConfigError(
            "cache-variables-set",
            f"every kernel would be compiled again because of {', '.join(sorted(here['variables']))}",
            why="these environment variables are part of a kernel's key, even if they have their default values",
            fix="unset these variables",
        )
    if here["cache"] != (mount := image_labels.get(labels.CACHE_MOUNT)):
        raise ConfigError(
            "cache-other-folder",
            f"Triton looks for its cache in {here['cache']}",
            why=f"the files in this cache name each other by paths below {mount}",
            fix=f"copy the cache to {mount} and set TRITON_CACHE_DIR={mount}",
        )
