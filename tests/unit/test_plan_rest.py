"""`plan`: the estimate for a build that is partly done, and the sources that an offline build lacks."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.other_user import NOBODY
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.pipeline.unfinished import unfinished
from toolchain.stages.stage import Planned

LLVM = ("llvm", "--source", "llvm=distro:llvm-toolchain-22", "--arch", "amd64")
STEPS = "@step configure\n@ninja 171/1309 2 9.1@ a\n@step compile\n@ninja 1/4279 2 0.1@ b\n@ninja 800/4279 2 99.0@ c\n"
CONTINUED = "@step configure\n@ninja 1/1 1 0.1@ a\n@step compile\n@ninja 2/3479 2 0.1@ d\n@ninja 2966/3479 2 900.0@ e\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    return Cache(tmp_path / "cache")


def planned(*words: str) -> tuple[dict[str, Any], str]:
    done = CliRunner().invoke(app, ["plan", *LLVM, "--json", *words])
    assert done.exit_code == 0, done.output
    stages = {stage["name"]: stage for stage in json.loads(done.stdout)["stages"]}
    return stages["llvm"], done.stderr


@pytest.mark.parametrize(
    ("logs", "steps"),
    [([STEPS], (800, 4279)), ([STEPS, CONTINUED], (3766, 4279)), ([STEPS.partition("@step compile")[0]], None)],
)
def test_the_rest_of_a_killed_build_is_estimated(cache: Cache, logs: list[str], steps: tuple[int, int] | None) -> None:
    before, _ = planned()
    key = str(before["input_digest"]).removeprefix("sha256:")[:12]
    (cache.mounts / "buildah-cache" / f"toolchain-llvm-tree-{key}").mkdir(parents=True)
    cache.logs.mkdir(parents=True)
    for number, text in enumerate(logs):
        (cache.logs / f"llvm-{key}-2026112{number}T000000.log").write_text(text)
    after = planned()[0]["takes"]
    whole = before["takes"]["minutes"]
    if steps is None:
        assert after == before["takes"]
        return
    done, total = steps
    assert (after["steps_done"], after["steps"]) == steps
    assert after["minutes"] == pytest.approx([minutes * (1 - done / total) for minutes in whole], abs=0.1)


def test_unreadable_build_tree_is_ignored() -> None:
    """The folder of trees belongs to a subordinate id, and a plan does not enter a user namespace to read it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cache, stage = Cache(Path(folder)), Planned(name="llvm", image="x", inputs={})
        (cache.mounts / "buildah-cache" / f"toolchain-llvm-tree-{stage.tree_key}").mkdir(parents=True)
        cache.logs.mkdir()
        (cache.logs / f"llvm-{stage.tree_key}-20261120T000000.log").write_text(STEPS)
        assert unfinished(cache, stage) is not None
        cache.mounts.chmod(0)
        user = os.geteuid()
        try:
            os.seteuid(user or NOBODY)
            assert unfinished(cache, stage) is None
        finally:
            os.seteuid(user)
            cache.mounts.chmod(0o700)


def test_an_offline_plan_names_each_missing_source(cache: Cache) -> None:
    _, said = planned("--offline")
    assert all(name in said for name in ("toolchain-base-debian13", "toolchain-sysroot", "llvm-toolchain-22=22.1.8"))
    row = planned()[0]["sources"][0]
    assert row["name"] == "llvm"
    place = cache.store / "files" / row["digest"].removeprefix("sha256:")
    place.mkdir(parents=True)
    (place / "source.tar.xz").touch()
    assert "llvm-toolchain-22" not in planned("--offline")[1]
