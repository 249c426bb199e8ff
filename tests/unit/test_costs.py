"""What a stage takes: every stage has a row, every row a source, and `plan` tells it in 80 columns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.site_compatibility import room_told, sections, what_it_takes
from toolchain.catalog.costs import Cost, cost_of, costs
from toolchain.catalog.stages import STAGES
from toolchain.cli import plan_cmd
from toolchain.cli.app import app

TOP = Path(__file__).resolve().parents[2]


def test_every_stage_has_a_row_and_every_row_a_source() -> None:
    assert {one.stage for one in costs()} == {one.costs or one.name for one in STAGES}
    assert [
        one for one in costs() if one.source not in sections() and not one.source.startswith("not measured: ")
    ] == []


def test_hours_follow_the_cores() -> None:
    llvm, base = cost_of("llvm", "distribution"), cost_of("base")
    assert llvm is not None
    assert base is not None
    assert (llvm.time_for(2), llvm.time_for(8), llvm.time_for(64)) == ("85 min to 5 h", "21 to 75 min", "3 to 9 min")
    assert base.time_for(2) == base.time_for(64)
    assert cost_of("llvm", "no such part") is None
    kernels = Cost(stage="kernels", minutes=(12, 120), cores=2, kernel=2.0, source="x")
    assert kernels.time_for(2) == "12 min to 2 h + 1 s a kernel"
    assert kernels.as_json(4) == {"cores": 4, "minutes": [6.0, 60.0], "seconds_per_kernel": 0.5}


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_cmd, "cores", lambda: 8)
    return CliRunner()


def test_plan_tells_hours_disk_and_memory(planned: CliRunner) -> None:
    words = ["plan", "aotriton", "--aotriton", "0.13b", "--gpu", "MI300X", "--allow-binary", "libdevice"]
    told = planned.invoke(app, words).stdout.partition("still to build, on 8 cores")[2].partition("in a Docker")[0]
    said = [line for line in told.splitlines()[1:] if line[2] != " "]
    assert [line.split()[0] for line in said] == ["base", "sysroot", "hip", "python", "llvm", "triton", "aotriton"]
    assert [line for line in said if "21 to 75 min, disk 14.0 GB, memory 5.4 GB per link" in line] == [said[4]]
    assert max(map(len, said)) <= 80
    rows = json.loads(planned.invoke(app, [*words, "--json"]).stdout)["stages"]
    takes = {row["name"]: row["takes"] for row in rows}
    assert takes["llvm"] == {"cores": 8, "minutes": [21.2, 75.0], "disk": 14_000_000_000, "memory_per_job": 5 << 30}
    assert takes["aotriton"]["seconds_per_kernel"] == 0.26


def test_plan_says_no_to_what_the_data_contradict_and_what_comes_next(planned: CliRunner) -> None:
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
    uncounted = planned.invoke(app, ["plan", "aotriton", "--aotriton", "0.12b", "--gpu", "gfx1102"])
    assert "number of kernels: unknown" in uncounted.stdout
    row = json.loads(planned.invoke(app, [*asked, "--json"]).stdout)["stages"][-1]
    assert f"COPY --from=REGISTRY/NAMESPACE/{row['image']} \\\n      {row['prefix']} {row['prefix']}\n" in said.stdout
    assert "libdevice" not in planned.invoke(app, [*asked, "--drop-binary", "libdevice"]).stderr


def test_a_misspelt_or_contradictory_decision_on_a_prebuilt_is_told(planned: CliRunner) -> None:
    words = ["plan", "triton", "--triton", "3.6.0", "--allow-binary"]
    assert "'libdevise'" in planned.invoke(app, [*words, "libdevise"]).stderr
    for name in ("libdevice", "triton-wheel", "third_party/x.bc"):
        assert "on record" not in planned.invoke(app, [*words, name]).stderr
    assert planned.invoke(app, [*words, "libdevice", "--drop-binary", "libdevice"]).exit_code == 3


def test_the_page_of_costs_names_the_disk_that_a_stage_refuses_to_begin_without(planned: CliRunner) -> None:
    page = what_it_takes()
    for only, room in (("tablegen", "5 GB"), ("mlir-tblgen", "4 GB"), ("support", "3 GB")):
        rows = json.loads(planned.invoke(app, ["plan", "llvm", "--only", only, "--json"]).stdout)["stages"]
        assert rows[-1]["takes"]["disk"] == int(room.split()[0]) * 1_000_000_000
        assert re.search(rf"`llvm`, `--only {only}` .*\| {room} \|", page)
    told: dict[str, int | None] = {}
    for words in (
        ["triton", "--triton", "3.9.0"],
        ["aotriton", "--aotriton", "0.13b"],
        ["wheels", "--base", "debian13"],
        ["triton-cache", "--base", "debian13"],
    ):
        said = planned.invoke(app, ["plan", *words, "--allow-binary", "libdevice", "--json"])
        told |= {row["name"]: row["takes"].get("disk") for row in json.loads(said.stdout)["stages"]}
    assert set(told) == {one.name for one in STAGES} - {"kernels"}
    for name, disk in told.items():
        assert re.search(rf"^\|( `[a-z-]+`,)* `{name}`[ ,].*\| {room_told(disk)} \|", page, re.MULTILINE), name


def test_a_plan_for_several_architectures_says_which_row_is_for_which(planned: CliRunner) -> None:
    words = ["plan", "llvm", "--triton", "3.6.0"]
    table, _, takes = planned.invoke(app, [*words, "--arch", "amd64,arm64"]).stdout.partition("still to build")
    assert re.sub(r"(?m)^untried: .*$", "", table).count("arm64") == 2, "sysroot and LLVM; the base is this machine's"
    named = [line.split()[:2] for line in takes.splitlines()[1:]]
    assert [one for one in named if one[1] == "arm64"] == [["sysroot", "arm64"], ["llvm", "arm64"]]
    assert "amd64" not in planned.invoke(app, words).stdout, "one architecture needs no word"
