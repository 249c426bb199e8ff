"""Read facts about a library for the host: its name, the libraries and glibc it needs, its GPU code and its LLVMs."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from toolchain.catalog.gpus import any_gpu_of_flag
from toolchain.core.errors import HostileInputError, KernelError
from toolchain.core.stored_file import StoredFile
from toolchain.core.unpack_budget import UnpackBudget
from toolchain.kernels.codeobject import EM_AMDGPU
from toolchain_lab.examine.offload import Sealed, parts, skip_zeros
from toolchain_lab.examine.revisions import INSIDE, revisions
from toolchain_lab.metered import metered

_FATBIN = b"\x50\xed\x55\xba"
# Flags of an entry: its code uses the features of one architecture, as sm_90a, or of a family, as sm_100f.
_ONE, _FAMILY = 1 << 20, 1 << 21
# CUDA's compilers put relocatable device code (-rdc=true) into a section of another name, with the same fat binaries.
_NVIDIA = (".nv_fatbin", "__nv_relfatbin")
_ELF = b"\x7fELF"
# Mojo and other compilers put bare code objects into the constants of a library. This is the start of their ELF header:
# 64 bits, little-endian, version 1, OS ABI HSA. The type, machine, version, flags and header size follow further on.
_OBJECT = b"\x7fELF\2\1\1\x40"
_OBJECT_HEADER = struct.Struct("<16xHHI24xIH")
_SHARED = 3  # the ELF type of a linked code object, ET_DYN
_MOST = 100_000  # the limit for the numbers of sections, dynamic tags and versions

# These are the maximum numbers of entries in a section's CUDA fat binaries, and of nonzero 8-byte words between them.
# PyTorch's largest library has about 100,000 entries.
_MOST_ENTRIES, _MOST_WORDS = 500_000, 10_000
_CHUNK = 1 << 20
_FORWARD = re.compile(r"GLIBC_(\d{1,6}(?:\.\d{1,6}){1,3})")


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library or a program for the host.

    Args:
        glibc: the oldest version of glibc with which it runs, from the symbol versions that it needs; empty if it does
            not need glibc.
        targets: the GPUs for which it contains code, such as `gfx942` or `sm_90`.
        llvms: the revisions of the LLVMs that are linked into it, from texts in the file.
        sealed: the number of compressed bundles of AMD code whose GPUs are unknown, because they cannot be unpacked
            here.
        fault: a description of a damaged or malicious bundle in it; empty if there is none.
    """

    path: str
    soname: str
    needed: tuple[str, ...]
    glibc: str
    targets: tuple[str, ...]
    llvms: tuple[str, ...]
    sealed: int = 0
    fault: str = ""

    @property
    def is_runtime(self) -> bool:
        """Whether this is ROCm's runtime, which has kernels for all GPUs, but only to copy images."""
        return self.path.rpartition("/")[2].startswith("libhsa-runtime64")


def read_library(file: StoredFile) -> Library | None:
    """Return the facts about a library or program for the host; None for any other file and for a damaged ELF file.

    HostileInputError is raised if the file names more than 64 revisions, its sections of device code overlap, or a
    section of CUDA's fat binaries has too many entries.
    """
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - most verbs read no library
    from elftools.construct import ConstructError  # noqa: PLC0415

    if file.size < 64:
        return None
    with file.open() as stream:
        if stream.read(len(_ELF)) != _ELF:
            return None
        try:
            found = _Found(file.path, stream)
        except (
            *(ELFError, ConstructError, struct.error),
            *(ValueError, KeyError, AttributeError, TypeError, IndexError, ArithmeticError),
        ):
            return None
        if found.machine in (EM_AMDGPU, "EM_AMDGPU", "EM_CUDA", 190):
            return None
        stream.seek(0)
        bare = BareObjects(found.in_bundle)
        told = revisions(bare.watch(iter(lambda: stream.read(_CHUNK), b"")), file.path)
    return Library(
        path=file.path,
        soname=found.soname,
        needed=tuple(found.needed),
        glibc=newest(found.versions),
        targets=tuple(sorted(found.targets | bare.gpus)),
        llvms=tuple(sorted({revision.revision for revision in told if revision.kind in INSIDE})),
        sealed=found.sealed,
        fault=found.fault,
    )


