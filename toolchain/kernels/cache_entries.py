"""Read and write entries of Triton's cache, and lay them out for an image that Model Cache Vault (MCV) can read.

An entry is a folder whose name is the base32 of its kernel's hash. It contains the files of the kernel NAME, and
`__grp__NAME.json`, which lists them by absolute paths. So a cache works only at one path. `NAME.launch.json` contains
the values that are needed to launch the kernel without Triton. docs/tasks/wheels.md describes the images.
"""

from __future__ import annotations

import base64
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.digest import canonical, sha256_bytes
from toolchain.core.errors import KernelError
from toolchain.core.filesystem import NewFile, is_inside, open_regular, read_regular
from toolchain.kernels.codeobject import check_object
from toolchain.oci.labels import CACHE_MCV_KEY

FOLDER = "io.triton.cache"
LAUNCHES = "launches"  # the folder in Triton's cache to which containerfiles/triton-cache/calls.py writes launch values
PACKED = ".tar"  # the suffix of a tar with the cache entries of a call
MANIFEST = "io.triton.manifest/manifest.json"
ENTRIES = "cache.triton.image/entry-count"
BYTES = "cache.triton.image/cache-size-bytes"
SUMMARY = "cache.triton.image/summary"
NO_KEY = "unknown-triton-key"
_LARGEST = 64 << 20  # the maximum size of one file in bytes
_LARGEST_SUM = 1 << 30  # the maximum size of all files in a worker's tar, in bytes
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kernel in a cache: Triton's metadata, and the size of all its files in bytes."""

    metadata: Mapping[str, Any]
    size: int


def entry_folder(hash_: str) -> str:
    """Return the name of the folder for the kernel with this hash of 64 hex digits."""
    return base64.b32encode(bytes.fromhex(hash_)).decode().rstrip("=")


