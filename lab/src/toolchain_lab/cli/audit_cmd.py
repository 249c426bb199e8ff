"""`audit`: list the GPUs, kernels and compilers in an image, an archive, a wheel or a folder, without a GPU."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.cli.images_cmd import is_image_name
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import ConfigError, KernelError
from toolchain_lab.cli.diff_cmd import PLACE_HELP, gpus_of
from toolchain_lab.cli.try_cmd import PythonOpt, TimeoutOpt, WheelOpt, chosen_triton

if TYPE_CHECKING:
    from toolchain_lab.examine.audit import Audit
    from toolchain_lab.examine.libraries import Library

WhatArg = Annotated[str, typer.Argument(metavar="WHAT", help=PLACE_HELP)]
GpuOpt = Annotated[str | None, typer.Option("--gpu", help="Required GPUs, comma-separated.", show_default=False)]
PlanOpt = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="DIR", help="Folder of AOTriton's generator; every kernel planned there is required."
    ),
]
EmptyOpt = Annotated[bool, typer.Option("--allow-empty", help="Accept kernels that are marked as known bad.")]
RebuildOpt = Annotated[
    int, typer.Option("--rebuild", min=0, help="Recompile this many random kernels and compare the bytes.")
]
SourceOpt = Annotated[
    Path | None, typer.Option("--source", metavar="DIR", help="Source tree of the kernels, for --rebuild.")
]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random choice.")]
KeyOpt = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="Sign the result with this key; it is attached to WHAT if that is an image reference.",
    ),
]
StatementOpt = Annotated[
    Path | None,
    typer.Option("--statement", metavar="FILE", help="File for the signed result, if WHAT is not an image reference."),
]


def audit(
    what: WhatArg,
    gpu: GpuOpt = None,
    plan: PlanOpt = None,
    allow_empty: EmptyOpt = False,
    rebuild: RebuildOpt = 0,
    source: SourceOpt = None,
    triton_wheel: WheelOpt = None,
    with_python: PythonOpt = None,
    kernel_timeout: TimeoutOpt = 600,
    seed: SeedOpt = 0,
    key: KeyOpt = None,
    statement: StatementOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """List what an image, prefix, archive, wheel or folder contains: GPUs, kernels, libraries, compilers.

    The exit code is 12 if a GPU or kernel is missing, empty or damaged, or if a recompiled kernel differs.
    """
    from toolchain_lab.examine.audit import audit as look  # noqa: PLC0415 - `--help` does not need it

    gpus = gpus_of(gpu)
    signer: Any = None
    if key is not None:
        from toolchain.trust.keys import load_signer  # noqa: PLC0415 - it imports cryptography

        signer = load_signer(key)
    if (key is None) if statement is not None else (key is not None and (Path(what).exists() or is_image_name(what))):
        raise ConfigError(
            "option-needs-option",
            "--statement and --key must be given together",
            fix="give --key FILE --statement FILE; for an image reference give only --key",
        )
    if not rebuild and any(option is not None for option in (source, triton_wheel, with_python)):
        raise ConfigError(
            "option-needs-option", "--source, --triton-wheel and --with-python need --rebuild", fix="add --rebuild N"
        )
    if rebuild and source is None:
        raise ConfigError(
            "option-needs-option", "--rebuild needs the kernels' source", fix="give --source DIR --triton-wheel VERSION"
        )
    if statement is not None:
        from toolchain.core.digest import require_output  # noqa: PLC0415

        require_output(statement, option="--statement", make_folder=True)
    where = cache_of(cache)
    before: tuple[str, str] | None = None
    if statement is not None and os.path.lexists(what):
        from toolchain_lab.examine.statement import subject_of  # noqa: PLC0415 - it imports cryptography

        with _signable(what):
            before = subject_of(what, where)
    result = look(what, where, gpus=gpus, plan=plan)
    if rebuild and source is not None:
        from toolchain_lab.examine.rebuild import rebuild as again  # noqa: PLC0415 - it imports the engine's modules

        triton = chosen_triton(triton_wheel, with_python, where)
        result.rebuilt = again(
            result, rebuild, triton, where, source=source, plan=plan, seed=seed, timeout=kernel_timeout
        )
    problems = result.problems(allow_empty=allow_empty)
    document: dict[str, Any] = {**result.as_json(), "problems": problems, "ok": not problems}
    if signer is not None:
        with _signable(what):
            _sign(result, where, document, signer, statement, before)
    if json_:
        console.data(document)
    else:
        for line in screen(result):
            console.text(line)
    if problems:
        raise KernelError(
            "audit-failed",
            f"{what} failed the audit",
            why="\n".join(problems),
            fix="compile the missing kernels, or ask the publisher; --json lists everything",
        )


@contextlib.contextmanager
def _signable(what: str) -> Iterator[None]:
    """Raise ConfigError if a name in a statement is not UTF-8."""
    try:
        yield
    except UnicodeEncodeError as error:
        why = "the name of a file in it is not UTF-8"
        raise ConfigError(
            "audit-not-signable", f"the audit of {what} cannot be signed", why=why, fix="rename the file"
        ) from error


def _sign(
    result: Audit,
    cache: Any,
    document: dict[str, Any],
    signer: Any,
    to: Path | None,
    before: tuple[str, str] | None,
) -> None:
    from toolchain_lab.examine.statement import attach_audit, signed_audit  # noqa: PLC0415 - it imports cryptography

    if to is None:
        with tempfile.TemporaryDirectory(prefix="toolchain-audit-") as scratch:
            document["attested"] = attach_audit(result, document, signer, Path(scratch)).as_json()
    else:
        from toolchain.core.digest import write_output  # noqa: PLC0415

        write_output(to, signed_audit(result, cache, document, signer, before), option="--statement")


def screen(result: Audit) -> Iterator[str]:
    yield result.what
    gpus = result.gpus()
    width = max((len(gpu) for gpu in gpus), default=0)
    for gpu, counts in gpus.items():
        listed = _few([f"{name} {count}" for name, count in counts.items()], 10)
        yield f"  {gpu:<{width}}{sum(counts.values()) or '':>8}  {listed or 'inside libraries'}"
    if not (result.sealed or any(gpu.startswith("gfx") for gpu in gpus)):
        yield "  no code for AMD GPUs"
    if result.planned is not None:
        yield f"  {result.planned - len(result.missing)} of {result.planned} planned kernels are present"
    rows = (
        ("missing", [*result.missing, *result.uneven]), ("empty", result.empty), ("damaged", result.damaged),
    )  # fmt: skip
    for name, keys in rows:
        for text in keys[:5]:
            yield f"  {name}: {text[:160]}"
        if len(keys) > 5:
            yield f"  {name}: {len(keys) - 5} more"
    yield from _remarks(result)
    if result.partial:
        yield f"  marked as partial by its builder: {', '.join(result.partial)}"
    if result.prebuilt:
        yield f"  prebuilt by name: {_few(result.prebuilt, 5)}"
    if result.glibc:
        yield f"  glibc {result.glibc} or newer"
    for library in result.libraries:
        if inside := _inside(library):
            yield f"  {library.path}: {', '.join(inside)}"
    for text, equal in result.rebuilt.items():
        yield f"  rebuilt, {'equal' if equal else 'DIFFERENT'}: {text[:160]}"


def _inside(library: Library) -> list[str]:
    targets = ("kernels of ROCm's runtime, which only copy images",) if library.is_runtime else library.targets
    return [*(f"LLVM {revision}" for revision in library.llvms), *targets]


def _few(texts: Sequence[str], most: int) -> str:
    return ", ".join([*texts[:most], *([f"{len(texts) - most} more"] if texts[most:] else [])])


def _remarks(result: Audit) -> Iterator[str]:
    """Yield the lines about findings that are not faults."""
    if result.sealed:
        yield f"  {result.sealed_note()}"
    for text in result.differing[:5]:
        yield f"  differs by GPU: {text[:160]}"
    if len(result.differing) > 5:
        yield f"  differs by GPU: {len(result.differing) - 5} more"
    yield from (f"  {note}" for note in result.notes)
