"""Checks of a codegen library, alone and in a wheel; each fault has a message of its own."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.catalog.release_data import numbers
from toolchain.core.digest import sha256_file
from toolchain.core.errors import ContractError, HostileInputError
from toolchain.core.filesystem import read_built
from toolchain.stages.elf import linked_of
from toolchain.stages.wheel_check import ELF_NAMES

# Of the C and C++ run-time libraries, which every system has that a wheel is for.
_SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux[a-z0-9_-]*)\.so\.[0-9]+")
_SCRIPT = re.compile(r"\{\s*global:((?:\s*[A-Za-z_][A-Za-z0-9_]*;)+)\s*local:\s*\*;\s*\};?\s*")
_REVISION = re.compile(rb"(?<![0-9a-f])([0-9a-f]{40}-[0-9]{1,6})\0")


def exported_by(script: Path) -> tuple[str, ...]:
    """The symbols that a version script names, sorted; all else it must keep local.

    Raises:
        ContractError: there is none, or its form is unknown.
    """
    try:
        match = _SCRIPT.fullmatch(read_built(script.parent, script.name).strip())
    except HostileInputError:
        match = None
    if match is None:
        raise ContractError(
            f"building the library left no version script {script.name} of the form that is known",
            why="it names the symbols that are global, each by its whole name, and keeps all others local",
            fix="see whether Triton's project writes it otherwise now: toolchain/data/codegen.toml names it",
        )
    return tuple(sorted(name.strip() for name in match[1].split(";") if name.strip()))


def check_library(library: Path, *, revision: str, exports: Sequence[str], arch: str, glibc: str) -> dict[str, Any]:
    """Check that a library is what its pin and its version script promise.

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
    binary = linked_of(name, content)
    exported, newest = sorted(binary.exports), binary.newest("GLIBC_")
    if binary.machine != ELF_NAMES[arch]:
        raise ContractError(
            f"{name} is for another machine",
            why=f"it is for {binary.machine}, but {arch} was requested",
            fix=f"build it with --arch {arch}",
        )
    _check_symbols(name, exported, exports)
    if further := [name for name in binary.needed if not _SYSTEM.fullmatch(name)]:
        raise ContractError(
            f"{name} needs a library at run time that a wheel does not bring: {', '.join(further)}",
            why="only the C and C++ run-time libraries are on every system; LLVM must be linked in",
            fix="link it only with the static libraries of the layer",
        )
    if newest > numbers(glibc):
        version = ".".join(map(str, newest))
        raise ContractError(
            f"{name} asks for glibc {version}",
            why=f"the oldest system it is for has {glibc}",
            fix="see in the log which library of the base was linked",
        )
    _check_revision(name, content, revision)
    return {
        "file": name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "revision": revision,
        "symbols": exported,
        "libraries": sorted(binary.needed),
        "glibc": ".".join(map(str, newest)),
    }


def _check_symbols(name: str, has: Sequence[str], wanted: Sequence[str]) -> None:
    if further := sorted({*has} - {*wanted}):
        shown = ", ".join(further[:5]) + (f" and {len(further) - 5} more" if len(further) > 5 else "")
        raise ContractError(
            f"{name} exports symbols that its version script does not name: {shown}",
            why="the LLVM in it would be mixed with the one that Triton links",
            fix="see that the project passes its version script and --exclude-libs,ALL to the linker",
        )
    if missing := sorted({*wanted} - {*has}):
        raise ContractError(
            f"{name} lacks symbols that its version script names: {', '.join(missing)}",
            why="Triton calls them",
            fix="see whether the project and its version script fit each other",
        )


def _check_revision(name: str, content: bytes, revision: str) -> None:
    inside = sorted({match.decode() for match in _REVISION.findall(content)})
    if f"{revision}\0".encode() in content and not [text for text in inside if text != revision]:
        return
    raise ContractError(
        f"{name} has a different revision from the pin",
        why=f"in it is {' and '.join(inside) or 'no revision'}, the pin is {revision}",
        fix="build it again from this Triton and the LLVM that it pins",
    )


def check_in_wheel(wheel: Path, libraries: Mapping[str, str]) -> None:
    """Check that a wheel carries the very libraries that were built for it.

    Args:
        libraries: SHA-256 (hex) by path in the wheel.

    Raises:
        ContractError: one is missing or differs.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for path, wanted in sorted(libraries.items()):
            if path not in names:
                raise ContractError(
                    f"{wheel.name} lacks {path}",
                    why="Triton loads it for every kernel of that GPU, and would look for one elsewhere",
                    fix="see the log: Triton's build did not take it from where it was laid",
                )
            with archive.open(path) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
            if digest != wanted:
                raise ContractError(
                    f"{wheel.name} carries a different {path.rpartition('/')[2]} from the one that was built for it",
                    why=f"its SHA-256 is {digest}, the built one's is {wanted}",
                    fix="see the log: something fetched or built another one",
                )


def same_library(library: Path, facts: Mapping[str, Any]) -> None:
    """Check that a library of a finished stage is still the one that was checked.

    Raises:
        ContractError: it differs.
    """
    digest = sha256_file(library).removeprefix("sha256:")
    if digest != facts["sha256"]:
        raise ContractError(
            f"{library.name} is not the one that was checked",
            why=f"SHA-256 {digest}, checked was {facts['sha256']}",
            fix="build the wheel again",
        )
