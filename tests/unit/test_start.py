"""Tests that the tool starts quickly, because a call loads no module that it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolchain.cli.app import app
from toolchain.cli.verbs import GROUPS, all_verbs

TOP = Path(__file__).resolve().parents[2]
HEAVY = {
    "cryptography", "dask", "elftools", "filelock", "jinja2", "oras", "pydantic", "python_on_whales", "requests",
    "sqlite3", "urllib3",
}  # fmt: skip
IDLE = HEAVY | {"toolchain.request.model", "toolchain.pipeline.run", "toolchain.stages", "toolchain.oci"}
# `plan` loads toolchain.engine.resources to count the cores, so it may not load these other modules.
ENGINES = {f"toolchain.engine.{name}" for name in ("buildah", "docker", "isolation", "progress", "single", "storage")}
_SHOW = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("modules: " + " ".join(sys.modules)))
sys.argv = ["toolchain", *sys.argv[1:]]
from toolchain.cli.app import main
main()
"""
# The LLVM of AOTriton 0.13b is given, because a warning about an uncertain LLVM would load more.
LLVM = "llvm=https://github.com/llvm/llvm-project@7f77ca0dbda4abbf9af06537b2c475f20ccd6007"


def modules(folder: Path, *words: str) -> set[str]:
    """Run the tool, and return the names of the modules that are loaded when it exits."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOOLCHAIN_")}
    done = subprocess.run(
        [sys.executable, "-c", _SHOW, *words],
        capture_output=True, text=True, cwd=folder, check=False,
        env={**env, "PYTHONPATH": str(TOP), "TOOLCHAIN_CACHE": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stderr.partition("modules: ")[2].split())


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (("--version",), {*IDLE, "rich", "logging", "typer.rich_utils"}),
        (("-v", "--version"), {*IDLE, "rich"}),
        (("--help",), IDLE),
        (
            ("plan", "--drop-binary", "libdevice", "--json"),
            {*HEAVY, "rich", "toolchain.kernels", *ENGINES, "toolchain.pipeline.lockfile"},
        ),
        (
            (*("plan", "aotriton", "--aotriton", "0.13b", "--source", LLVM), *("--drop-binary", "libdevice", "--json")),
            HEAVY - {"sqlite3"} | {"rich"},
        ),
    ],
    ids=["version", "verbose-version", "help", "plan-json", "plan-aotriton"],
)
def test_call_loads_no_module_that_it_does_not_need(words: tuple[str, ...], absent: set[str], tmp_path: Path) -> None:
    loaded = modules(tmp_path, *words)
    assert "toolchain.cli.app" in loaded
    assert absent & loaded == set()


def test_help_of_every_verb_shows_its_usage() -> None:
    """The table of verbs names each function by a string, so a wrong name shows only when the verb is loaded."""
    for verb in all_verbs():
        said = CliRunner().invoke(app, [*verb.name.split(), "--help"], env={"COLUMNS": "200"})
        assert said.exit_code == 0, said.output
        assert f"Usage: toolchain {verb.name}" in said.output.replace("root", "toolchain")
    assert {verb.name.split()[0] for verb in all_verbs() if " " in verb.name} == set(GROUPS)
