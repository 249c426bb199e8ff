"""From the text of an option to its value, for the options whose value is more than text."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolchain.catalog.aotriton_generations import foreign_compilers
from toolchain.catalog.architectures import machine_of
from toolchain.catalog.gpus import parse_gpus
from toolchain.catalog.hip import rocms
from toolchain.catalog.pythons import check_version
from toolchain.catalog.release_data import aotriton_releases, triton_releases
from toolchain.catalog.stages import source_names
from toolchain.catalog.wheels import wheel_rows
from toolchain.core import strict_json
from toolchain.core.errors import ConfigError, ToolchainError, UnsupportedError
from toolchain.core.filesystem import read_regular

if TYPE_CHECKING:
    from toolchain.sources.spec import SourceSpec

SOURCES = source_names()
RUNNERS: tuple[Literal["buildah", "docker"], ...] = ("buildah", "docker")
PARTS = ("tablegen", "mlir-tblgen", "support")  # of LLVM; see `toolchain.stages.llvm_subset`
_LARGEST_LIST = 16 << 20  # bytes of a list of calls
_LONGEST = 10**9  # seconds; a wait cannot be longer than ten times that


def is_triton_path(text: str) -> bool:
    """Whether `--triton` names a file or folder: what is neither a version nor a commit."""
    return re.fullmatch(r"[vV]?[0-9][\w.+]*|[0-9a-fA-F]{40}", text.strip()) is None


# The values that a shell completes.


def known_tritons() -> Iterable[str]:
    """Return the releases of Triton whose LLVM is on record."""
    return [row.version for row in triton_releases() if row.version and row.llvm]


def known_aotritons() -> Iterable[str]:
    """Return the releases of AOTriton."""
    return [row.name for row in aotriton_releases()]


def known_rocms() -> Iterable[str]:
    """Return the major versions of ROCm that a library is linked for."""
    return [row.major for row in rocms()]


def known_wheels() -> Iterable[str]:
    """Return the wheels above Triton."""
    return [row.name for row in wheel_rows()]


# From text to value.


def arches(text: str) -> tuple[str, ...]:
    """OCI architectures, sorted.

    Raises:
        ConfigError, UnsupportedError: none, or one that is not known.
    """
    names = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    for name in names:
        machine_of(name)
    if not names:
        raise ConfigError("--arch names no architecture", fix="e.g. --arch amd64, or leave it out")
    return names


def gpus(text: str) -> tuple[str, ...]:
    """GPUs by LLVM's names, sorted.

    Raises:
        ConfigError, UnsupportedError: none, or one that is not known.
    """
    names = parse_gpus(text)
    if not names:
        raise ConfigError(f"--gpu {text!r} names no GPU", fix="e.g. --gpu gfx942,gfx1100, or leave it out")
    return names


def without(text: str) -> tuple[str, ...]:
    """Compilers whose kernels are left out, each once.

    Raises:
        ConfigError: one that no row knows.
    """
    names = sorted({part.strip().lower() for part in text.split(",") if part.strip()})
    known = foreign_compilers()
    for name in names:
        if name not in known:
            raise ConfigError(f"no kernels are made by {name!r} besides Triton", fix=f"one of {', '.join(known)}")
    return tuple(names)


def pythons(text: str) -> tuple[str, ...]:
    """Versions of Python, in the order in which they were given.

    Raises:
        PinError: one is invalid.
    """
    return tuple(check_version(part.strip()) for part in text.split(",") if part.strip())


def wheels(text: str) -> tuple[str, ...]:
    """Wheels above Triton, in the order of the data.

    Raises:
        UnsupportedError: one that is not known.
    """
    names = {part.strip() for part in text.split(",") if part.strip()}
    if unknown := sorted(names.difference(known_wheels())):
        raise UnsupportedError(
            f"no such wheel: {unknown[0]!r}", fix=f"--wheel with some of {', '.join(known_wheels())}"
        )
    return tuple(name for name in known_wheels() if name in names)


def is_calls_file(text: str) -> bool:
    """Whether `--calls` names a file: anything but JSON, which records hold."""
    return not text.lstrip().startswith("[")


def calls(text: str) -> str:
    """A user's list of calls as JSON, by which a record, a lock and `reproduce` need no file.

    Args:
        text: a TOML file with tables of `call`, or that JSON.

    Raises:
        ConfigError: it cannot be read, or is something else.
    """
    fix = 'write [[call]] tables, as in data/calls.toml: dtype = ["bf16"]'
    try:
        tables = (
            tomllib.loads(read_regular(Path(os.path.realpath(text)), _LARGEST_LIST).decode())
            if is_calls_file(text)
            else {"call": strict_json.read(text)}
        )
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--calls {text[:200]} cannot be read", why=str(error), fix=fix) from error
    rows = tables.get("call")
    if set(tables) != {"call"} or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        why = f"it has {', '.join(map(repr, tables)) or 'nothing'}, and tables [[call]] were expected"
        raise ConfigError(f"--calls {text[:200]} is not a list of calls", why=why, fix=fix)
    try:
        return json.dumps(rows, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:  # dates, and numbers that JSON has not
        raise ConfigError(f"--calls {text[:200]} has a value that no call takes", why=str(error), fix=fix) from error


def only(text: str) -> str:
    """A part of LLVM, or `distribution` for the whole.

    Raises:
        UnsupportedError: there is no such part.
    """
    if text not in {"distribution", *PARTS}:
        raise UnsupportedError(
            f"no such part of LLVM: {text!r}", fix=f"--only with one of {', '.join(PARTS)}, or without for all"
        )
    return text


def is_store_folder(text: str) -> bool:
    """Whether `--kernel-store` names a plain folder: neither `oci:DIR` nor a registry, whose first part is a host."""
    host, slash, _ = text.partition("/")
    is_host = bool(slash) and not host.startswith((".", "~")) and ("." in host or ":" in host or host == "localhost")
    return not text.startswith("oci:") and not is_host


def kernel_store(text: str) -> str:
    """A kernel store: a folder, made absolute, or a reference.

    Raises:
        ConfigError: none of these, or it names one image.
    """
    from toolchain.oci.reference import LayoutRef, parse_place  # noqa: PLC0415 - most calls name none

    if not text.strip():
        raise ConfigError("--kernel-store names nothing", fix="give a folder, oci:DIR or REGISTRY/NAME")
    if is_store_folder(text):
        return str(Path(text).expanduser().absolute())
    ref = parse_place(text, "--kernel-store")
    return f"oci:{ref.path.expanduser().absolute()}/" if isinstance(ref, LayoutRef) else str(ref)


def scheduler(text: str) -> str:
    """The address of a Dask scheduler.

    Raises:
        ConfigError: it is invalid, or open to anyone.
    """
    from toolchain.kernels.scheduler import check_address  # noqa: PLC0415 - most calls name none

    return check_address(text.strip())


def shard(text: str) -> tuple[int, int]:
    """Which part of how many: `2/4` is (2, 4).

    Raises:
        ConfigError: it is neither.
    """
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard {text!r} is not K/N", why="K goes from 1 to N", fix="e.g. --shard 2/4")
    return int(match[1]), int(match[2])


def kernel_timeout(seconds: float) -> float:
    """The time that a kernel may take.

    Raises:
        ConfigError: nothing can wait for so many seconds.
    """
    if not 1 <= seconds <= _LONGEST:
        raise ConfigError(
            f"--kernel-timeout {seconds:g} is not a number of seconds from 1 to {_LONGEST:,}",
            fix="e.g. --kernel-timeout 900",
        )
    return seconds


def runner(text: str) -> Literal["buildah", "docker"]:
    """The program for contract checks and kernel workers.

    Raises:
        ConfigError: nothing that is known.
    """
    for name in RUNNERS:
        if text == name:
            return name
    raise ConfigError(f"--runner {text!r} runs no containers here", fix=f"one of {', '.join(RUNNERS)}")


def is_path(text: str) -> bool:
    """Whether what follows `NAME=` in a source is a path; invalid values are an error where they are read."""
    from toolchain.sources.spec import parse_source_spec  # noqa: PLC0415 - for values out of files alone

    try:
        return parse_source_spec(text).path is not None
    except ToolchainError:
        return False


def sources(values: Sequence[str]) -> dict[str, SourceSpec]:
    """Sources by name.

    Raises:
        ConfigError: a name that is not known, or one that is there twice.
        SourceError, DigestError: what is named cannot be a source.
    """
    from toolchain.sources.local import check_local  # noqa: PLC0415 - most calls name none
    from toolchain.sources.spec import parse_source_spec  # noqa: PLC0415

    named = _pairs(values, "--source")
    by_name = dict(named)
    if len(named) > len(by_name):
        twice = sorted({name for name, _ in named if sum(name == later for later, _ in named) > 1})
        raise ConfigError(f"--source names {', '.join(twice)} more than once", fix="leave one of them")
    specs = {name: parse_source_spec(text, project=name) for name, text in by_name.items()}
    for name, spec in specs.items():
        check_local(name, spec)
    return specs


def patches(values: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Patch files by source, absolute, in the order in which they were given.

    Raises:
        ConfigError: a name that is not known, or a file that is not there.
    """
    by_source: dict[str, tuple[Path, ...]] = {}
    for name, file in _pairs(values, "--patch"):
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"--patch {name}={file}: no such file", fix="check the path")
        by_source[name] = (*by_source.get(name, ()), path.absolute())
    return by_source


def _pairs(values: Sequence[str], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for value in values:
        name, sep, rest = value.partition("=")
        if not sep or not name or not rest:
            raise ConfigError(f"{flag} {value!r} is not NAME=VALUE", fix=f"e.g. {flag} llvm=/path/to/llvm-project")
        if name not in SOURCES:
            raise ConfigError(f"unknown source {name!r}", fix=f"one of {', '.join(SOURCES)}")
        pairs.append((name, rest))
    return pairs


def mirrors(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Prefixes of URLs, each with what to ask in its place.

    Raises:
        SourceError: one is not a pair of URLs, or holds a password.
    """
    from toolchain.sources.network import parse_mirrors  # noqa: PLC0415 - the HTTP library; most calls have none

    return parse_mirrors(values)


def check(text: str, flag: str = "--check") -> int:
    """The number of kernels to check; 0 for all.

    Raises:
        ConfigError: it is not a number.
    """
    if text != "all" and not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"{flag} {text!r} is not a number of kernels", fix=f"e.g. {flag} 300, or all")
    return 0 if text == "all" else int(text)
