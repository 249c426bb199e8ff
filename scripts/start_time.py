"""Measure how long `toolchain` takes to start, and compare two commands with minimal programs that import Typer.

.venv/bin/python scripts/start_time.py [RUNS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from toolchain.cli.verbs import GROUPS, all_verbs

_EMPTY = """import typer
app = typer.Typer(no_args_is_help=True)
for name in {names!r}:
    @app.command(name)
    def verb() -> None:
        "Do something that is described in one line."
app()
"""


def seconds(words: list[str], compiled: str) -> tuple[float, float]:
    """Run a command, and return its wall-clock seconds and its CPU seconds.

    Args:
        compiled: the folder for compiled modules.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = compiled
    began, before = time.monotonic(), os.times()
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=env)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - began, used


def main(runs: int) -> None:
    """Run each command once to warm the caches and then `runs` times, and print the medians of the later runs."""
    tool = str(Path(sys.executable).parent / "toolchain")
    names = [verb.name for verb in all_verbs() if " " not in verb.name] + list(GROUPS)
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text(_EMPTY.format(names=names))
        pairs = {
            "--version": [[tool, "--version"], [sys.executable, "-I", "-c", "import typer"]],
            "--help": [[tool, "--help"], [sys.executable, "-I", str(empty), "--help"]],
            "plan": [[tool, "plan"]],
            "plan --json": [[tool, "plan", "--json"]],
        }
        found: dict[str, list[list[tuple[float, float]]]] = {name: [[] for _ in both] for name, both in pairs.items()}
        for _ in range(runs + 1):
            for name, both in pairs.items():
                for times, words in zip(found[name], both, strict=True):
                    times.append(seconds(words, f"{folder}/compiled"))
    for name, rows in found.items():
        # The first run of each command is left out, because it only warms the caches.
        wall, used = ([statistics.median(row[i] for row in times[1:]) for times in rows] for i in (0, 1))
        shown = ", ".join(f"{a:.3f} s ({b:.3f} s of CPU time)" for a, b in zip(wall, used, strict=True))
        if rows[1:]:
            shown += f"; ratio of wall-clock time {wall[0] / wall[1]:.2f}, of CPU time {used[0] / used[1]:.2f}"
        print(f"{name}: {shown}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20)
