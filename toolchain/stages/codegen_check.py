"""What a library that makes code for a GPU must be, alone and in a wheel; each fault has a message of its own."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.digest import sha256_file
from toolchain.errors import ContractError, HostileInputError
from toolchain.filesystem import read_built
from toolchain.stages.wheel_check import ELF_NAMES, binary_of

# Of the C and C++ run-time libraries, which every system has that a wheel is for.
_SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux[a-z0-9_-]*)\.so\.[0-9]+")
_SCRIPT = re.compile(r"\{\s*global:((?:\s*[A-Za-z_][A-Za-z0-9_]*;)+)\s*local:\s*\*;\s*\};?\s*")
_REVISION = re.compile(rb"(?<![0-9a-f])([0-9a-f]{40}-[0-9]{1,6})\0")


def exported_by(script: Path) -> tuple[str, ...]:
    """The symbols that a version script names, sorted; all else it must keep local.

    Raises:
        ContractError: there is none, or it has another form.
    """
    try:
        found = _SCRIPT.fullmatch(read_built(script.parent, script.name).strip())
    except HostileInputError:
        found = None
    if found is None:
        raise ContractError(
            f"building the library left no version script {script.name} of the form that is known",
            why="it names the symbols that are global, each by its whole name, and keeps all others local",
            fix="see whether Triton's project writes it otherwise now: toolchain/data/codegen.toml names it",
        )
    return tuple(sorted(name.strip() for name in found[1].split(";") if name.strip()))


def check_library(library: Path, *, revision: str, exports: Sequence[str], arch: str, glibc: str) -> dict[str, Any]:
    """Insist that a library is what its pin and its version script promise.

    Args:
        revision: what it answers: `COMMIT-BUILD`.
        exports: the symbols that it has.
        arch: OCI architecture.
        glibc: the floor: no newer symbols may be asked for.

    Returns:
        `{"file", "sha256", "bytes", "revision", "symbols", "libraries", "glibc"}`.

    Raises:
        ContractError: the first thing that is not so.
    """
    name, content = library.name, library.read_bytes()
    if content[:4] != b"\x7fELF":
        raise ContractError(
            f"{name} is not a Linux library",
            why=f"it begins with {content[:4]!r}",
            fix="see the log, and build it again",
        )
    binary = binary_of(name, content)
    if binary.machine != ELF_NAMES[arch]:
        raise ContractError(
            f"{name} is for another machine",
            why=f"it is for {binary.machine}, and {arch} was asked for",
            fix=f"build it with --arch {arch}",
        )
    _check_symbols(name, binary.exported, exports)
    if further := [one for one in binary.needed if not _SYSTEM.fullmatch(one)]:
        raise ContractError(
            f"{name} needs a library at run time that a wheel does not bring: {', '.join(further)}",
            why="only the C and C++ run-time libraries are on every system; LLVM must be linked in",
            fix="link it with the static libraries of the layer alone",
        )
    if binary.glibc > tuple(int(part) for part in glibc.split(".")):
        asked = ".".join(map(str, binary.glibc))
        raise ContractError(
            f"{name} asks for glibc {asked}",
            why=f"the oldest system it is for has {glibc}",
            fix="see in the log which library of the base was linked",
        )
    _check_revision(name, content, revision)
    return {
        "file": name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "revision": revision,
        "symbols": list(binary.exported),
        "libraries": sorted(binary.needed),
        "glibc": ".".join(map(str, binary.glibc)),
    }


def _check_symbols(name: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    if further := sorted({*found} - {*wanted}):
        shown = ", ".join(further[:5]) + (f" and {len(further) - 5} more" if len(further) > 5 else "")
        raise ContractError(
            f"{name} has symbols that its version script does not name: {shown}",
            why="the LLVM in it would be mixed with the one that Triton links",
            fix="see that the project passes its version script and --exclude-libs,ALL to the linker",
        )
    if missing := sorted({*wanted} - {*found}):
        raise ContractError(
            f"{name} lacks symbols that its version script names: {', '.join(missing)}",
            why="Triton calls them",
            fix="see whether the project and its version script fit each other",
        )


def _check_revision(name: str, content: bytes, revision: str) -> None:
    inside = sorted({found.decode() for found in _REVISION.findall(content)})
    if f"{revision}\0".encode() in content and not [one for one in inside if one != revision]:
        return
    raise ContractError(
        f"{name} is of another revision than the pin",
        why=f"in it is {' and '.join(inside) or 'no revision'}, the pin is {revision}",
        fix="build it again from this Triton and the LLVM that it pins",
    )


def check_in_wheel(wheel: Path, libraries: Mapping[str, str]) -> None:
    """Insist that a wheel carries the very libraries that were built for it.

    Args:
        libraries: SHA-256 (hex) by path in the wheel.

    Raises:
        ContractError: one is not there, or is another.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for path, wanted in sorted(libraries.items()):
            if path not in names:
                raise ContractError(
                    f"{wheel.name} lacks {path}",
                    why="Triton loads it for every kernel of that GPU, and would look for one that nobody named",
                    fix="see the log: Triton's build did not take it from where it was laid",
                )
            with archive.open(path) as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
            if found != wanted:
                raise ContractError(
                    f"{wheel.name} carries another {path.rpartition('/')[2]} than the one that was built for it",
                    why=f"its SHA-256 is {found}, the built one's is {wanted}",
                    fix="see the log: something fetched or built another one",
                )


def same_library(library: Path, facts: Mapping[str, Any]) -> None:
    """Insist that a library of a finished stage is still the one that was checked.

    Raises:
        ContractError: it is another.
    """
    found = sha256_file(library).removeprefix("sha256:")
    if found != facts["sha256"]:
        raise ContractError(
            f"{library.name} is not the one that was checked",
            why=f"SHA-256 {found}, checked was {facts['sha256']}",
            fix="build the wheel again",
        )
