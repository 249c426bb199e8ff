"""It starts at once: what a call does not need is not loaded for it."""

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
# `plan` asks one module of the engine's room how many cores there are.
ENGINES = {f"toolchain.engine.{name}" for name in ("buildah", "docker", "isolation", "progress", "single", "storage")}
_SHOW = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("modules: " + " ".join(sys.modules)))
sys.argv = ["toolchain", *sys.argv[1:]]
from toolchain.cli.app import main
main()
"""
# The LLVM of AOTriton 0.13b by name, so that no warning of how sure it is draws in what prints.
LLVM = "llvm=https://github.com/llvm/llvm-project@7f77ca0dbda4abbf9af06537b2c475f20ccd6007"


def modules(folder: Path, *words: str) -> set[str]:
    """What is loaded when the tool has ended."""
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
def test_what_is_not_needed_is_not_loaded(words: tuple[str, ...], absent: set[str], tmp_path: Path) -> None:
    loaded = modules(tmp_path, *words)
    assert "toolchain.cli.app" in loaded
    assert absent & loaded == set()


def test_every_verb_is_there_and_says_what_it_takes() -> None:
    """The table names functions by text, so that they are not loaded; here all of them are."""
    for verb in all_verbs():
        said = CliRunner().invoke(app, [*verb.name.split(), "--help"], env={"COLUMNS": "200"})
        assert said.exit_code == 0, said.output
        assert f"Usage: toolchain {verb.name}" in said.output.replace("root", "toolchain")
    assert {verb.name.split()[0] for verb in all_verbs() if " " in verb.name} == set(GROUPS)
