"""The entry point of the console script: parse the global options, run a verb, and end cleanly on signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Annotated

import typer

from toolchain import __version__
from toolchain.cli.streams import ReaderGoneError, Terminated, die_of_pipe, guard, sane_width
from toolchain.cli.verbs import Group, register
from toolchain.core import console
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.permissions import widen_umask

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rebuild LLVM, Triton and AOTriton from source, as layers of OCI images.",
)
register(app)


_STARTING = (subprocess.Popen.__init__.__code__,)
_IMPORTING = "<frozen importlib._bootstrap>"  # the file name of Python's code that holds the locks of imports


def _version(value: bool) -> None:
    if value:
        console.text(__version__)
        raise typer.Exit


@app.callback()
def _main(
    ctx: typer.Context,
    config: Annotated[
        str | None, typer.Option("--config", envvar="TOOLCHAIN_CONFIG", help="TOML file with option values.")
    ] = None,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="More output; -vv also shows commands.")
    ] = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    from toolchain.core import logs  # noqa: PLC0415 - `toolchain --help` does not need it

    logs.setup(verbose)
    try:
        if config == "":
            fix = "give a file, or omit --config to use ./toolchain.toml"
            raise ConfigError("option-empty", "--config is empty", fix=fix)
        if config or os.path.lexists("toolchain.toml"):
            from toolchain.cli.config_file import read_config  # noqa: PLC0415 - most calls have no configuration file

            ctx.obj = read_config(config)
    except ToolchainError as error:
        if {"-h", "--help"}.intersection(sys.argv):  # the user may need the help to correct the configuration file
            console.warn(f"{error.what}: {error.why}")
            return
        # The options of the verb are not parsed yet, so `--json` must be looked for in the arguments.
        console.failure(error, as_json="--json" in sys.argv)
        raise typer.Exit(error.code) from error


def _stopped(number: int, frame: FrameType | None) -> None:
    # The exception runs the `finally` blocks, which end child processes and remove partial files. Python may discard an
    # exception that is raised during a fork or an import, and a discarded one may leave the lock of all imports locked,
    # for which other threads would wait forever. So in these cases a timer calls this handler again.
    if _starts_a_program(frame) or (frame is not None and frame.f_code.co_filename == _IMPORTING):
        signal.signal(signal.SIGALRM, lambda _, later: _stopped(number, later))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _starts_a_program(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _STARTING:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Run the command in the arguments; if the reader of its output is gone, end with SIGPIPE."""
    guard()
    sane_width()
    try:
        _run()
        sys.stdout.flush()
    except ReaderGoneError:
        die_of_pipe()


def _run() -> None:
    if sys.argv[1:] == ["--version"]:
        # Parsing the command line is slow, and `--version` does not need it.
        console.text(__version__)
        return
    widen_umask()
    signal.signal(signal.SIGTERM, _stopped)
    for number in (signal.SIGHUP, signal.SIGINT):
        # `nohup` makes its command ignore SIGHUP, and a shell makes a command in the background ignore SIGINT.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stopped)
    app(prog_name="toolchain")
