"""Make mutants of every kind of file that can contain kernels.

A mutant is a file with a few changed places, or a container that is packed again after its content has been changed.
"""

from __future__ import annotations

import io
import json
import lzma
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core.digest import sha256_bytes
from toolchain.kernels.cache_entries import Entry as Cached
from toolchain.kernels.cache_entries import entry_folder, labels, write_manifest
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout

_NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 64) - 1,
)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return a copy with at most eight random changes."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        at = draw.randrange(len(content) + 1)
        size = min(draw.choice((1, 2, 4, 8, 16, 100, 4096)), len(content) - at)
        how = draw.randrange(9)
        if how <= 2 and at < len(content):
            content[at] ^= 1 << draw.randrange(8)
        elif how == 3:
            content[at : at + size] = draw.randbytes(size)
        elif how in {4, 5}:
            width = draw.choice((1, 2, 4, 8))
            number = draw.choice((*_NUMBERS, len(content), draw.randrange(1 << 16))) % (1 << 8 * width)
            content[at : at + width] = number.to_bytes(width, "little")
        elif how == 6:
            del content[at : at + size]
        elif how == 7:
            other = draw.randrange(len(content) + 1)
            content[at:at] = content[other : other + size]
        elif draw.random() < 0.3:
            del content[at:]
    return bytes(content)


def aks2(directory: bytes, objects: bytes, count: int) -> bytes:
    """Return an .aks2 file with the given directory and objects."""
    head = struct.pack("<III", len(directory) + len(objects), count, len(directory))
    return b"AKS2" + head + lzma.compress(directory + objects, preset=0)


def mutated_aks2(codes: list[bytes], draw: random.Random) -> bytes:
    """Return an .aks2 file in which the compressed bytes, the directory or the objects are changed."""
    directory, objects = b"", b""
    for at, code in enumerate((*codes, b"")):
        name = b"kernel-%d\0" % at
        directory += struct.pack("<IIIII", 64, 256, len(objects), len(code), len(name)) + name
        objects += code
    how = draw.randrange(3)
    if how == 0:
        return mutated(aks2(directory, objects, len(codes) + 1), draw)
    directory = mutated(directory, draw) if how == 1 else directory
    objects = mutated(objects, draw) if how == 2 else objects
    return aks2(directory, objects, len(codes) + 1)


def mutated_zip(files: Mapping[str, bytes], draw: random.Random, method: int) -> bytes:
    """Return a .zip in which the bytes, the central directory, or only some names are changed."""
    stream = io.BytesIO()
    names = [(_name(name, draw) if draw.random() < 0.1 else name, content) for name, content in files.items()]
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in names:
            row = zipfile.ZipInfo(name[:65000])
            row.compress_type = method
            archive.writestr(row, content)
    data = bytearray(stream.getvalue())
    how = draw.randrange(3)
    if how == 0:
        return mutated(bytes(data), draw)
    if how == 1:  # changes only the central directory, because zipfile trusts it
        start = data.find(b"PK\x01\x02")
        return bytes(data[:start]) + mutated(bytes(data[start:]), draw)
    return bytes(data)


def _name(name: str, draw: random.Random) -> str:
    forms = (
        "./{}",
        "/{}",
        "../{}",
        "a//{}",
        "{}/",
        "{}\\x",
        "{}" + "x" * 300,
        "\udcff{}",
        "é{}",
        "a\x1b{}",
        "{}/{}",
        "A",
        "a",
    )
    return draw.choice(forms).format(name, name).encode("utf-8", "replace").decode()


