"""A way out of a container for every last word.

Under chroot isolation buildah passes output on through a process of its own, which ends with the command and drops what
it has not passed on yet: on a busy machine a command that prints and exits loses its output about once in fifty times,
and a failing build its reason. So the command writes to two named pipes instead, read outside until their end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

# Below /run, where no layer keeps anything; what is left of it in a tree is removed.
TARGET = "/run/toolchain-output"
# Where the engine sees them (see `engine.view`).
PIPES = "/pipes"
_INTO = f">{TARGET}/out 2>{TARGET}/err"
# Holds both pipes open until buildah has ended, so that readers neither wait for a command that never started nor stop
# between two of them. A stray process that keeps them open is not waited for; the namespace ends with this shell.
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

# For a Containerfile: every RUN of the stage writes there, both streams into one so that their order stays. Needs the
# docker format, OCI images have no shell.
SHELL = "SHELL " + json.dumps(["/bin/sh", "-c", f'exec /bin/sh -c "$0" >{TARGET}/out 2>&1'])


def make(folder: Path) -> Path:
    """Make the pipes in a new folder below `folder` and return it."""
    pipes = folder / "output"
    pipes.mkdir()
    for name in ("out", "err"):
        os.mkfifo(pipes / name)
        # Any user that the command runs as must be able to write.
        (pipes / name).chmod(0o666)
    pipes.chmod(0o755)
    return pipes


def outside(argv: Sequence[str]) -> list[str]:
    """`argv` (buildah) with its container's pipes on standard output and error."""
    return ["sh", "-c", _READ, "sh", PIPES, *argv]


def options() -> list[str]:
    """Options of `buildah run` and `buildah build` that show the pipes inside."""
    return ["--volume", f"{PIPES}:{TARGET}:rw"]


def inside(argv: Sequence[str]) -> list[str]:
    """`argv` (in the container) writing to the pipes."""
    return ["/bin/sh", "-c", f'exec "$@" {_INTO}', "sh", *argv]


def sweep(tree: Path) -> None:
    """Remove the mount point from an exported tree."""
    left = tree / TARGET.lstrip("/")
    if left.is_dir() and not left.is_symlink():
        left.rmdir()
