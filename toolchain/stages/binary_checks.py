"""Check that built programs, libraries and wheels run on the intended systems and match the data about them."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from toolchain.catalog.architectures import machine_of
from toolchain.catalog.floors import Floor
from toolchain.catalog.release_data import numbers
from toolchain.catalog.rocm import Stub
from toolchain.core.errors import ContractError
from toolchain.core.filesystem import read_regular
from toolchain.core.zips import dist_info, open_wheel
from toolchain.stages.elf import LARGEST, Linked, linked_of, read_linked

_MANYLINUX = re.compile(r"manylinux_([0-9]+)_([0-9]+)_(\w+)")
_ELF_MACHINES = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64", "ppc64le": "EM_PPC64", "s390x": "EM_S390"}
_ABI_SUFFIX = re.compile(r"\.cpython-([0-9]+)[a-z]*-")
# The user's system provides these run-time libraries of C and C++.
_SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux[a-z0-9_-]*)\.so\.[0-9]+")
_REVISION = re.compile(rb"(?<![0-9a-f])([0-9a-f]{40}-[0-9]{1,6})\0")
_SHOWN = 10


def check_stub(path: Path, stub: Stub) -> None:
    """Raise ContractError unless a stub library matches its rows in data/hip.toml.

    The stub library must have the soname of the rows, export exactly their functions, each with its version node, and
    need no libraries.
    """
    library = read_linked(path)
    faults = [] if library.soname == stub.soname else [f"its soname is {library.soname or 'none'}"]
    faults += [f"it needs {', '.join(library.needed)}"] if library.needed else []
    faults += [
        f"{name} has {', '.join(library.exports.get(name, ())) or 'no version node'}, not {node}"
        for name, node in stub.symbols.items()
        if library.exports.get(name) != (node,)
    ]
    nodes = {node for node, _ in stub.nodes}
    faults += [f"no row lists {name}" for name in sorted(library.exports.keys() - stub.symbols.keys() - nodes)]
    _refuse(
        "hip-stub-wrong",
        faults,
        f"the stub library {stub.soname} does not match toolchain/data/hip.toml",
        fix="see the log, and build it again; if the error persists, report it",
    )


def holds_on(library: Linked, floor: Floor) -> bool:
    """Return whether the glibc and the libstdc++ of a floor are new enough for a library."""
    glibc, glibcxx = library.newest("GLIBC_"), library.newest("GLIBCXX_")
    return glibc <= numbers(floor.glibc) and glibcxx <= numbers(floor.glibcxx)


def check_linked(path: Path, stubs: Mapping[str, Stub], *, soname: str, floor: Floor) -> dict[str, Any]:
    """Raise ContractError unless a library needs `soname` and no other HIP, and no newer system than `floor`.

    ContractError is also raised if the library calls a HIP function with a version node that the stub library does not
    define, or without naming the library that defines the function.

    Args:
        stubs: the stub libraries that the library was linked with, by soname.
        soname: the soname of the HIP that the library was linked for.
        floor: the oldest system on which the library must run.

    Returns:
        `{"soname", "needed", "glibc", "glibcxx", "functions"}`: the soname of the HIP, the libraries that the library
        needs, the newest versions of glibc and libstdc++ that it needs, and the functions of HIP that it calls.
    """
    library = read_linked(path)
    hip = [name for name in library.needed if name.startswith("libamdhip64.so")]
    functions = library.asks_of(soname)
    faults = [] if hip == [soname] else [f"it needs {', '.join(hip) or 'no HIP'}, not {soname}"]
    faults += [
        f"it calls {name} with the version node {node}, which no row lists"
        for name, node in functions.items()
        if stubs[soname].symbols.get(name) != node
    ]
    faults += [
        f"it calls {name} without naming the library that defines it"
        for name, (asked, _) in library.imports.items()
        if name.startswith("hip") and not asked
    ]
    glibc, glibcxx = (_dotted(library.newest(prefix)) for prefix in ("GLIBC_", "GLIBCXX_"))
    if not holds_on(library, floor):
        faults.append(
            f"it needs GLIBC_{glibc} and GLIBCXX_{glibcxx}; {floor.system} has {floor.glibc} and {floor.glibcxx}"
        )
    _refuse(
        "library-unfit",
        faults,
        f"{path.name} cannot run on {floor.system} with {soname}",
        fix="see in the log which libraries of the base were linked; add new HIP functions to toolchain/data/hip.toml",
    )
    return {
        "soname": soname,
        "needed": sorted(library.needed),
        "glibc": glibc,
        "glibcxx": glibcxx,
        "functions": sorted(functions),
    }


def check_codegen(library: Path, *, revision: str, exports: Sequence[str], arch: str, glibc: str) -> dict[str, Any]:
    """Raise ContractError unless a code generator library matches its pin, its version script and its target system.

    Args:
        revision: the revision that the library must contain: `COMMIT-BUILD`.
        exports: the symbols that the library's version script names.

    Returns:
        `{"file", "sha256", "bytes", "revision", "symbols", "libraries", "glibc"}`: the name, the SHA-256 (64 hex
        digits) and the size of the file, the revision, the symbols that the library exports, the libraries that it
        needs, and the newest version of glibc that it needs.
    """
    try:
        content = read_regular(library, LARGEST)
    except OSError:
        content = b""  # `linked_of` refuses it
    binary = linked_of(library.name, content)
    has, wanted, inside = set(binary.exports), set(exports), {match.decode() for match in _REVISION.findall(content)}
    faults = [fault for fault in (_misfit(binary, arch, glibc),) if fault]
    # If other symbols were exported, the dynamic linker could mix this LLVM with the LLVM that Triton links.
    faults += [f"its version script does not name {', '.join(sorted(has - wanted)[:_SHOWN])}"] if has - wanted else []
    faults += [f"it does not export {', '.join(sorted(wanted - has))}"] if wanted - has else []
    faults += [f"it needs {name}, which wheels do not contain" for name in binary.needed if not _SYSTEM.fullmatch(name)]
    if inside - {revision} or f"{revision}\0".encode() not in content:
        faults.append(f"its revision is {' and '.join(sorted(inside)) or 'unknown'}, the pin is {revision}")
    _refuse(
        "codegen-library-wrong",
        faults,
        f"{library.name} is not the library that Triton pins",
        fix="see in the log what was linked, and build it again from this Triton and the LLVM that it pins",
    )
    return {
        "file": library.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "revision": revision,
        "symbols": sorted(has),
        "libraries": sorted(binary.needed),
        "glibc": _dotted(binary.newest("GLIBC_")),
    }


def check_wheel(wheel: Path, *, python: str, arch: str, glibc: str) -> dict[str, Any]:
    """Raise ContractError unless a wheel's name, metadata and binaries fit a CPython, an architecture and a glibc.

    Returns:
        `{"file", "bytes", "tag", "libraries", "glibc"}`: the name and the size of the wheel, its platform tag, the
        libraries that its binaries need, and the newest version of glibc that they need.
    """
    kernel = machine_of(arch).kernel
    tag = wheel.name.removesuffix(".whl").rsplit("-", 1)[-1]
    abi = "cp" + python.replace(".", "")
    metadata = f"{dist_info(wheel)}WHEEL"
    with open_wheel(wheel) as archive:
        names = archive.namelist()
        binaries = dict(_binaries(archive))
        text = archive.read(metadata).decode("utf-8", "replace") if metadata in names else ""
    tags = re.findall(r"^Tag: (\S+)", text, re.MULTILINE)
    # The name of an abi3 wheel contains the oldest Python version that the wheel supports.
    stable = re.search(r"-(cp3([0-9]+)-abi3)-", wheel.name)
    both = stable[1] if stable and int(stable[2]) <= int(python.partition(".")[2]) else f"{abi}-{abi}"
    faults: list[str] = []
    if f"-{both}-" not in wheel.name or set(tags) != {f"{both}-{platform}" for platform in tag.split(".")}:
        faults.append(f"its name and its metadata are not for {abi}: {', '.join(tags) or 'no tag'}")
    named = {(int(major), int(minor), cpu) for major, minor, cpu in _MANYLINUX.findall(tag)}
    if not named or any((major, minor) > numbers(glibc) or cpu != kernel for major, minor, cpu in named):
        faults.append(f"its tag {tag} is not for glibc {glibc} or older on {kernel}")
    faults += [
        f"{name} has the suffix of another Python"
        for name in names
        if (suffix := _ABI_SUFFIX.search(PurePosixPath(name).name)) and (stable or suffix[1] != abi.removeprefix("cp"))
    ]
    faults += [f"{name}: {fault}" for name, binary in binaries.items() if (fault := _misfit(binary, arch, glibc))]
    if not binaries:
        faults.append("it contains no program or library")
    _refuse(
        "wheel-contents-wrong",
        faults,
        f"{wheel.name} is not a wheel for CPython {python} on {arch} with glibc {glibc}",
        fix="see the log: the wheel may contain files of the base or of another Python",
    )
    return {
        "file": wheel.name,
        "bytes": wheel.stat().st_size,
        "tag": tag,
        "libraries": sorted({library for binary in binaries.values() for library in binary.needed}),
        "glibc": _dotted(max((binary.newest("GLIBC_") for binary in binaries.values()), default=())),
    }


def check_carried(wheel: Path, libraries: Mapping[str, str]) -> None:
    """Raise ContractError unless a wheel contains unchanged copies of the libraries that were built for it.

    Args:
        libraries: the SHA-256 (64 hex digits) of each library, by its path in the wheel.
    """
    faults = []
    with open_wheel(wheel) as archive:
        names = set(archive.namelist())
        for path, wanted in sorted(libraries.items()):
            digest = hashlib.sha256(archive.read(path)).hexdigest() if path in names else "missing"
            if digest != wanted:
                faults.append(f"{path}: {digest}, not {wanted}")
    _refuse(
        "wheel-lacks-libraries",
        faults,
        f"{wheel.name} does not contain the libraries that were built for it",
        fix="see the log: Triton's build downloaded or built another library, or did not pack this one",
    )


def _binaries(archive: zipfile.ZipFile) -> Iterator[tuple[str, Linked]]:
    """Yield the name and the dynamic linking information of every ELF file in a wheel."""
    for member in archive.infolist():
        with archive.open(member) as stream:
            if stream.read(4) != b"\x7fELF":
                continue
        yield member.filename, linked_of(member.filename, archive.read(member))


def _misfit(binary: Linked, arch: str, glibc: str) -> str:
    """Return why a program or library cannot run on an architecture and a glibc; an empty string if it can."""
    if binary.machine != _ELF_MACHINES[arch]:
        return f"it is for {binary.machine}, not {arch}"
    newest = binary.newest("GLIBC_")
    return f"it needs glibc {_dotted(newest)}, but must run with {glibc}" if newest > numbers(glibc) else ""


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _refuse(id: str, faults: Sequence[str], what: str, *, fix: str) -> None:
    if faults:
        raise ContractError(id, what, why="\n".join(faults[:_SHOWN]), fix=fix)
