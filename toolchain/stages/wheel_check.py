"""Checks a wheel's content against its name."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from toolchain.catalog.architectures import machine_of
from toolchain.catalog.release_data import numbers
from toolchain.core.errors import ContractError
from toolchain.stages.elf import Linked, linked_of

_MANYLINUX = re.compile(r"manylinux_([0-9]+)_([0-9]+)_(\w+)")
# ELF names machines in its own way.
ELF_NAMES = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64", "ppc64le": "EM_PPC64", "s390x": "EM_S390"}
_ABI_SUFFIX = re.compile(r"\.cpython-([0-9]+)[a-z]*-")


def check_wheel(wheel: Path, *, python: str, arch: str, glibc: str) -> dict[str, Any]:
    """Check that a wheel is for one CPython, one machine and an old C library, in its name, metadata and content.

    Args:
        python: `3.13`.
        arch: OCI architecture.
        glibc: the floor: no newer symbols may be asked for.

    Returns:
        `{"file", "bytes", "tag", "libraries", "glibc"}`: the platform tag, what the binaries name, and the newest glibc
        of which they name a symbol.
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
    if f"-{both}-" not in wheel.name or set(tags) != {f"{both}-{platform}" for platform in tag.split(".")}:
        wrong.append(f"its name and its metadata are not for {abi}: {', '.join(tags) or 'no tag'}")
    named = {(int(major), int(minor), cpu) for major, minor, cpu in _MANYLINUX.findall(tag)}
    floor = numbers(glibc)
    if not named or any((major, minor) > floor or cpu != machine.kernel for major, minor, cpu in named):
        wrong.append(f"its tag {tag} is not that of glibc {glibc} or older on {machine.kernel}")
    wrong += [
        f"{name} has the suffix of another Python"
        for name in names
        if (suffix := _ABI_SUFFIX.search(PurePosixPath(name).name)) and (stable or suffix[1] != abi.removeprefix("cp"))
    ]
    wrong += [f"{name} is for {binary.machine}" for name, binary in binaries if binary.machine != ELF_NAMES[arch]]
    newest = {name: binary.newest("GLIBC_") for name, binary in binaries}
    wrong += [f"{name} asks for glibc {'.'.join(map(str, asks))}" for name, asks in newest.items() if asks > floor]
    if not binaries:
        wrong.append("there is no program or library in it")
    if wrong:
        raise ContractError(
            f"{wheel.name} is not the wheel that it should be",
            why="\n".join(wrong),
            fix="see the log: the wheel has files of the base or of another Python",
        )
    return {
        "file": wheel.name,
        "bytes": wheel.stat().st_size,
        "tag": tag,
        "libraries": sorted({library for _, binary in binaries for library in binary.needed}),
        "glibc": ".".join(map(str, max(newest.values(), default=()))),
    }


def _binaries(archive: zipfile.ZipFile) -> Iterator[tuple[str, Linked]]:
    """Every ELF file by name."""
    for member in archive.infolist():
        with archive.open(member) as stream:
            if stream.read(4) != b"\x7fELF":
                continue
        yield member.filename, linked_of(member.filename, archive.read(member))
