"""The console script: one file for each verb, put together here."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from toolchain import __version__, console
from toolchain.cli.build_cmd import build, kernels_run, kernels_status
from toolchain.cli.bundle_cmd import bundle_export, bundle_import
from toolchain.cli.cache_cmd import cache_ls, cache_prune
from toolchain.cli.doctor_cmd import doctor
from toolchain.cli.failing import handled
from toolchain.cli.image_cmd import inspect, keygen, publish, verify
from toolchain.cli.lock_cmd import lock
from toolchain.cli.pins_cmd import pins
from toolchain.cli.plan_cmd import fetch, plan
from toolchain.cli.reproduce_cmd import reproduce_image
from toolchain.cli.request import pairs_from_environment
from toolchain.errors import ToolchainError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rebuild LLVM, Triton and AOTriton from source, as layers of OCI images.",
)
bundle = typer.Typer(no_args_is_help=True, help="All that a build takes in, for machines without a network.")
cache = typer.Typer(no_args_is_help=True, help="The tool's own folder: what it holds, and what may go.")
kernels = typer.Typer(no_args_is_help=True, help="FlashAttention kernels: compile them, see how far they are.")


_STARTING = (subprocess.Popen.__init__.__code__,)


def _version(value: bool) -> None:
    if value:
        console.text(__version__)
        raise typer.Exit


@app.callback()
def _main(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", envvar="TOOLCHAIN_CONFIG", help="TOML file with values for the options.")
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice shows commands.")] = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    console.setup(verbose)
    chosen = config or (Path("toolchain.toml") if Path("toolchain.toml").is_file() else None)
    values: dict[str, Any] = {}
    if chosen is not None:
        from toolchain.cli.config_file import read_file  # noqa: PLC0415 - most calls have no file

        try:
            values = read_file(chosen)
        except ToolchainError as error:
            # The verb's own options are not read yet.
            console.failure(error, as_json="--json" in sys.argv)
            raise typer.Exit(error.code) from error
    values |= pairs_from_environment()
    if values:
        # `pins` answers one question at a time. Whom `verify` trusts, and what it lets pass, no folder may decide that
        # it happens to run in.
        judged = {name: value for name, value in values.items() if name not in {"key", "allow_binary"}}
        ctx.default_map = dict.fromkeys(app_verbs(), values) | {
            "kernels": {"run": values, "status": values},
            "bundle": {"export": values, "import": values},
            "cache": {"ls": values, "prune": values},
            "pins": {},
            "verify": judged,
        }


def app_verbs() -> list[str]:
    """The names of all verbs."""
    return [info.name or "" for info in app.registered_commands]


app.command("doctor")(handled(doctor))
app.command("pins")(handled(pins))
app.command("plan")(handled(plan))
app.command("fetch")(handled(fetch))
app.command("lock")(handled(lock))
app.command("build")(handled(build))
app.command("publish")(handled(publish))
app.command("verify")(handled(verify))
app.command("keygen")(handled(keygen))
app.command("reproduce")(handled(reproduce_image))
app.command("inspect")(handled(inspect))
kernels.command("run")(handled(kernels_run))
kernels.command("status")(handled(kernels_status))
app.add_typer(kernels, name="kernels")
bundle.command("export")(handled(bundle_export))
bundle.command("import")(handled(bundle_import))
app.add_typer(bundle, name="bundle")
cache.command("ls")(handled(cache_ls))
cache.command("prune")(handled(cache_prune))
app.add_typer(cache, name="cache")


def _terminated(number: int, frame: FrameType | None) -> None:
    # SystemExit unwinds through every `finally`, so children end and partial files go. But not while a program is being
    # started: Python throws away what is raised in handlers that run at a fork, and nobody has got hold of that program
    # yet, so it would go on.
    if _starts_a_program(frame):
        signal.signal(signal.SIGALRM, lambda _, later: _terminated(number, later))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return
    sys.exit(128 + number)


def _starts_a_program(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _STARTING:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _terminated)
    app(prog_name="toolchain")
