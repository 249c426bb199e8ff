"""`audit`: what somebody else shipped, without a network and without a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain import console
from toolchain.catalog.gpus import parse_gpus
from toolchain.cli import options as o
from toolchain.cli.diff_cmd import PLACE_HELP
from toolchain.cli.images_cmd import cache_of
from toolchain.cli.try_cmd import PythonOpt, TimeoutOpt, WheelOpt, chosen_triton
from toolchain.errors import ConfigError, KernelError

if TYPE_CHECKING:
    from toolchain.examine.audit import Audit

WhatArg = Annotated[str, typer.Argument(metavar="WHAT", help=PLACE_HELP)]
GpuOpt = Annotated[str, typer.Option("--gpu", help="GPUs that must be there, with commas between.", show_default=False)]
PlanOpt = Annotated[
    Path | None,
    typer.Option("--plan", metavar="DIR", help="Folder of AOTriton's generator: all of it must be there."),
]
EmptyOpt = Annotated[bool, typer.Option("--allow-empty", help="Kernels that are known bad are no fault.")]
RebuildOpt = Annotated[
    int, typer.Option("--rebuild", min=0, help="Compile so many random kernels again and compare the bytes.")
]
SourceOpt = Annotated[Path | None, typer.Option("--source", metavar="DIR", help="The kernels' source, for --rebuild.")]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="Of the random choice.")]
KeyOpt = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="Sign the result; to an image it is attached.")
]
StatementOpt = Annotated[
    Path | None, typer.Option("--statement", metavar="FILE", help="Where the signed result goes; needed for no image.")
]


def audit(
    what: WhatArg,
    gpu: GpuOpt = "",
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
    """Say what is in an image, prefix, archive, wheel or folder of somebody: GPUs, kernels, libraries, compilers.

    Ends with 12 where a GPU or kernel is missing, empty or damaged, or compiles to other bytes.
    """
    from toolchain.examine.audit import audit as look  # noqa: PLC0415 - for a verb that runs

    gpus = parse_gpus(gpu) if gpu else ()
    signer: Any = None
    if key is not None:
        from toolchain.trust.keys import load_signer  # noqa: PLC0415 - cryptography

        signer = load_signer(key)
    if (key is None) if statement is not None else (key is not None and (Path(what).exists() or _is_name(what))):
        raise ConfigError("--statement and --key belong together", fix="--key FILE --statement FILE; alone for a REF")
    if rebuild and source is None:
        raise ConfigError("--rebuild needs the kernels' source", fix="--source DIR --triton-wheel VERSION")
    where = cache_of(cache)
    found = look(what, where, gpus=gpus, plan=plan)
    if rebuild and source is not None:
        from toolchain.examine.rebuild import rebuild as again  # noqa: PLC0415 - brings the compiler in

        triton = chosen_triton(triton_wheel, with_python, cache)
        found.rebuilt = again(
            found, rebuild, triton, cache_of(cache), source=source, plan=plan, seed=seed, timeout=kernel_timeout
        )
    problems = found.problems(allow_empty=allow_empty)
    told: dict[str, Any] = {**found.as_json(), "problems": problems, "ok": not problems}
    if signer is not None:
        _sign(what, where, told, signer, statement)
    if json_:
        console.data(told)
    else:
        for line in screen(found):
            console.text(line)
    if problems:
        raise KernelError(
            f"{what} is not whole", why="\n".join(problems), fix="ask who made it; --json lists everything"
        )


def _is_name(what: str) -> bool:
    return "/" not in what and not what.startswith("oci:")


def _sign(what: str, cache: Any, told: dict[str, Any], signer: Any, to: Path | None) -> None:
    from toolchain.examine.statement import attach_audit, signed_audit  # noqa: PLC0415 - cryptography

    if to is None:
        with tempfile.TemporaryDirectory(prefix="toolchain-audit-") as scratch:
            told["attested"] = attach_audit(what, cache, told, signer, Path(scratch)).as_json()
    else:
        from toolchain.digest import write_atomically  # noqa: PLC0415

        write_atomically(to, signed_audit(what, cache, told, signer))


def screen(found: Audit) -> Iterator[str]:
    """An audit for people."""
    yield found.what
    for gpu, counts in found.gpus().items():
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        yield f"  {gpu:<9}{sum(counts.values()) or '':>7}  {listed or 'inside libraries'}"
    if not any(gpu.startswith("gfx") or gpu == "packed" for gpu in found.gpus()):
        yield "  no code for AMD's GPUs"
    if found.planned is not None:
        yield f"  {found.planned - len(found.missing)} of {found.planned} planned kernels are there"
    for name, keys in (("missing", found.missing), ("empty", found.empty), ("damaged", found.damaged)):
        for text in keys[:5]:
            yield f"  {name}: {text[:160]}"
        if len(keys) > 5:
            yield f"  {name}: {len(keys) - 5} more"
    if found.partial:
        yield f"  marked by its maker as lacking kernels: {', '.join(found.partial)}"
    if found.prebuilt:
        yield f"  prebuilt by name: {', '.join(found.prebuilt)}"
    if found.glibc:
        yield f"  glibc {found.glibc} or newer"
    for library in found.libraries:
        inside = [*(f"LLVM {revision}" for revision in library.llvms), *library.targets]
        if inside:
            yield f"  {library.path}: {', '.join(inside)}"
    for text, equal in found.rebuilt.items():
        yield f"  rebuilt {'equal' if equal else 'OTHERWISE'}: {text[:160]}"