class _Found:
    def __init__(self, path: str, stream: BinaryIO) -> None:
        from elftools.elf.dynamic import DynamicSection  # noqa: PLC0415
        from elftools.elf.elffile import ELFFile  # noqa: PLC0415
        from elftools.elf.gnuversions import GNUVerNeedSection  # noqa: PLC0415

        self.soname, self.fault, self.sealed = "", "", 0
        self.needed: list[str] = []
        self.versions: set[str] = set()
        self.targets: set[str] = set()
        self._bundles: list[range] = []
        self._budget = UnpackBudget()
        self._left = stream.seek(0, 2)  # bytes; the limit for the total size of the remaining sections of device code
        elf = ELFFile(metered(stream))
        self.machine = elf["e_machine"]
        if elf.num_sections() > _MOST:
            raise ValueError("it has too many sections")
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                for tag in islice(section.iter_tags(), _MOST):
                    about: Any = tag
                    if tag.entry.d_tag == "DT_SONAME":
                        self.soname = str(about.soname)
                    elif tag.entry.d_tag == "DT_NEEDED":
                        self.needed.append(str(about.needed))
            elif isinstance(section, GNUVerNeedSection):
                rows = (aux.name for _, auxes in islice(section.iter_versions(), _MOST) for aux in auxes)
                self.versions |= {match[1] for name in islice(rows, _MOST) if (match := _FORWARD.fullmatch(name))}
            elif section.name == ".hip_fatbin":
                self._take(section["sh_size"], path)
                self._bundles.append(range(section["sh_offset"], section["sh_offset"] + section["sh_size"]))
                self._amd(stream, section["sh_offset"], section["sh_size"], path)
            elif section.name in _NVIDIA:
                self._take(section["sh_size"], path)
                self.targets |= set(nvidia_targets(stream, section["sh_offset"], section["sh_size"]))

    def in_bundle(self, place: int) -> bool:
        """Return whether an offset in the file is in a section of bundles, which name the GPUs of their objects."""
        return any(place in section for section in self._bundles)

    def _take(self, size: int, path: str) -> None:
        """Raise HostileInputError if the sections of device code, up to this one, are together larger than the file.

        Such sections overlap, and the file could take hours to read.
        """
        self._left -= size
        self._budget.add(size)
        if self._left < 0:
            raise HostileInputError(
                "device-code-overlap", f"{path} has sections of device code that overlap", fix="get it again"
            )

    def _amd(self, stream: BinaryIO, start: int, size: int, path: str) -> None:
        size = min(size, stream.seek(0, 2) - start)
        try:
            for part in parts(stream, size, path, start=start, budget=self._budget):
                if isinstance(part, Sealed):
                    self.sealed += 1
                elif part.size and part.gpu:
                    self.targets.add(part.gpu)
        except (KernelError, HostileInputError) as error:
            self.fault = f"{error.what} ({error.why})" if error.why else error.what


class BareObjects:
    """A collector for the GPUs of code objects that are in a file, but in no bundle.

    Args:
        in_bundle: a function that returns whether an offset in the file belongs to a bundle; such objects are skipped.
    """

    def __init__(self, in_bundle: Callable[[int], bool]) -> None:
        self.gpus: set[str] = set()
        self._in_bundle = in_bundle

    def watch(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of the file unchanged, and add the GPUs of the code objects in them to `gpus`."""
        held, start = b"", 0
        for piece in pieces:
            held += piece
            at = held.find(_OBJECT)
            while 0 <= at <= len(held) - _OBJECT_HEADER.size:
                kind, machine, version, flags, size = _OBJECT_HEADER.unpack_from(held, at)
                if (kind, machine, version, size) == (_SHARED, EM_AMDGPU, 1, 64) and not self._in_bundle(start + at):
                    self.gpus |= {any_gpu_of_flag(flags & 0xFF) or ""} - {""}
                at = held.find(_OBJECT, at + 1)
            keep = max(0, len(held) - _OBJECT_HEADER.size + 1)
            held, start = held[keep:], start + keep
            yield piece


def newest(versions: Iterable[str]) -> str:
    """Return the highest version of glibc in `versions`, or an empty string if there are none."""
    return max(versions, key=lambda text: [int(part) for part in text.split(".")], default="")


def nvidia_targets(stream: BinaryIO, start: int, size: int) -> Iterator[str]:
    """Yield the architecture of each entry in a section of CUDA fat binaries: `sm_90a`, or `compute_90a` for PTX."""
    place, last = start, start + size
    entries, words = _MOST_ENTRIES, _MOST_WORDS
    while (place := skip_zeros(stream, place, last)) + 16 <= last:
        magic, _, head, length = struct.unpack("<4sHHQ", _exactly(stream, place, 16))
        entries, words = (entries, words - 1) if magic != _FATBIN or head < 16 else (entries - 1, words)
        _require_few(entries, words)
        if magic != _FATBIN or head < 16:
            place += 8
            continue
        entry, end = place + head, min(place + head + length, last)
        while entry + 64 <= end:
            row = _exactly(stream, entry, 64)
            kind, _, header, payload = struct.unpack_from("<HHIQ", row)
            arch, flags = struct.unpack_from("<I8xQ", row, 28)
            if header < 48:
                break
            features = "a" if flags & _ONE else "f" if flags & _FAMILY else ""
            yield f"{'compute' if kind == 1 else 'sm'}_{arch}{features}"
            entry += header + payload
            entries -= 1
            _require_few(entries, words)
        place = end


def _require_few(entries: int, words: int) -> None:
    if entries < 0 or words < 0:
        raise HostileInputError(
            "fat-binary-too-many", "a section of CUDA's fat binaries has too many entries", fix="get the file again"
        )


def _exactly(stream: BinaryIO, place: int, size: int) -> bytes:
    stream.seek(place)
    return stream.read(size)
