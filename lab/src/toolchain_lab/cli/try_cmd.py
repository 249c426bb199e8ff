"""`kernels try`: recompile one kernel of a campaign with another Triton, in seconds."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.cache import Cache, cache_of
from toolchain.core.errors import ConfigError, KernelError
from toolchain.core.permissions import make_named

KernelArg = Annotated[
    Path, typer.Argument(metavar="KERNEL", help="Code object of a campaign, with its JSON file next to it.")
]
SourceOpt = Annotated[Path, typer.Option("--source", metavar="DIR", help="Source tree of the kernels.")]
WheelOpt = Annotated[
    str | None,
    typer.Option(
        "--triton-wheel",
        metavar="FILE|VERSION",
        help="Triton to compile with: a wheel, or a version in the package index.",
    ),
]
PythonOpt = Annotated[
    str | None,
    typer.Option("--with-python", metavar="PATH", help="Python with an installed Triton, instead of a wheel."),
]
FailOnOpt = Annotated[str, typer.Option("--fail-on", help="Conditions, as for `kernels diff`; empty to never fail.")]
OutOpt = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the new code object in this folder.")]
TimeoutOpt = Annotated[float, typer.Option("--kernel-timeout", min=1, help="Time limit, in seconds.")]


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
    """Recompile one kernel and compare it with the original.

    The exit code is 25 if the new kernel is worse, so that `git bisect run` can call this verb.
    Triton and the kernel's source run isolated in namespaces, as in builds.
    """
    from toolchain_lab.cli.diff_cmd import conditions_of, fail, screen  # noqa: PLC0415 - `--help` does not need it
    from toolchain_lab.examine.diff import compare  # noqa: PLC0415
    from toolchain_lab.examine.instructions import compare_instructions  # noqa: PLC0415
    from toolchain_lab.examine.kernels import kernels_in  # noqa: PLC0415
    from toolchain_lab.examine.recompile import compile_rules, rule_of  # noqa: PLC0415

    conditions = conditions_of(fail_on)
    where = cache_of(cache)
    kernel = kernel.parent / f"{kernel.stem}.hsaco"
    rule: dict[str, Any] = rule_of(kernel, source)
    if not kernel.is_file():
        raise ConfigError(
            "kernel-object-missing",
            f"{kernel} does not exist",
            why="only its JSON file exists",
            fix="keep both files together",
        )
    triton = chosen_triton(triton_wheel, with_python, where)
    with tempfile.TemporaryDirectory(prefix="toolchain-try-") as scratch:
        sides = [Path(scratch, name, rule["target"]) for name in ("before", "after")]
        sides[0].mkdir(parents=True)
        for suffix in (".hsaco", ".json"):
            shutil.copy(kernel.with_suffix(suffix), sides[0] / f"kernel{suffix}")
        (answer,) = compile_rules(
            [{**rule, "out": str(sides[1] / "kernel.hsaco")}], triton, where, timeout=kernel_timeout
        )
        if answer["status"] != "done":
            raise KernelError(
                "kernel-not-compiled",
                f"{kernel.name} does not compile",
                why=str(answer["reason"]),
                fix="try another Triton",
            )
        if out is not None:
            make_named(out)
            for suffix in (".hsaco", ".json"):
                shutil.copy(sides[1] / f"kernel{suffix}", out / f"{kernel.stem}{suffix}")
        difference = compare(*(kernels_in(str(side), where) for side in sides))
        difference, _ = compare_instructions(difference, [str(side) for side in sides], where)
    if json_:
        console.data({**difference.as_json(), "seconds": answer["seconds"]})
    else:
        for line in screen(difference, 1):
            console.text(line)
    fail(difference, conditions)


def chosen_triton(wheel: str | None, python: str | None, cache: Cache) -> Any:
    """Return the Triton that `--triton-wheel` or `--with-python` names, or else the one that this Python imports.

    ConfigError is raised if both options are given, or if `--with-python` is empty. For the errors of a wheel, see
    `triton_of_wheel`.
    """
    from toolchain_lab.examine.recompile import Triton, triton_of_wheel  # noqa: PLC0415 - `--help` does not need it

    if wheel is not None and python is not None:
        raise ConfigError(
            "options-exclude", "--triton-wheel and --with-python exclude each other", fix="remove one of them"
        )
    if python == "":
        raise ConfigError("option-empty", "--with-python is empty", fix="give --with-python PATH, or omit it")
    if wheel is not None:
        return triton_of_wheel(wheel, cache)
    return Triton(python or sys.executable)
