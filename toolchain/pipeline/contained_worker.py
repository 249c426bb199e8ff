"""The program of a kernel worker's image: a worker behind a scheduler, and compile processes without a network.

It needs neither an engine nor the rest of this tool: `stages.worker` lists the modules that the image holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from toolchain.core import process, strict_json
from toolchain.core.errors import ConfigError, ResourceError, ToolchainError
from toolchain.core.typed import typed
from toolchain.engine.own_network import proved, without_network
from toolchain.engine.resources import jobs_for, memory_available
from toolchain.kernels.bounds import MemoryBounds, patience
from toolchain.kernels.dask_link import check_address, library, security
from toolchain.kernels.dask_worker import PATIENCE, serve
from toolchain.kernels.result_name import Naming
from toolchain.kernels.store import FolderStore
from toolchain.kernels.worker import CompileSetup, KernelWorker, Limits

LOG = logging.getLogger("toolchain")
FORMAT = 1
STORE = Path("/store")
KERNELS = Path(__file__).resolve().parents[2] / "kernels.json"
"""In the image: whose kernels compile there, and on what. See `Kernels`."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Whose kernels an image compiles; what of it names results is as in `stages.kernel_workers.KernelProject`.

    Args:
        name: of the image.
        stage: whose campaigns it serves.
        source: the kernels' tree.
        command: a compile process.
        variables: all of its environment.
        triton: diff_ids of the Triton image, lowest first.
        recipe: digests of what of ours runs beside Triton.
        environment: the variables that are part of a result's name.
        search: see `Reach`.
    """

    name: str
    stage: str
    source: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    triton: tuple[str, ...]
    recipe: Mapping[str, str]
    environment: Mapping[str, str]
    search: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Kernels:
        """Read the file in the image.

        Raises:
            ConfigError: it is invalid.
        """
        try:
            content = strict_json.read(path.read_bytes())
            if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
                raise ValueError("another format")
            kernels = typed(cls, content)
            if not kernels.command:
                raise ValueError("command is empty")
            return kernels
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} does not say which kernels to compile",
                why=f"{type(error).__name__}: {error}",
                fix="run this in an image that `toolchain build worker` made",
            ) from error

    def compile_setup(self, out: Path, way: Sequence[str]) -> CompileSetup:
        """Where they compile.

        Args:
            way: see `own_network.proved`.
        """
        naming = Naming(
            Path(self.source),
            triton=self.triton,
            recipe=self.recipe,
            environment=self.environment,
            search=self.search,
        )
        start = partial(process.piped, without_network(self.command, way), env=self.variables)
        return CompileSetup(start=start, naming=naming, out=out, seen=(self.source, str(out)))


def run(arguments: argparse.Namespace) -> None:
    """Serve until interrupted.

    Raises:
        ConfigError: address, certificates or store cannot be used.
        EngineError: the kernel gives compile processes no network namespace.
        ResourceError: there is no place for objects.
        UnreachableError: no scheduler answers for long.
    """
    kernels = Kernels.read(arguments.kernels)
    if arguments.check:
        facts = {"dask": library().__version__, "python": sys.version.split()[0], "stage": kernels.stage}
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    security(check_address(arguments.address), "worker")
    library()
    store = _store(arguments.store)
    way = proved()
    slots = jobs_for("kernel", arguments.jobs)
    limits = Limits(timeout=patience(arguments.kernel_timeout), memory=arguments.kernel_memory * 10**6)
    bounds = MemoryBounds.of(memory_available(), slots, limits.memory)
    with _scratch() as scratch:
        worker = KernelWorker(
            kernels.compile_setup(scratch / "out", way),
            store,
            name=arguments.name or socket.gethostname(),
            slots=slots,
            limits=limits,
            bounds=bounds,
        )
        with worker:
            LOG.info("worker %s of %s: %d kernels at once, for %s", worker.name, kernels.name, slots, arguments.address)
            LOG.info("compile processes see no network: %s", " ".join(way[:-1]))
            with _ended() as (ended, numbers):
                serve(arguments.address, worker, patience=arguments.patience, ended=ended)
    if numbers:
        sys.exit(128 + numbers[0])


@contextlib.contextmanager
def _ended() -> Iterator[tuple[threading.Event, list[int]]]:
    """An event that a signal sets, and the numbers of the signals that came.

    The first process of a container ignores a signal that it has no handler for.
    """
    event, numbers = threading.Event(), list[int]()

    def end(number: int, _: object) -> None:
        numbers.append(number)
        event.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield event, numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _store(path: Path) -> FolderStore:
    """The store, which must be mounted: a folder inside the container would be lost with it."""
    example = "mount the campaign's --kernel-store there: -v FOLDER:/store"
    if not path.is_dir():
        raise ConfigError(f"there is no kernel store at {path}", why="results go there", fix=example)
    if not os.access(path, os.W_OK | os.X_OK):
        why = f"user {os.geteuid()} may not write to it"
        raise ConfigError(f"the kernel store at {path} cannot be used", why=why, fix=f"{example}; without `ro`")
    return FolderStore(path)


def _whole(text: str) -> int:
    """A number of jobs or megabytes."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    """A time. NaN would mean waiting forever."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of 0 or more")
    return seconds


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for objects and for Dask; ResourceError where none can be made, as below a read-only root."""
    try:
        made = tempfile.TemporaryDirectory(prefix="kernel-worker-", ignore_cleanup_errors=True)
        (Path(made.name) / "out").mkdir()
    except OSError as error:
        raise ResourceError(
            "there is no place for objects while they are made",
            why=str(error),
            fix="give the container a writable /tmp (--tmpfs /tmp), or name a folder with room: -e TMPDIR=FOLDER",
        ) from error
    with made:
        yield Path(made.name)


def _reader() -> argparse.ArgumentParser:
    reader = argparse.ArgumentParser(
        prog="kernel-worker", description="Compile kernels for the campaigns of a Dask scheduler, until it is ended."
    )
    reader.add_argument("address", nargs="?", default="", help="tls://HOST:PORT, or tcp:// of this machine alone")
    reader.add_argument(
        "-j", "--jobs", type=_whole, default=0, help="kernels at once; 0 for what cores and memory allow"
    )
    reader.add_argument("--name", default="", help="as campaigns see it; the host name otherwise")
    reader.add_argument("--kernel-timeout", type=_seconds, metavar="SECONDS", help="as for the campaign")
    reader.add_argument("--kernel-memory", type=_whole, default=0, metavar="MB", help="as for the campaign")
    reader.add_argument("--store", type=Path, default=STORE, help="the kernel store; /store otherwise")
    reader.add_argument(
        "--patience", type=_seconds, default=PATIENCE, metavar="SECONDS", help="how long it waits for a scheduler"
    )
    reader.add_argument("--log", type=Path, metavar="FILE", help="also write the output of compile processes there")
    reader.add_argument("--check", action="store_true", help="check that Dask can be imported, and exit")
    reader.add_argument("--kernels", type=Path, default=KERNELS, help=argparse.SUPPRESS)
    return reader


def _log_to(file: Path | None) -> None:
    screen = logging.StreamHandler()
    screen.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [screen]
    if file is not None:
        try:
            handlers.append(logging.FileHandler(file, encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot write the log {file}", why=str(error), fix="name another: --log") from error
    form = logging.Formatter("%(asctime)s %(message)s")
    for handler in handlers:
        handler.setFormatter(form)
        LOG.addHandler(handler)
    LOG.setLevel(logging.DEBUG if file is not None else logging.INFO)
    LOG.propagate = False


def main(words: Sequence[str] | None = None) -> int:
    """Entry point of the image; the exit code."""
    reader = _reader()
    arguments = reader.parse_args(words)
    if not arguments.address and not arguments.check:
        reader.error("the address of a scheduler is missing")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda sent, _: sys.exit(128 + sent))  # until Dask runs
    try:
        _log_to(arguments.log)
        run(arguments)
    except ToolchainError as error:
        sys.stderr.write(f"{error.title}: {error}\n")
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
