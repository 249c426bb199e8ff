"""Facts of a host library: its name, what it needs, the glibc that it runs on, and the GPU code inside."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolchain.kernels.codeobject import EM_AMDGPU
from toolchain_lab.examine.revisions import INSIDE, revisions

_BUNDLE, _PACKED, _FATBIN = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB", b"\x50\xed\x55\xba"
_MOST = 100_000
_FORWARD = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


@dataclass(frozen=True, kw_only=True)
class Library:
    """An ELF file for a host.

    Args:
        glibc: the oldest that it runs on, as it asks for symbol versions; empty if it asks for none.
        targets: GPUs of the code inside, as `gfx942` or `sm_90`; `packed` for AMD code whose bundle is compressed.
        llvms: revisions of LLVMs inside, by their own text.
    """

    path: str
    soname: str
    needed: tuple[str, ...]
    glibc: str
    targets: tuple[str, ...]
    llvms: tuple[str, ...]


def read_library(path: str, content: bytes) -> Library | None:
    """A library or program of a host; None for other and for damaged files.

    Args:
        path: for messages.
    """
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - most verbs read no library
    from elftools.elf.dynamic import DynamicSection  # noqa: PLC0415
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415
    from elftools.elf.gnuversions import GNUVerNeedSection  # noqa: PLC0415

    try:
        elf = ELFFile(io.BytesIO(content))
        if elf["e_machine"] in (EM_AMDGPU, "EM_AMDGPU", "EM_CUDA", 190):
            return None
        soname, needed, versions, targets = "", [], set(), set()
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                for tag in section.iter_tags():
                    about: Any = tag
                    if tag.entry.d_tag == "DT_SONAME":
                        soname = str(about.soname)
                    elif tag.entry.d_tag == "DT_NEEDED":
                        needed.append(str(about.needed))
            elif isinstance(section, GNUVerNeedSection):
                names = [aux.name for _, rows in section.iter_versions() for aux in rows]
                versions |= {match[1] for name in names if (match := _FORWARD.fullmatch(name))}
            elif section.name in {".hip_fatbin", ".nv_fatbin"}:
                place, size = section["sh_offset"], section["sh_size"]
                read = amd_targets if section.name == ".hip_fatbin" else nvidia_targets
                targets |= set(read(memoryview(content)[place : place + size]))
        glibc = newest(versions)
    except (ELFError, ValueError, KeyError, AttributeError, struct.error, UnicodeDecodeError):
        return None
    llvms = {revision.revision for revision in revisions([content], path) if revision.kind in INSIDE}
    return Library(
        path=path, soname=soname, needed=tuple(needed), glibc=glibc, targets=tuple(sorted(targets)),
        llvms=tuple(sorted(llvms)),
    )  # fmt: skip


def newest(versions: Iterable[str]) -> str:
    """The highest of some versions of glibc; empty for none."""
    return max(versions, key=lambda text: [int(part) for part in text.split(".")], default="")


def amd_targets(section: memoryview) -> Iterator[str]:
    """The GPUs of clang's offload bundles."""
    data = bytes(section)
    for match in re.finditer(re.escape(_BUNDLE) + b"|" + _PACKED, data):
        if match[0] == _PACKED:
            yield "packed"
            continue
        place = match.end() + 8
        (count,) = struct.unpack_from("<Q", data, match.end())
        for _ in range(min(count, _MOST)):
            _, size, length = struct.unpack_from("<QQQ", data, place)
            name = data[place + 24 : place + 24 + length].decode("ascii", "replace")
            place += 24 + length
            if size and "gfx" in name:
                yield name[name.index("gfx") :]


def nvidia_targets(section: memoryview) -> Iterator[str]:
    """The architectures of the entries of CUDA's fat binaries; PTX as `compute_90`."""
    place = 0
    while place + 16 <= len(section):
        magic, _, head, size = struct.unpack_from("<4sHHQ", section, place)
        if magic != _FATBIN:
            place += 8  # padding between two
            continue
        entry, end = place + head, place + head + size
        while entry + 64 <= min(end, len(section)):
            kind, _, header, payload = struct.unpack_from("<HHIQ", section, entry)
            (arch,) = struct.unpack_from("<I", section, entry + 28)
            if not header:
                break
            yield f"{'compute' if kind == 1 else 'sm'}_{arch}"
            entry += header + payload
        place = end
