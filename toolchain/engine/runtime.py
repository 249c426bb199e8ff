"""The OCI runtime below buildah, asked less often how a container is.

While a container runs, buildah starts `runc state` ten times a second: an eighth of a core for each container, for as
long as it lasts. The program made here stands before the runtime and passes everything on as it is. From the twentieth
question on it waits a second before each, so a long build or worker may be found to have ended a second later.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from functools import cache as memoize
from pathlib import Path

from toolchain import process

_PROGRAM = """#!/bin/sh
case "$1" in
create) echo 0 >"$0.asked" ;;
state)
  {{ read -r asked <"$0.asked"; }} 2>/dev/null || asked={many}
  if [ "$asked" -lt {many} ]; then echo $((asked + 1)) >"$0.asked"; else sleep 1; fi
  ;;
esac
exec {runtime} "$@"
"""
_MANY = 20
_DEFAULT = re.compile(r'--runtime path .*\(default "([^"]+)"\)')


def patient(folder: Path) -> list[str]:
    """Options of `buildah run` and `buildah build`; none where the runtime is not found or `folder` runs no programs.

    Args:
        folder: of the invocation, where the program is written.
    """
    runtime = shutil.which(os.environ.get("BUILDAH_RUNTIME") or _default())
    if runtime is None or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return []
    program = folder / "runtime"
    program.write_text(_PROGRAM.format(runtime=shlex.quote(runtime), many=_MANY), encoding="utf-8")
    program.chmod(0o700)
    return ["--runtime", os.fspath(program.absolute())]


@memoize
def _default() -> str:
    """The runtime that buildah takes by itself, which containers.conf may say; empty where its help does not tell."""
    told = process.run(["buildah", "run", "--help"], capture=True, check=False, timeout=60).stdout
    found = _DEFAULT.search(told)
    return found[1] if found else ""
