"""What a verb was asked for, as a `Request`: the options that say it, in one place for all verbs."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import machine_of
from toolchain.cli import options as o
from toolchain.errors import ConfigError
from toolchain.locks import in_use
from toolchain.settings import DEFAULT_BASE, DEFAULT_GLIBC, Cache, Request, default_cache
from toolchain.sources.store import mark_used

SOURCES = ("aotriton", "flash-attn", "llvm", "triton")
_NEXT = re.compile(rf"\s+(?=(?:{'|'.join(SOURCES)})=)")


def with_request(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options that make a `Request`, instead of its parameter `request`.

    So each verb that is about a build takes what `build` takes: a command line, a configuration file or a lock serves
    one as it serves the other.

    Args:
        without: parameters of `make_request` that mean nothing to this verb.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        offered = [one for name, one in _parameters(make_request).items() if name not in without]

        @functools.wraps(verb)
        def command(**given: Any) -> None:
            request = make_request(**{one.name: given.pop(one.name) for one in offered})
            with in_use(request.cache):
                verb(request=request, **given)

        own = [one for name, one in _parameters(verb).items() if name != "request"]
        everything = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *offered)]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined] # what Typer reads
        command.__annotations__ = {one.name: one.annotation for one in everything}
        return command

    return decorate


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function, eval_str=True).parameters)


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


def _floor(base: str | None, glibc: str | None) -> str:
    """The glibc that a portable LLVM is built for; empty where a base is named, since LLVM is then for that base.

    Raises:
        ConfigError: both are named.
        UnsupportedError: no row knows that glibc.
    """
    if base and glibc:
        raise ConfigError(
            f"--base {base} and --glibc {glibc} name two kinds of LLVM layer",
            why="the first is bound to that base, the second links on every system with that glibc or a later one",
            fix="leave one of them out",
        )
    if not glibc:
        return "" if base else DEFAULT_GLIBC
    from toolchain.catalog.floors import floor_of  # noqa: PLC0415 - the default is known

    return floor_of(glibc).glibc


def make_request(
    base: o.BaseOpt = None,
    glibc: o.GlibcOpt = None,
    arch: o.ArchOpt = "amd64",
    source: o.SourceOpt = None,
    patch: o.PatchOpt = None,
    triton: o.TritonOpt = None,
    aotriton: o.AotritonOpt = None,
    gpu: o.GpuOpt = None,
    select: o.SelectOpt = None,
    limit: o.LimitOpt = None,
    keep_going: o.KeepGoingOpt = False,
    kernel_timeout: o.KernelTimeoutOpt = None,
    allow_binary: o.AllowBinaryOpt = None,
    drop_binary: o.DropBinaryOpt = None,
    python: o.PythonOpt = None,
    only: o.OnlyOpt = "distribution",
    jobs: o.JobsOpt = 0,
    offline: o.OfflineOpt = False,
    compression: o.CompressionOpt = "gzip",
    contract: o.ContractOpt = True,
    locked: o.LockedOpt = False,
    lock_file: o.LockFileOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> Request:
    """Check and combine option values. Its parameters are the options that `with_request` gives to a verb.

    Raises:
        ConfigError, UnsupportedError: a value that cannot be used.
    """
    from toolchain.catalog.gpus import parse_gpus  # noqa: PLC0415 - not every verb needs the table

    given = {"base": base, "glibc": glibc, "arch": arch, "source": source, "patch": patch, "triton": triton,
             "aotriton": aotriton, "gpu": gpu, "select": select, "allow-binary": allow_binary,
             "drop-binary": drop_binary, "python": python, "only": only, "compression": compression}  # fmt: skip
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
    where = Cache((cache or default_cache()).absolute())
    where.check(write=False)
    patches: dict[str, tuple[Path, ...]] = {}
    for name, file in _pairs(patch, "--patch"):
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"--patch {name}={file}: no such file")
        patches[name] = (*patches.get(name, ()), path.absolute())
        if path.absolute().is_relative_to(where.store):  # as a bundle brings it
            mark_used(path.parent)
    for name in (*sources, *patches):
        if name not in SOURCES:
            raise ConfigError(f"unknown source {name!r}", fix=f"one of {', '.join(SOURCES)}")
    lock = None
    if locked or lock_file is not None:
        from toolchain.lock.file import DEFAULT, read  # noqa: PLC0415 - most calls have no lock

        lock = read(lock_file or Path(DEFAULT))
    return Request(
        cache=where,
        base=base or DEFAULT_BASE,
        glibc=_floor(base, glibc),
        arch=arches,
        sources=sources,
        patches=patches,
        triton=triton,
        aotriton=aotriton,
        gpus=gpus,
        select=select,
        limit=limit,
        keep_going=keep_going,
        kernel_timeout=kernel_timeout,
        allow_binary=tuple(allow_binary or ()),
        drop_binary=tuple(drop_binary or ()),
        pythons=tuple(part.strip() for part in (python or "").split(",") if part.strip()),
        only=only,
        jobs=jobs,
        offline=offline,
        compression="zstd" if compression == "zstd" else "gzip",
        contract=contract,
        lock=lock,
        json=json_,
    )
