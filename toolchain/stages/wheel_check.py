"""What a wheel promises by its name, held against what is in it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from toolchain.catalog.architectures import machine_of
from toolchain.errors import ContractError

_MANYLINUX = re.compile(r"manylinux_([0-9]+)_([0-9]+)_(\w+)")
# ELF names machines in its own way.
ELF_NAMES = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64", "ppc64le": "EM_PPC64", "s390x": "EM_S390"}
_ABI_SUFFIX = re.compile(r"\.cpython-([0-9]+)[a-z]*-")


@dataclass(frozen=True, kw_only=True)
class Binary:
    """A program or library: its machine, the libraries it names, the newest glibc of which it names a symbol, and the
    names that it gives to others."""

    name: str
    machine: str
    needed: tuple[str, ...]
    glibc: tuple[int, ...]
    exported: tuple[str, ...]


def check_wheel(wheel: Path, *, python: str, arch: str, glibc: str) -> dict[str, Any]:
    """Insist that a wheel is for one CPython, one machine and an old C library, in its name, metadata and content.

    Args:
        python: `3.13`.
        arch: OCI architecture.
        glibc: the floor: no newer symbols may be asked for.

    Returns:
        `{"file", "bytes", "tag", "libraries", "glibc"}`: the platform tag, what the binaries name, and the newest glibc
        of which they name a symbol.

    Raises:
        ContractError: with all that is not so.
    """
    machine = machine_of(arch)
    tag = wheel.name.removesuffix(".whl").rsplit("-", 1)[-1]
    abi = "cp" + python.replace(".", "")
    wrong: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        binaries = list(_binaries(archive))
        metadata = next((name for name in names if name.endswith(".dist-info/WHEEL")), "")
        tags = re.findall(r"^Tag: (\S+)", archive.read(metadata).decode(), re.MULTILINE) if metadata else []
    # One of the stable ABI is named for the oldest Python that it serves.
    stable = re.search(r"-(cp3([0-9]+)-abi3)-", wheel.name)
    both = stable[1] if stable and int(stable[2]) <= int(python.partition(".")[2]) else f"{abi}-{abi}"
    if f"-{both}-" not in wheel.name or set(tags) != {f"{both}-{one}" for one in tag.split(".")}:
        wrong.append(f"its name and its metadata are not for {abi}: {', '.join(tags) or 'no tag'}")
    named = {(int(major), int(minor), cpu) for major, minor, cpu in _MANYLINUX.findall(tag)}
    floor = tuple(int(part) for part in glibc.split("."))
    if not named or any((major, minor) > floor or cpu != machine.kernel for major, minor, cpu in named):
        wrong.append(f"its tag {tag} is not that of glibc {glibc} or older on {machine.kernel}")
    wrong += [
        f"{name} has the suffix of another Python"
        for name in names
        if (suffix := _ABI_SUFFIX.search(PurePosixPath(name).name)) and (stable or suffix[1] != abi.removeprefix("cp"))
    ]
    wrong += [f"{binary.name} is for {binary.machine}" for binary in binaries if binary.machine != ELF_NAMES[arch]]
    wrong += [
        f"{binary.name} asks for glibc {'.'.join(map(str, binary.glibc))}"
        for binary in binaries
        if binary.glibc > floor
    ]
    if not binaries:
        wrong.append("there is no program or library in it")
    if wrong:
        raise ContractError(
            f"{wheel.name} is not the wheel that it should be",
            why="\n".join(wrong),
            fix="see the log: something of the base or of another Python came in",
        )
    return {
        "file": wheel.name,
        "bytes": wheel.stat().st_size,
        "tag": tag,
        "libraries": sorted({library for binary in binaries for library in binary.needed}),
        "glibc": ".".join(map(str, max((binary.glibc for binary in binaries), default=()))),
    }


def _binaries(archive: zipfile.ZipFile) -> Iterator[Binary]:
    """Every ELF file; of code objects for GPUs only the machine would be told, and a wheel has none."""
    for member in archive.infolist():
        with archive.open(member) as stream:
            if stream.read(4) != b"\x7fELF":
                continue
        yield binary_of(member.filename, archive.read(member))


def binary_of(name: str, content: bytes) -> Binary:
    """What an ELF file says of itself.

    Raises:
        ContractError: it is no whole one.
    """
    try:
        elf = ELFFile(io.BytesIO(content))
        dynamic = [section for section in elf.iter_sections() if isinstance(section, DynamicSection)]
        symbols = elf.get_section_by_name(".dynsym")
        versions = [
            version.name.removeprefix("GLIBC_")
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, of_library in section.iter_versions()
            for version in of_library
            if re.fullmatch(r"GLIBC_[0-9.]+", version.name)
        ]
    except ELFError as error:
        raise ContractError(
            f"{name} is no whole ELF file", why=str(error), fix="see the log, and build it again"
        ) from error
    return Binary(
        name=name,
        machine=str(elf["e_machine"]),
        # pyelftools sets `needed` on tags of this kind alone.
        needed=tuple(str(tag.needed) for section in dynamic for tag in section.iter_tags("DT_NEEDED")),  # type: ignore[attr-defined]
        glibc=max((tuple(int(part) for part in version.split(".")) for version in versions), default=()),
        exported=tuple(sorted(_exported(symbols))) if isinstance(symbols, SymbolTableSection) else (),
    )


def _exported(symbols: SymbolTableSection) -> set[str]:
    return {
        symbol.name
        for symbol in symbols.iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL" and symbol.name
    }
