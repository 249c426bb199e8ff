"""`kernels estimate`: what it counts, where its seconds are from, and what it prints."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kernel_fixtures import make_rule
from toolchain.cli.app import app
from toolchain.errors import ConfigError, SourceError, UnsupportedError
from toolchain.kernels.estimate import ENOUGH, Planned, Times, counted, kept_without, planned, timed, times_of
from toolchain.kernels.ledger import Entry, Ledger

NOTHING = Times(exact={}, seen={}, sizes={})


def estimate(tmp_path: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["kernels", "estimate", "--cache", str(tmp_path / "cache"), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def data(tmp_path: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(estimate(tmp_path, "--gpu", "gfx942", "--machines", "1,4", *words, "--json"))
    return found


def plan_in(folder: Path) -> Path:
    """Two clusters of two kernels of gfx942, and one of one for gfx1100."""
    folder.mkdir()
    rows = [("a/1", "attn_fwd", "gfx942"), ("a/2", "attn_fwd", "gfx942"), ("b/1", "bwd_kernel_dq", "gfx942"),
            ("b/2", "bwd_kernel_dq", "gfx942"), ("c/1", "attn_fwd", "gfx1100")]  # fmt: skip
    lines = [f"venv;python;/build/plan/{path}.hsaco;k.py;{name};4;1;2;{gpu};*fp16" for path, name, gpu in rows]
    (folder / "Bare.compile").write_text("\n".join([*lines, lines[0]]) + "\n")
    inside = {name: [path for path, _, _ in rows if path[0] == name] for name in "abc"}
    (folder / "Bare.cluster").write_text(
        "".join(
            f"amd;flash;k;{name};" + ";".join(f"/build/plan/{path}.hsaco" for path in paths) + "\n"
            for name, paths in inside.items()
        )
    )
    return folder


def ledger_in(path: Path, *seconds: float, origin: str = "", kernel: str = "attn_fwd", out: str = "x") -> Path:
    with Ledger(path) as ledger:
        for number, one in enumerate(seconds):
            rule = replace(make_rule(kernel, warps=number + 1), out=f"{out}/{number}.hsaco")
            ledger.record(Entry.of(rule, "done", seconds=one, size=1000, origin=origin))
    return path


def test_the_whole_release_is_counted() -> None:
    every, text = counted(("gfx942", "gfx1101"))
    assert len(every) == 19_001 + 19_187
    assert len({one.cluster for one in every if one.gpu == "gfx942"}) == pytest.approx(1_839, rel=0.1), "as its plan"
    assert "gfx1101 as gfx1100, not run" in text
    with pytest.raises(UnsupportedError, match="gfx906"):
        counted(("gfx942", "gfx906"))


def test_a_plan_knows_clusters_and_gpus(tmp_path: Path) -> None:
    folder = plan_in(tmp_path / "plan")
    assert len(planned(folder, ())) == 5, "a line that comes twice counts once"
    found = planned(folder, ("gfx942",))
    assert [one.kernel for one in found] == ["attn_fwd", "attn_fwd", "bwd_kernel_dq", "bwd_kernel_dq"]
    assert len({one.cluster for one in found}) == 2
    with pytest.raises(ConfigError, match="gfx950"):
        planned(folder, ("gfx950",))
    (folder / "Bare.compile").write_text("a;b\n")
    with pytest.raises(SourceError, match=r"Bare\.compile:1 has 2 fields"):
        planned(folder, ())
    with pytest.raises(SourceError, match=r"Bare\.cluster"):
        planned(tmp_path, ())


def test_seconds_are_those_of_the_data_where_no_ledger_knows(tmp_path: Path) -> None:
    rows, _ = counted(("gfx942",))
    kernels, origins = timed(rows, NOTHING)
    assert origins == {"table": 19_001}
    attn = [kernel.seconds for kernel, row in zip(kernels, rows, strict=True) if row.kernel == "attn_fwd"]
    assert statistics.median(attn) == pytest.approx(1.8, rel=0.01)
    assert statistics.fmean(attn) == pytest.approx(1.8 * 1.21, rel=0.02)
    assert timed(rows, NOTHING)[0] == kernels, "the same each time"
    other, _ = timed(counted(("gfx950",))[0], NOTHING)
    assert statistics.median(one.seconds for one in other[:5060]) == pytest.approx(1.8 * 0.6, rel=0.01)
    with pytest.raises(UnsupportedError, match="nobody has measured new_kernel"):
        timed([Planned("new_kernel", "gfx942", "c")], NOTHING)


def test_a_ledger_knows_better(tmp_path: Path) -> None:
    rows = planned(plan_in(tmp_path / "plan"), ("gfx942",))
    # One of the plan's own objects, and enough of another function to tell how its seconds lie.
    one, rule = tmp_path / "one.sqlite", replace(make_rule("bwd_kernel_dq"), out="b/1.hsaco")
    with Ledger(one) as ledger:
        ledger.record(Entry.of(rule, "done", seconds=7.0, size=1))
    many = ledger_in(tmp_path / "many.sqlite", *[3.0] * ENOUGH)
    kernels, origins = timed(rows, times_of([one, many]))
    assert [kernel.seconds for kernel in kernels][:3] == [3.0, 3.0, 7.0]
    assert origins == {"ledger of the function": 2, "ledger": 1, "table": 1}
    assert kernels[0].size == 1000
    few = ledger_in(tmp_path / "few.sqlite", *[3.0] * (ENOUGH - 1))
    assert timed(rows, times_of([few]))[1] == {"table": 4}
    taken = ledger_in(tmp_path / "taken.sqlite", *[3.0] * ENOUGH, origin="a store")
    assert timed(rows, times_of([taken]))[1] == {"table": 4}, "another machine's seconds"


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("nonsense " * 100)
    with pytest.raises(ConfigError, match="cannot be read"):
        times_of([tmp_path / "ledger.sqlite"])


def test_one_source_that_changed_leaves_the_other_functions() -> None:
    rows = [Planned("a", "gfx942", "c"), Planned("b", "gfx942", "d"), Planned("a", "gfx942", "c")]
    assert kept_without(rows) == ("a", [False, True, False])
    assert kept_without([]) == ("", [])


def test_people_see_80_columns(tmp_path: Path) -> None:
    text = estimate(tmp_path, "--gpu", "gfx942,gfx1101", "--machines", "1,1000", "--core-hour", "1000")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "38,188 kernels" in text
    assert "never below" in text


def test_what_is_given_counts(tmp_path: Path) -> None:
    found = data(tmp_path, "--cores", "16")
    assert (found["kernels"], found["store"], found["second_release"]["reused"]) == (19_001, "registry", 0.6528)
    one, four = found["first_release"]["machines"]
    assert one["hours"] > four["hours"] > found["first_release"]["floor"]["total"] / 3600
    assert four["core_hours"] > one["core_hours"]
    dear = data(tmp_path, "--cores", "16", "--core-hour", "0.4", "--gigabyte", "0")
    assert dear["first_release"]["machines"][0]["cost"] == pytest.approx(one["core_hours"] * 0.4, rel=0.01)
    all_ = data(tmp_path, "--cores", "16", "--reused", "all")["second_release"]
    assert (all_["reused"], all_["floor"]["longest"], all_["machines"][0]["busy"]) == (1.0, 0, 0)
    none = data(tmp_path, "--cores", "16", "--reused", "0")
    assert none["second_release"]["machines"] == none["first_release"]["machines"]


def test_plan_ledger_store_and_way(tmp_path: Path) -> None:
    work = tmp_path / "cache" / "work" / "a-campaign"
    work.mkdir(parents=True)
    ledger_in(work / "ledger.sqlite", *[3.0] * ENOUGH)
    words = ("--plan", str(plan_in(tmp_path / "plan")), "--setup", "0", "--kernel-store", str(tmp_path / "store"))
    found = data(tmp_path, *words, "--way", "scheduler", "--task-ms", "2000")
    assert (found["kernels"], found["clusters"], found["store"]) == (4, 2, "folder")
    assert found["seconds_from"] == {"ledger of the function": 2, "table": 2}
    assert found["first_release"]["floor"]["total"] >= 8


@pytest.mark.parametrize("words", [["--machines", "0"], ["--machines", "1,x"], ["--machines", ""], ["--reused", "2"]])
def test_what_cannot_be_is_refused(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["kernels", "estimate", "--cache", str(tmp_path), "--gpu", "gfx942", *words])
    assert done.exit_code == 3
    assert words[0] in done.stderr
