"""Tests that a stage with a module and a row in the table of stages works in commands, locks and bundles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import finished_base
from toolchain.catalog.stages import (
    STAGES,
    choice,
    source_license,
    targets,
)
from toolchain.core.cache import Cache
from toolchain.oci.labels import LICENSES
from toolchain.oci.layout import Layout
from toolchain.publish.plain_files import FORMS
from toolchain.request.option_values import SOURCES
from toolchain.stages.makers import MAKERS

TOP = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tool:
    """The tool with the additional stage `report`, which runs in its own folder."""

    folder: Path
    cache: Path

    def call(self, *words: str, code: int = 0) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOOLCHAIN_")}
        done = subprocess.run(
            [sys.executable, "-m", "tests.with_report", "copied", *words],
            cwd=self.folder, capture_output=True, text=True, check=False,
            env={**env, "PYTHONPATH": str(TOP), "TOOLCHAIN_CACHE": str(self.cache), "COLUMNS": "200"},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def helps(self, *verbs: str) -> dict[str, str]:
        """Return the help text of each verb, with single spaces."""
        code = (
            "import json, sys; from tests.with_report import register; register('copied');"
            "from typer.testing import CliRunner; from toolchain.cli.app import app;"
            "print(json.dumps({one: CliRunner().invoke(app, [*one.split(), '--help']).output for one in sys.argv[1:]}))"
        )
        env = {**os.environ, "PYTHONPATH": str(TOP), "COLUMNS": "300"}
        done = subprocess.run(
            [sys.executable, "-c", code, *verbs], capture_output=True, text=True, check=True, env=env, cwd=self.folder
        )
        return {verb: " ".join(text.split()) for verb, text in json.loads(done.stdout).items()}

    def data(self, *words: str) -> Any:
        return json.loads(self.call(*words, "--json"))


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    cache = tmp_path / "a cache"
    finished_base(Cache(cache), tmp_path / "work")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "report.txt").write_text("all is well\n")
    (tmp_path / "here").mkdir()
    return Tool(tmp_path / "here", cache)


ASKED = ("--base", "debian13", "--source", "notes=../notes")


def test_additional_stage_is_planned_locked_bundled_built_and_published(tool: Tool) -> None:
    for verb, said in tool.helps("plan", "fetch", "build", "lock", "bundle export").items():
        assert "report or all." in said, verb
    refused = tool.call("plan", "--source", "x=y", code=3)
    assert "one of aiter, aotriton, aotriton-database, flash-attn, hip5, hip6, liblzma, llvm, llvm-amdgpu" in refused
    base, report = tool.data("plan", "report", *ASKED)["stages"]
    assert (base["name"], report["name"], report["reused"]) == ("base", "report", False)
    assert report["sources"][0]["ref"] == "local:notes"

    locked = tool.data("lock", "report", *ASKED)
    assert (locked["complete"], locked["sources"]) == (True, ["notes"])
    assert 'license = "CC0-1.0"' in (tool.folder / "toolchain.lock").read_text()
    kinds = [one["kind"] for one in tool.data("bundle", "export", "oci:../bundle", "report", *ASKED)["entries"]]
    assert kinds[:3] == ["lock", "base", "record"]
    assert "tree" in kinds

    # Another cache builds the stage from the bundle, without the folder of the source.
    other = Tool(tool.folder.parent / "there", tool.folder.parent / "other cache")
    other.folder.mkdir()
    command = other.data("bundle", "import", "oci:../bundle")["command"]
    (tool.folder.parent / "notes").rename(tool.folder.parent / "gone")
    words = [word.strip("'") for word in command[1:]]
    made = other.data(*words, "--archive", "files")["stages"][-1]
    assert (made["name"], made["reused"]) == ("report", False)
    assert (other.folder / "files" / "report.txt").read_text() == "all is well\n"

    other.call("keygen", "a.key")
    published_ = other.data("publish", "oci:../out", "report", "--key", "a.key")["published"]
    assert [one["image"] for one in published_] == [made["image"]]
    name = f"oci:../out:{made['image']}"
    (judged,) = other.data("verify", name, "--public-key", "a.key.pub", "--policy", "source-only")["images"]
    assert judged["verdict"] == "trusted"
    layout = Layout(other.folder.parent / "out")
    config = layout.read_json(layout.children(layout.children(layout.resolve(made["image"]))[0])[0])
    assert config["config"]["Labels"][LICENSES] == "CC0-1.0"
    assert "--archive is only for llvm, triton, aotriton, flash-attn, aiter, vllm, report" in tool.call(
        "build", "base", "--archive", "x", code=3
    )


def test_table_of_stages_is_consistent() -> None:
    """A stage may depend only on stages in earlier rows."""
    for number, row in enumerate(STAGES):
        assert {*row.on} <= {one.name for one in STAGES[:number]}, row.name
    assert MAKERS.keys() == {row.name for row in STAGES}
    assert list(FORMS) == [row.name for row in STAGES if row.name in FORMS]
    names = [row.name for row in STAGES]
    assert len(set(names)) == len(names)
    assert targets() == (*names, "all")
    assert choice() == f"{', '.join(names)} or all."
    assert {"aotriton", "flash-attn", "hip5", "llvm", "llvm-amdgpu", "triton"} <= {*SOURCES}
    assert (source_license("flash-attn"), source_license("x")) == ("BSD-3-Clause", "")


def test_the_page_of_building_has_a_row_for_each_stage() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (TOP / "docs" / "building.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert {row.name for row in STAGES} - listed == set(), "add it to the table of stages in docs/building.md"
