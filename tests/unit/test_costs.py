"""Tests of the estimated costs of stages, and of the verb `plan`, which shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.site_compatibility import sections
from toolchain.catalog.costs import Cost, cost_of, costs
from toolchain.catalog.stages import STAGES
from toolchain.cli import plan_cmd
from toolchain.cli.app import app

TOP = Path(__file__).resolve().parents[2]


def test_every_stage_has_a_cost_and_every_cost_has_a_source() -> None:
    assert {one.stage for one in costs()} == {one.costs or one.name for one in STAGES}
    assert [
        one for one in costs() if one.source not in sections() and not one.source.startswith("not measured: ")
    ] == []


def test_time_is_scaled_to_the_number_of_cores() -> None:
    llvm, base = cost_of("llvm", "distribution"), cost_of("base")
    assert llvm is not None
    assert base is not None
    assert (llvm.time_for(2), llvm.time_for(8), llvm.time_for(64)) == ("45 min to 2.5 h", "11 to 38 min", "1 to 5 min")
    assert base.time_for(2) == base.time_for(64)
    assert cost_of("llvm", "no-such-part") is None
    kernels = Cost(stage="kernels", minutes=(12, 120), cores=2, kernel=2.0, source="x")
    assert kernels.time_for(2) == "12 min to 2 h + 1 s a kernel"
    assert kernels.as_json(4) == {"cores": 4, "minutes": [6.0, 60.0], "seconds_per_kernel": 0.5}


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_cmd, "cores", lambda: 8)
    return CliRunner()


def test_plan_shows_time_disk_and_memory_in_80_columns(planned: CliRunner) -> None:
    words = ["plan", "aotriton", "--aotriton", "0.13b", "--gpu", "MI300X", "--allow-binary", "libdevice"]
    rows = json.loads(planned.invoke(app, [*words, "--json"]).stdout)["stages"]
    takes = {row["name"]: row["takes"] for row in rows}
    assert list(takes) == ["base", "sysroot", "hip", "python", "llvm", "triton", "aotriton"]
    assert takes["llvm"] == {"cores": 8, "minutes": [11.2, 37.5], "disk": 14_000_000_000, "memory_per_job": 5 << 30}
    assert takes["aotriton"]["seconds_per_kernel"] == 0.26
    told = planned.invoke(app, words).stdout.partition("still to build, on 8 cores")[2].partition("in a Docker")[0]
    assert max(map(len, told.splitlines())) <= 80


def test_plan_refuses_impossible_requests_and_names_missing_decisions(planned: CliRunner) -> None:
    for words, code in (
        (("aotriton", "--aotriton", "0.7.1b", "--gpu", "gfx950"), 7),
        (("llvm", "--source", "llvm=distro:llvm-toolchain-20"), 5),
        (("llvm", "--source", "llvm=distro:llvm-toolchain-99"), 7),
    ):
        assert planned.invoke(app, ["plan", *words]).exit_code == code, words
    asked = ("plan", "aotriton", "--aotriton", "0.13b", "--gpu", "MI300X")
    said = planned.invoke(app, list(asked))
    assert "--drop-binary libdevice" in said.stderr
    assert "19,001 kernels: " in said.stdout
    uncounted = planned.invoke(app, ["plan", "aotriton", "--aotriton", "0.12.50tp", "--gpu", "gfx1102"])
    assert "number of kernels: unknown" in uncounted.stdout
    assert "libdevice" not in planned.invoke(app, [*asked, "--drop-binary", "libdevice"]).stderr


def test_plan_warns_of_misspelt_and_refuses_contradictory_decisions(planned: CliRunner) -> None:
    words = ["plan", "triton", "--triton", "3.6.0", "--allow-binary"]
    assert "'libdevise'" in planned.invoke(app, [*words, "libdevise"]).stderr
    for name in ("libdevice", "triton-wheel", "third_party/x.bc"):
        assert "on record" not in planned.invoke(app, [*words, name]).stderr
    assert planned.invoke(app, [*words, "libdevice", "--drop-binary", "libdevice"]).exit_code == 3
