"""The verb `lock`, which writes the inputs of a build to a lock file, or compares them with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from toolchain.catalog import stages
from toolchain.cli import options as o
from toolchain.cli.build_options import HOW, with_request
from toolchain.core import console
from toolchain.core.digest import require_output
from toolchain.core.errors import ConfigError
from toolchain.pipeline.lockfile import DEFAULT
from toolchain.request.model import Request

StageArg = Annotated[str, typer.Argument(help=stages.choice(), autocompletion=o.complete_stage)]
OutOpt = Annotated[Path, typer.Option("--output", "-o", help="Lock file to write, or with --check to compare with.")]
CheckOpt = Annotated[bool, typer.Option("--check", help="Write nothing; show where the lock file is out of date.")]
OpenOpt = Annotated[
    bool, typer.Option("--open-base", help="Do not lock the packages of the base; the lock file records that.")
]


@with_request(*HOW, "contract", "locked", "lock_file")
def lock(
    stage: StageArg = "all",
    output: OutOpt = Path(DEFAULT),
    check: CheckOpt = False,
    open_base: OpenOpt = False,
    *,
    request: Request,
) -> None:
    """Write toolchain.lock: every source, wheel, patch and base package of a stage, by digest.

    The sources are fetched unless --check is given.
    """
    if check and open_base:
        why = "the lock file records whether its base is locked"
        what = "--check and --open-base exclude each other"
        raise ConfigError("options-exclude", what, why=why, fix="omit --open-base")
    from toolchain.pipeline.locking import check_file, fetch_all, make  # noqa: PLC0415 - not for `--help`
    from toolchain.pipeline.plan import plan as plan_stages  # noqa: PLC0415
    from toolchain.pipeline.plan import resolved_plan  # noqa: PLC0415
    from toolchain.stages.triton_edits import with_edits  # noqa: PLC0415

    rows = plan_stages(request, stage) if check else resolved_plan(request, stage, ask=True)
    planned = [row.planned for row in rows]
    if check:
        made = check_file(request, planned, stage, output)
    else:
        require_output(output, option="-o")
        fetch_all(request, planned)
        # The fetched trees may add edits and sources to the plan.
        request = replace(request, patches=with_edits(request, stage))
        now = [row.planned for row in plan_stages(request, stage)]
        fetch_all(request, [each for each in now if each not in planned])
        made = make(request, now, stage, output, open_base=open_base)
    if not made.complete:
        unlocked = ", ".join(str(base) for base in made.bases if base.state not in {"resolved", "image"})
        console.note(f"incomplete: the packages of {unlocked} are not locked")
    if request.json:
        keys = ("stage", "name", "arch", "state")
        bases = [{key: getattr(base, key) for key in keys} for base in made.bases]
        sources = [source.name for source in made.sources]
        console.data({"file": str(output), "complete": made.complete, "sources": sources, "bases": bases})
        return
    count = f"{len(made.sources)} sources, {sum(len(base.packages) for base in made.bases)} base packages"
    console.text(str(output), "up to date" if check else "written", count)
