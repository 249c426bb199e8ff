"""Check kernels in separate namespaces, without access to a network or to the user's files."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import toolchain
from toolchain.core import process, strict_json
from toolchain.core.cache import Cache
from toolchain.core.check_result import Object
from toolchain.core.errors import EngineError
from toolchain.core.locks import in_use
from toolchain.core.recipe import Mount
from toolchain.engine import launcher, namespace, view
from toolchain_lab.bridge import require_numpy
from toolchain_lab.emulator.disassembly import Disassembler
from toolchain_lab.numbers.campaign import Report
from toolchain_lab.numbers.check import Checked
from toolchain_lab.numbers.inside import ROW

_OBJECTS, _TOOL, _MODULES, _OBJDUMP = "/objects", "/tool", "/modules", "/objdump"
# The code of these two packages runs in the namespaces.
_PACKAGES = (Path(toolchain.__file__).parent, Path(__file__).parents[1])


def _advice(error: process.CommandError) -> str:
    # If signal N ends a child process, the program that runs the child ends with the exit code 128 + N.
    killed = error.returncode < 0 or error.returncode > 128
    # `campaign.results` raises a ResourceError if one of its workers is killed.
    if killed or any(name in line for line in error.tail for name in ("MemoryError", "ResourceError")):
        return "free memory, or give fewer --jobs; if that does not help, report it"
    return "report it with the reason above"


def check_contained(
    objects: Sequence[Object],
    folder: Path,
    disassembler: Disassembler,
    cache: Cache,
    *,
    jobs: int,
    available: int,
    on_row: Callable[[Checked, int, int], None] | None = None,
) -> Report:
    """Check kernels in separate namespaces; see `campaign.run`."""
    namespace.enter()
    checked: dict[str, Checked] = {}

    def take(line: str) -> None:
        if not line.startswith(ROW):
            return
        row = Checked.from_json(strict_json.read(line.removeprefix(ROW), "a row of the check"))
        checked[row.name] = row
        if on_row is not None:
            on_row(row, len(checked), len(objects))

    with in_use(cache, make=True), tempfile.TemporaryDirectory(prefix="toolchain-check-") as scratch:
        copies = Path(scratch, "copies")
        prefix, modules = Path(sys.base_prefix).resolve(), require_numpy()
        show = [
            Mount(view.visible(folder, copies), _OBJECTS),
            *(Mount(view.visible(package, copies), f"{_TOOL}/{package.name}") for package in _PACKAGES),
            Mount(view.visible(modules, copies), _MODULES),
        ]
        if prefix.parts[1] not in launcher.SYSTEM:
            show.append(Mount(view.visible(prefix, copies), str(prefix)))
        objdump = disassembler.path.resolve()
        if objdump.parts[1] not in launcher.SYSTEM:
            show.append(Mount(view.visible(objdump, copies), _OBJDUMP))
            objdump = Path(_OBJDUMP)
        job = {
            "objdump": str(objdump), "version": list(disassembler.version), "jobs": jobs,
            "objects": [[f"{_OBJECTS}/{each.path.relative_to(folder)}", each.name] for each in objects],
        }  # fmt: skip
        environment = ["HOME=/tmp", "TMPDIR=/tmp", f"PYTHONPATH={_TOOL}:{_MODULES}", "OPENBLAS_NUM_THREADS=1"]
        words = ["env", *environment, os.path.realpath(sys.executable), "-m", "toolchain_lab.numbers.inside"]
        command = view.command(words, cache.engine / "settings", show=show)
        try:
            done = process.run(command, stdin=json.dumps(job), capture=True, on_line=take)
        except process.CommandError as error:
            raise EngineError(
                "check-died",
                "the process that checks the kernels failed",
                why=error.why,
                fix=_advice(error),
            ) from error
    lacking = [each.name for each in objects if each.name not in checked]
    if lacking:
        raise EngineError(
            "check-died",
            "the process that checks the kernels ended early",
            why=f"there is no result for {lacking[0]}; {done.stdout[-300:]}",
            fix="report it",
        )
    return Report(tuple(checked[each.name] for each in objects), available, disassembler.label)