def bundle(codes: Mapping[str, bytes]) -> bytes:
    """Return a plain offload bundle with an empty entry for the host, and a code object for each GPU."""
    rows, body, at = b"", b"", 4096
    for gpu, code in {"": b"", **codes}.items():
        target = f"hipv4-amdgcn-amd-amdhsa--{gpu}".encode() if gpu else b"host-x86_64-unknown-linux--"
        rows += struct.pack("<QQQ", at, len(code), len(target)) + target
        body += code.ljust(-(-len(code) // 4096) * 4096, b"\0")
        at = 4096 + len(body)
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(codes) + 1) + rows
    return head.ljust(4096, b"\0") + body


def packed_bundle(content: bytes, draw: random.Random) -> bytes:
    """Return a compressed bundle with a random version and compression method."""
    from backports import zstd  # noqa: PLC0415 - only for this kind

    version, method = draw.choice(((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)))
    packed = zstd.compress(content) if method else zlib.compress(content, 1)
    form = {1: "<HHIQ", 2: "<HHIIQ", 3: "<HHQQQ"}[version]
    size = 4 + struct.calcsize(form) + len(packed)
    numbers = (len(content),) if version == 1 else (size, len(content))
    return b"CCOB" + struct.pack(form, version, method, *numbers, 0) + packed


def mutated_bundle(codes: Mapping[str, bytes], draw: random.Random) -> bytes:
    """Return a compressed bundle in which the content, the compressed bytes or the header is changed."""
    how = draw.randrange(3)
    content = bundle(codes)
    if how == 0:
        content = mutated(content[:600], draw) + content[600:] if draw.random() < 0.7 else mutated(content, draw)
    packed = packed_bundle(content, draw)
    if how == 1:
        packed = mutated(packed, draw)
    elif how == 2:
        packed = mutated(packed[:36], draw) + packed[36:]
    return packed.ljust(-(-len(packed) // 4096) * 4096, b"\0") + packed if draw.random() < 0.3 else packed


def library(section: bytes) -> bytes:
    """Return an ELF file for the host with a section `.hip_fatbin`."""
    names = b"\0.hip_fatbin\0.shstrtab\0"
    row = struct.Struct("<IIQQQQIIQQ")
    first = row.pack(1, 1, 2, 0x1000, 64, len(section), 0, 0, 4096, 0)
    second = row.pack(13, 3, 0, 0, 64 + len(section), len(names), 0, 0, 1, 0)
    about = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(section) + len(names), 0, 64, 0, 0, 64, 3, 2)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + about + section + names + bytes(64) + first + second


@dataclass
class Caches:
    """A Triton cache in the form that MCV, Red Hat's Model Cache Vault, reads.

    Args:
        tar: the uncompressed layer of the image with the cache.
        image_labels: the labels of the image.
    """

    tar: bytes
    image_labels: dict[str, str]

    @classmethod
    def of(cls, codes: Mapping[str, bytes], scratch: Path) -> Caches:
        """Return a cache that contains a code object for each GPU."""
        tree, entries = scratch / "tree", []
        for at, (gpu, code) in enumerate(codes.items()):
            hash_ = f"{at:064x}"
            target = {"backend": "hip", "arch": gpu, "warp_size": 64 if gpu.startswith("gfx9") else 32}
            metadata = {"hash": hash_, "target": target, "num_stages": 1, "num_warps": 4, "name": "add"}
            files = {"add.json": json.dumps(metadata).encode(), "add.hsaco": code}
            children = {name: f"/mnt/{entry_folder(hash_)}/{name}" for name in files}
            files["__grp__add.json"] = json.dumps({"child_paths": children}).encode()
            folder = tree / "io.triton.cache" / entry_folder(hash_)
            folder.mkdir(parents=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            entries.append(Cached(metadata=metadata, size=sum(map(len, files.values()))))
        write_manifest(entries, tree, "unknown-triton-key")
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for path in sorted(tree.rglob("*")):
                tar.add(path, path.relative_to(tree), recursive=False)
        return cls(stream.getvalue(), labels(entries))

    def written(self, layer: bytes, image_labels: Mapping[str, str], folder: Path) -> tuple[Layout, Any]:
        """Return a new layout with an image of the given layer, and the descriptor of the image."""
        layout = Layout(folder).ensure()
        blob = layout.put_bytes(layer, media.LAYER_GZIP)
        about = {"architecture": "amd64", "os": "linux", "config": {"Labels": dict(image_labels)},
                 "rootfs": {"type": "layers", "diff_ids": [sha256_bytes(self.tar)]}}  # fmt: skip
        config = layout.put_json(about, media.CONFIG)
        manifest = {
            "schemaVersion": 2,
            "mediaType": media.MANIFEST,
            "config": config.as_json(),
            "layers": [blob.as_json()],
        }
        return layout, layout.put_json(manifest, media.MANIFEST)
