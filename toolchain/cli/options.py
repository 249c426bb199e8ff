"""Options that several verbs share, and how they become a `Request`."""

from __future__ import annotations

import errno
import functools
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from toolchain import console
from toolchain.errors import ConfigError, ResourceError, ToolchainError
from toolchain.machines import machine_of
from toolchain.process import CommandError
from toolchain.settings import Cache, Request, default_cache

SOURCES = ("aotriton", "flash-attn", "llvm", "triton")
_NEXT = re.compile(rf"\s+(?=(?:{'|'.join(SOURCES)})=)")

P = ParamSpec("P")
R = TypeVar("R")

BaseOpt = Annotated[
    str, typer.Option("--base", envvar="TOOLCHAIN_BASE", help="Base recipe, or a local image as oci:DIR[:TAG|@DIGEST].")
]
ArchOpt = Annotated[
    str, typer.Option("--arch", envvar="TOOLCHAIN_ARCH", help="OCI architectures, with commas between them.")
]
SourceOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        help="NAME=PATH, NAME=URL@SHA or NAME=distro:PACKAGE; again for each source. [env var: TOOLCHAIN_SOURCE]",
        metavar="NAME=WHERE",
    ),
]
PatchOpt = Annotated[
    list[str] | None,
    typer.Option("--patch", help="Patch for a source; again for each. [env var: TOOLCHAIN_PATCH]", metavar="NAME=FILE"),
]
TritonOpt = Annotated[
    str | None,
    typer.Option("--triton", envvar="TOOLCHAIN_TRITON", help="Triton version whose LLVM pin and needs count."),
]
AotritonOpt = Annotated[
    str | None, typer.Option("--aotriton", envvar="TOOLCHAIN_AOTRITON", help="AOTriton release whose pins count.")
]
GpuOpt = Annotated[
    str | None,
    typer.Option("--gpu", envvar="TOOLCHAIN_GPU", help="GPUs as gfx942,gfx1100 or by market name; ',' or ';' between."),
]
SelectOpt = Annotated[
    str | None, typer.Option("--select", envvar="TOOLCHAIN_SELECT", help="Only kernels that match this shell pattern.")
]
LimitOpt = Annotated[
    int | None, typer.Option("--limit", envvar="TOOLCHAIN_LIMIT", min=1, help="At most this many kernels.")
]
KeepGoingOpt = Annotated[
    bool, typer.Option("--keep-going", envvar="TOOLCHAIN_KEEP_GOING", help="Record kernels that fail and go on.")
]
KernelTimeoutOpt = Annotated[
    float | None,
    typer.Option(
        "--kernel-timeout", envvar="TOOLCHAIN_KERNEL_TIMEOUT", min=1, help="Seconds for one kernel; no limit."
    ),
]
AllowBinaryOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-binary", envvar="TOOLCHAIN_ALLOW_BINARY", help="Let a prebuilt thing in by name.", metavar="NAME"
    ),
]
DropBinaryOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-binary",
        envvar="TOOLCHAIN_DROP_BINARY",
        help="Leave a prebuilt file of a source out, by name or path.",
        metavar="NAME",
    ),
]
PythonOpt = Annotated[
    str | None,
    typer.Option("--python", envvar="TOOLCHAIN_PYTHON", help="Python versions of Triton's wheels, as 3.13,3.12."),
]
OnlyOpt = Annotated[
    str,
    typer.Option(
        "--only",
        envvar="TOOLCHAIN_ONLY",
        help="A part of LLVM: `tablegen`, the table generators alone, or `support`, LLVMSupport and LLVMDemangle.",
    ),
]
JobsOpt = Annotated[
    int, typer.Option("--jobs", "-j", envvar="TOOLCHAIN_JOBS", min=0, help="Jobs; 0 for what cores and memory allow.")
]
OfflineOpt = Annotated[bool, typer.Option("--offline", envvar="TOOLCHAIN_OFFLINE", help="Never reach out.")]
CompressionOpt = Annotated[
    str, typer.Option("--compression", envvar="TOOLCHAIN_COMPRESSION", help="gzip or zstd for published layers.")
]
LockedOpt = Annotated[
    bool, typer.Option("--locked", envvar="TOOLCHAIN_LOCKED", help="Take in nothing that is not in toolchain.lock.")
]
LockFileOpt = Annotated[
    Path | None,
    typer.Option(
        "--lock-file", envvar="TOOLCHAIN_LOCK_FILE", help="The lock, ./toolchain.lock otherwise; implies --locked."
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Data on standard output, as JSON.")]
CacheOpt = Annotated[
    Path | None, typer.Option("--cache", envvar="TOOLCHAIN_CACHE", help="The tool's own folder.", show_default=False)
]


def handled(command: Callable[P, R]) -> Callable[P, R]:
    """Turn expected errors into their message and exit code."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        console.begin()
        try:
            return command(*args, **kwargs)
        except (ToolchainError, OSError, sqlite3.Error) as error:
            told = _full_disk(error) or error
            if not isinstance(told, ToolchainError):
                raise
            console.failure(told, as_json=any(bool(kwargs.get(name)) for name in ("json_", "json", "as_json")))
            raise typer.Exit(told.code) from error

    return wrapper


def _full_disk(told: Exception) -> ResourceError | None:
    """A full disk is told as what it is, whichever part of the tool, or program that it ran, met it."""
    error: BaseException | None = told
    while error is not None:
        if why := _no_space(error):
            more = f"\n       {told.fix}" if isinstance(told, ToolchainError) and told.fix else ""
            return ResourceError("the disk is full", why=why, fix=f"free room and run it again{more}")
        error = error.__cause__
    return None


def _no_space(error: BaseException) -> str:
    """Which words of an error say that the disk is full; empty when none do."""
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
        return str(error)
    if isinstance(error, CommandError):
        return next((line for line in error.tail if os.strerror(errno.ENOSPC).lower() in line.lower()), "")
    return ""


def pairs_from_environment() -> dict[str, list[str]]:
    """TOOLCHAIN_SOURCE and TOOLCHAIN_PATCH by option: several NAME=VALUE with space between them.

    Typer would part them at every space, and paths may have some: only one before the name of a source parts here.
    """
    given = {option: os.environ.get(f"TOOLCHAIN_{option.upper()}", "").strip() for option in ("source", "patch")}
    return {option: _NEXT.split(text) for option, text in given.items() if text}


def _pairs(values: list[str] | None, option: str) -> list[tuple[str, str]]:
    pairs = []
    for value in values or []:
        name, sep, rest = value.partition("=")
        if not sep or not name or not rest:
            raise ConfigError(f"{option} {value!r} is not NAME=VALUE", fix=f"e.g. {option} llvm=/path/to/llvm-project")
        pairs.append((name, rest))
    return pairs


def _one_line(option: str, value: Any) -> None:
    """Option values end in labels, records, file names and build arguments: none of these has room for a newline.

    Raises:
        ConfigError: a control character is in it.
    """
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and any(ord(char) < 32 or ord(char) == 127 for char in text):
            raise ConfigError(f"--{option.replace('_', '-')} {text[:200]!r} holds a control character")


def make_request(
    *,
    cache: Path | None = None,
    base: str = "debian13",
    arch: str = "amd64",
    source: list[str] | None = None,
    patch: list[str] | None = None,
    gpu: str | None = None,
    allow_binary: list[str] | None = None,
    drop_binary: list[str] | None = None,
    python: str | None = None,
    compression: str = "gzip",
    locked: bool = False,
    lock_file: Path | None = None,
    **rest: Any,
) -> Request:
    """Check and combine option values.

    Raises:
        ConfigError, UnsupportedError: a value that cannot be used.
    """
    from toolchain.gpus import parse_gpus  # noqa: PLC0415 - not every verb needs the table

    given = {"base": base, "arch": arch, "source": source, "patch": patch, "gpu": gpu, "allow-binary": allow_binary,
             "drop-binary": drop_binary, "python": python, "compression": compression, **rest}  # fmt: skip
    for option, value in given.items():
        _one_line(option, value)
    gpus = parse_gpus(gpu) if gpu is not None else ()
    if gpu is not None and not gpus:
        raise ConfigError(f"--gpu {gpu!r} names no GPU", fix="e.g. --gpu gfx942,gfx1100, or leave it out")
    arches = tuple(sorted({part.strip() for part in arch.split(",") if part.strip()}))
    for one in arches:
        machine_of(one)
    if not arches:
        raise ConfigError("--arch names no architecture")
    if compression not in {"gzip", "zstd"}:
        raise ConfigError(f"unknown compression {compression!r}", fix="gzip or zstd")
    named = _pairs(source, "--source")
    sources = dict(named)
    if len(named) > len(sources):
        twice = sorted({name for name, _ in named if sum(name == other for other, _ in named) > 1})
        raise ConfigError(f"--source names {', '.join(twice)} more than once", fix="leave one of them")
    patches: dict[str, tuple[Path, ...]] = {}
    for name, file in _pairs(patch, "--patch"):
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"--patch {name}={file}: no such file")
        patches[name] = (*patches.get(name, ()), path.absolute())
    for name in (*sources, *patches):
        if name not in SOURCES:
            raise ConfigError(f"unknown source {name!r}", fix=f"one of {', '.join(SOURCES)}")
    lock = None
    if locked or lock_file is not None:
        from toolchain.lockfile import DEFAULT, read  # noqa: PLC0415 - most calls have no lock

        lock = read(lock_file or Path(DEFAULT))
    where = Cache((cache or default_cache()).absolute())
    where.check(write=False)
    return Request(
        cache=where,
        base=base,
        arch=arches,
        sources=sources,
        patches=patches,
        gpus=gpus,
        allow_binary=tuple(allow_binary or ()),
        drop_binary=tuple(drop_binary or ()),
        pythons=tuple(part.strip() for part in (python or "").split(",") if part.strip()),
        compression=compression,
        lock=lock,
        **rest,
    )