def lay_out(made: Path, kernels: Iterable[tuple[str, str, str]], tree: Path, mount: str) -> list[Entry]:
    """Copy the entries of kernels to a tree, and return the entries.

    Args:
        made: the folder that Triton wrote to. A link that leads out of it is refused, because containers could write
            to this folder.
        kernels: (GPU, function, hash) of each kernel.
        tree: the file tree of the layer. The entries are copied to its folder `FOLDER`.
        mount: the path at which Triton will find the cache.

    Raises:
        KernelError: an entry is incomplete or damaged, or has no code object of its kernel for its GPU.
    """
    entries = []
    for gpu, name, hash_ in sorted(set(kernels), key=lambda row: row[2]):
        source, target = made / entry_folder(hash_), tree / FOLDER / entry_folder(hash_)
        target.mkdir(parents=True)
        try:
            group = f"__grp__{name[:150]}.json"
            files = sorted(strict_json.read(read_regular(source / group, _LARGEST, within=made))["child_paths"])
            if any("/" in file or file.startswith(".") for file in files):
                raise ValueError(f"{group} names files that are not in its folder: {files}")
            content = {file: read_regular(source / file, _LARGEST, within=made) for file in files}
            metadata = strict_json.read(content[f"{name[:150]}.json"])
            launch = strict_json.read(read_regular(made / LAUNCHES / f"{hash_}.json", _LARGEST, within=made))
            content[f"{name[:150]}.launch.json"] = canonical(
                {
                    **{part: launch[part] for part in ("source", "signature", "constexprs")},
                    **{part: metadata[part] for part in ("name", "num_warps", "shared")},
                    "arch": metadata["target"]["arch"],
                    "global_scratch_size": metadata.get("global_scratch_size", 0),
                }
            )
            paths = {file: f"{mount}/{source.name}/{file}" for file in sorted(content)}
            content[group] = canonical({"child_paths": paths})
            code = f"{name[:150]}.hsaco"
            if (metadata["hash"], metadata["target"]["arch"]) != (hash_, gpu) or code not in content:
                raise ValueError(
                    f"it has no {code}, or is the kernel {metadata['hash']} for {metadata['target']['arch']} instead"
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(
                f"the cache entry of {name} is incomplete or damaged", f"{source.name}: {_why(error)}"
            ) from error
        for file, data in content.items():
            (target / file).write_bytes(data)
        check_object(target / code, gpu, str(metadata["name"]))
        entries.append(Entry(metadata=metadata, size=sum(map(len, content.values()))))
    return entries


def packed_kernels(path: Path) -> tuple[tuple[tuple[str, str], ...], Mapping[str, Any]]:
    """Return the function and the hash of each kernel in a worker's tar, and the worker's facts about Triton.

    Both are read from the JSON file beside the tar `path`. KernelError is raised if this file cannot be used.
    """
    try:
        beside = strict_json.read(read_regular(path.with_suffix(".json"), _LARGEST))
        kernels = tuple((str(name), str(hash_)) for name, hash_ in beside["kernels"])
        if wrong := [hash_ for _, hash_ in kernels if not _HASH.fullmatch(hash_)]:
            raise ValueError(f"{wrong[0]!r} is not the hash of a kernel")
        return kernels, dict(beside["about"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(f"cannot read the kernels of {path.with_suffix('.json')}", _why(error)) from error


def unpack(path: Path, made: Path) -> None:
    """Unpack a worker's tar into Triton's cache, without replacing files that exist.

    Args:
        path: the tar, which may be hostile.
        made: the cache. Containers could write to it, so it may contain links that lead out of it.

    Raises:
        KernelError: the tar or its JSON file is damaged, the tar contains files that are too large or do not belong to
            its kernels, a link leads out of the cache, or a file cannot be written.
    """
    kernels, _ = packed_kernels(path)
    folders = {entry_folder(hash_) for _, hash_ in kernels}
    notes = {f"{LAUNCHES}/{hash_}.json" for _, hash_ in kernels}
    left = _LARGEST_SUM
    try:
        with open_regular(path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                folder, _, name = member.name.partition("/")
                ours = folder in folders and name and "/" not in name and not name.startswith(".")
                odd = member.issparse() or not member.isreg()
                left -= member.size
                if odd or member.size > _LARGEST or left < 0 or not (ours or member.name in notes):
                    raise ValueError(f"{member.name!r} is too large, or not a file of its kernels")
                target, content = made / folder / name, tar.extractfile(member)
                assert content is not None  # noqa: S101 - a regular file has content
                target.parent.mkdir(parents=True, exist_ok=True)
                if not is_inside(target, made):
                    raise ValueError(f"a link leads out of {made}")
                with NewFile(target) as new:
                    new.stream.write(content.read())
                    new.finish(replace=False, flush=False)
    except (OSError, ValueError, OverflowError, MemoryError, RecursionError, tarfile.TarError) as error:
        raise KernelError(
            "cache-entry-damaged",
            f"{path} is not an archive of a worker",
            why=_why(error),
            fix="run the command again with --fresh",
        ) from error


def check_packed(path: Path, gpu: str) -> None:
    """Raise KernelError unless a worker's tar contains complete entries for `gpu`."""
    kernels, _ = packed_kernels(path)
    with tempfile.TemporaryDirectory(prefix="toolchain-calls-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        unpack(path, made)
        lay_out(made, [(gpu, *kernel) for kernel in kernels], Path(scratch, "tree"), "/")


def check_made(path: Path, gpu: str, kernel: str) -> None:
    """Raise KernelError unless a file is valid for `gpu`.

    A file with the suffix `PACKED` must be a tar of complete cache entries, and any other file must be the code object
    of `kernel`.
    """
    if path.suffix == PACKED:
        check_packed(path, gpu)
    else:
        check_object(path, gpu, kernel)


def write_manifest(entries: Iterable[Entry], tree: Path, key: str) -> None:
    """Write MCV's list of the entries to `tree`. For `key`, see `dummy_key`."""
    path = tree / MANIFEST
    path.parent.mkdir(parents=True)
    path.write_bytes(canonical({"triton": [manifest_row(entry.metadata, key) for entry in entries]}) + b"\n")


def manifest_row(metadata: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the row for a kernel in MCV's manifest. Options that are 0 or false are omitted, as in MCV."""
    options = ("ptx_version", "num_stages", "num_warps", "debug")
    given = {name: metadata[name] for name in options if metadata.get(name)}
    return {"hash": metadata["hash"], "dummy_key": dummy_key(metadata, key), **given, **metadata["target"]}


def dummy_key(metadata: Mapping[str, Any], key: str) -> str:
    """Return MCV's `dummy_key` for an entry: a SHA-256 over `key` and the SHA-256 of each of four other parts.

    Args:
        key: Triton's key as MCV finds it; `NO_KEY` if MCV finds none.
    """
    target = metadata["target"]
    stages, warps, ptx = (int(metadata.get(name) or 0) for name in ("num_stages", "num_warps", "ptx_version"))
    options = {"debug": bool(metadata.get("debug")), "num_stages": stages, "num_warps": warps, "ptx": ptx}
    parts = (
        "dummy_source_content",
        f"{target['backend']}-{target['arch']}-{target['warp_size']}",
        json.dumps(options, sort_keys=True, separators=(",", ":")),
        "{}",  # the environment variables that are part of Triton's keys; this tool sets none of them
    )
    return _hex("-".join([key, *map(_hex, parts)]))


def key_label(key: str) -> dict[str, str]:
    """Return a dict with the image label for Triton's key; an empty dict for `NO_KEY`."""
    return {} if key == NO_KEY else {CACHE_MCV_KEY: key}


def _damaged(what: str, why: str) -> KernelError:
    return KernelError("cache-entry-damaged", what, why=why, fix="run the command again with --fresh")


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    return str(error) if type(error) is ValueError else "a value in it does not have the form that a worker writes"


def _hex(text: str) -> str:
    return sha256_bytes(text.encode()).removeprefix("sha256:")


def labels(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the labels that MCV reads from an image with these entries."""
    rows = list(entries)
    targets = {canonical(row.metadata["target"]).decode(): row.metadata["target"] for row in rows}
    summary = [{name: targets[text][name] for name in ("backend", "arch", "warp_size")} for text in sorted(targets)]
    return {
        ENTRIES: str(len(rows)),
        BYTES: str(sum(row.size for row in rows)),
        SUMMARY: json.dumps({"targets": summary}, separators=(",", ":")),
    }
