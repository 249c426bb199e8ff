"""The verb `doctor`, which shows what is missing or unusable on this machine, and how to fix it."""

from __future__ import annotations

import contextlib
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from toolchain.cli import doctor as checkup
from toolchain.cli.options import CacheOpt, JsonOpt, RunnerOpt
from toolchain.cli.parsing import place_of
from toolchain.core import console
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import EngineError
from toolchain.engine import namespace
from toolchain.request.model import option_named

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    context: typer.Context, cache: CacheOpt = None, runner: RunnerOpt = "buildah", json_: JsonOpt = False
) -> None:
    """Check this machine: the engine, isolation, disk space, memory, the network and other things that builds need."""
    with contextlib.suppress(EngineError):  # the check `user` reports this error
        namespace.enter()
    named = option_named("runner").value(runner)
    place = place_of(context, "runner")
    why = f"from {place}" if place else "the default"
    where = Cache((cache or default_cache()).absolute())
    checks = list(checkup.examine(where, runner=named, runner_why=why))
    code = checkup.exit_code(checks)
    reached = all(check.status == "ok" for check in checks if check.name == "git-host")
    if json_:
        console.data(
            {
                "ready": code == 0,
                "default_source": reached,
                "exit_code": code,
                "checks": [asdict(check) for check in checks],
            }
        )
        raise typer.Exit(code)
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("status", "name", "detail"):
        table.add_column(column, overflow="fold")
    for check in checks:
        detail = check.detail if not check.fix or check.status == "ok" else f"{check.detail}\n→ {check.fix}"
        table.add_row(f"[{_STYLES[check.status]}]{check.status}[/]", check.name, Text(console.plain_lines(detail)))
    console.show(table)
    failed = [check.name for check in checks if check.status == "fail"]
    if failed:
        console.text(f"not ready: {', '.join(failed)}")
    elif not reached:
        console.text("ready for local sources and distribution packages; the default source is unreachable")
    else:
        console.text("ready to build")
    raise typer.Exit(code)
