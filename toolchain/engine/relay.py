"""Collect the whole output of a container under chroot isolation through named pipes.

Under chroot isolation, a process of buildah forwards the output of a command. That process ends when the command ends,
and drops the output that it has not forwarded yet. So commands write to two named pipes, and processes outside the
container read the pipes to their end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

# This is the path of the pipes in a container. `sweep` removes this mount point from an exported tree.
TARGET = "/run/toolchain-output"
# This is the path of the pipes in the launcher's namespaces (see `engine.view`).
PIPES = "/pipes"
_INTO = f">{TARGET}/out 2>{TARGET}/err"
# This script holds both pipes open until buildah has ended, so that the readers neither wait for a command that never
# started nor stop between two commands. It waits at most ten seconds for stray processes that keep the pipes open.
_READ = """
folder=$1; shift
cat <"$folder/out" & out=$!
cat <"$folder/err" >&2 & err=$!
exec 3>"$folder/out" 4>"$folder/err"
"$@" 3>&- 4>&-
code=$?
exec 3>&- 4>&-
(sleep 10; kill "$out" "$err") </dev/null >/dev/null 2>&1 &
wait "$out" "$err"
exit "$code"
"""

# After this instruction, every RUN of the stage writes standard output and standard error to one pipe, which keeps the
# order of their lines. The instruction needs the docker format, because the configuration of an OCI image has no field
# for a shell.
SHELL = "SHELL " + json.dumps(["/bin/sh", "-c", f'exec /bin/sh -c "$0" >{TARGET}/out 2>&1'])


def make(folder: Path) -> Path:
    """Make two named pipes in a new folder below `folder`, and return the path of the new folder."""
    pipes = folder / "output"
    pipes.mkdir()
    for name in ("out", "err"):
        os.mkfifo(pipes / name)
        # The command may run as any user, and must be able to write to the pipe.
        (pipes / name).chmod(0o666)
    pipes.chmod(0o755)
    return pipes


def outside(argv: Sequence[str]) -> list[str]:
    """Return a command line that runs buildah (`argv`) and copies the pipes to standard output and standard error."""
    return ["sh", "-c", _READ, "sh", PIPES, *argv]


def options() -> list[str]:
    """Return the options of `buildah run` and `buildah build` that mount the pipes."""
    return ["--volume", f"{PIPES}:{TARGET}:rw"]


def inside(argv: Sequence[str]) -> list[str]:
    """Return a command line that runs `argv` in the container with its output redirected to the pipes."""
    return ["/bin/sh", "-c", f'exec "$@" {_INTO}', "sh", *argv]


def sweep(tree: Path) -> None:
    """Remove the mount point of the pipes from an exported tree."""
    left = tree / TARGET.lstrip("/")
    if left.is_dir() and not left.is_symlink():
        left.rmdir()
