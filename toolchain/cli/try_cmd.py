"""`kernels try`: one kernel of a campaign, compiled again by another Triton in seconds."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.cli.images_cmd import cache_of
from toolchain.errors import ConfigError, KernelError

KernelArg = Annotated[Path, typer.Argument(metavar="KERNEL", help="Code object of a campaign, its JSON beside it.")]
SourceOpt = Annotated[Path, typer.Option("--source", metavar="DIR", help="The kernels' source.")]
WheelOpt = Annotated[
    str | None,
    typer.Option("--triton-wheel", metavar="FILE|VERSION", help="Triton that compiles: a wheel, or one of the index."),
]
PythonOpt = Annotated[
    str | None,
    typer.Option("--with-python", metavar="PATH", help="A Python that imports a Triton, instead of a wheel."),
]
FailOnOpt = Annotated[str, typer.Option("--fail-on", help="As `kernels diff` has it; empty for nothing.")]
OutOpt = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the new code object here.")]
TimeoutOpt = Annotated[float, typer.Option("--kernel-timeout", min=1, help="Seconds that it may take.")]


def kernels_try(
    kernel: KernelArg,
    source: SourceOpt,
    triton_wheel: WheelOpt = None,
    with_python: PythonOpt = None,
    fail_on: FailOnOpt = "spills,occupancy",
    out: OutOpt = None,
    kernel_timeout: TimeoutOpt = 600,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Compile one kernel again and compare it with what it was. Ends with 25 where it is worse, for `git bisect run`.

    Triton and the kernel's file run in namespaces of their own, as builds do.
    """
    from toolchain.cli.diff_cmd import conditions_of, fail, screen  # noqa: PLC0415 - for a verb that runs
    from toolchain.examine.diff import compare  # noqa: PLC0415
    from toolchain.examine.instructions import settle  # noqa: PLC0415
    from toolchain.examine.kernels import kernels_in  # noqa: PLC0415
    from toolchain.examine.recompile import compile_rules, rule_of  # noqa: PLC0415

    conditions = conditions_of(fail_on)
    where = cache_of(cache)
    triton = chosen_triton(triton_wheel, with_python, cache)
    kernel = kernel.with_suffix(".hsaco")
    rule: dict[str, Any] = rule_of(kernel, source)
    with tempfile.TemporaryDirectory(prefix="toolchain-try-") as scratch:
        sides = [Path(scratch, name, rule["target"]) for name in ("before", "after")]
        sides[0].mkdir(parents=True)
        for suffix in (".hsaco", ".json"):
            shutil.copy(kernel.with_suffix(suffix), sides[0] / f"kernel{suffix}")
        (answer,) = compile_rules(
            [{**rule, "out": str(sides[1] / "kernel.hsaco")}], triton, where, timeout=kernel_timeout
        )
        if answer["status"] != "done":
            raise KernelError(f"{kernel.name} does not compile", why=str(answer["reason"]), fix="try another Triton")
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for suffix in (".hsaco", ".json"):
                shutil.copy(sides[1] / f"kernel{suffix}", out / f"{kernel.stem}{suffix}")
        difference = compare(*(kernels_in(str(side), where) for side in sides))
        difference, _ = settle(difference, [str(side) for side in sides], where)
    if json_:
        console.data({**difference.as_json(), "seconds": answer["seconds"]})
    else:
        for line in screen(difference, 1):
            console.text(line)
    fail(difference, conditions)


def chosen_triton(wheel: str | None, python: str | None, cache: Path | None) -> Any:
    """The Triton of `--triton-wheel` or `--with-python`; without either the one that this Python imports.

    Raises:
        ConfigError: both, or neither and there is none.
    """
    from importlib.util import find_spec  # noqa: PLC0415

    from toolchain.examine.recompile import Triton, triton_of_wheel  # noqa: PLC0415 - for a verb that runs

    if wheel is not None and python is not None:
        raise ConfigError("--triton-wheel and --with-python name two Tritons", fix="leave one out")
    if wheel is not None:
        return triton_of_wheel(wheel, cache_of(cache))
    if python is None and find_spec("triton") is None:
        raise ConfigError("no Triton is named", fix="--triton-wheel VERSION, or --with-python PATH")
    return Triton(python or sys.executable)
