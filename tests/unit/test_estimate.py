"""How long a build says it will still take: replayed from logs of real builds, and the ways in which a build is odd."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from scripts import step_costs as reading
from scripts.replay_estimates import at, ninja_lines, reduced, replay, worst
from tests.small_llvm import small_llvm
from toolchain.build.prefetch import Prefetch
from toolchain.build.workspace import BuildWorkspace
from toolchain.cache import Cache
from toolchain.catalog.costs import step_costs
from toolchain.engine.buildah import Buildah
from toolchain.engine.estimate import Course, Pace
from toolchain.engine.progress import Progress
from toolchain.recipe import Recipe
from toolchain.request import Request
from toolchain.sources.tree import FetchedSource, Source
from toolchain.stages import llvm
from toolchain.stages.llvm_subset import DISTRIBUTION, MLIR_TBLGEN, SUPPORT, TABLEGEN

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
HALVES = ((100, 1.0), (100, 9.0))  # the second half of such a build takes nine times as long


def run(pace: Pace, begun: float, steps: range, each: float) -> float:
    """Steps that end one after the other, two at a time; the second after the last of them."""
    now = begun
    for left in reversed(steps):
        now += each
        pace.count(left, 2, now)
    return now


@pytest.mark.parametrize(
    ("log", "part"),
    [("ninja-tablegen", TABLEGEN), ("ninja-support-arm64", SUPPORT), ("ninja-llvm-arm64", DISTRIBUTION)],
)
def test_what_builds_told_was_within_half_of_what_they_took(log: str, part: str) -> None:
    told = replay(RECORDED / f"{log}.log.gz", step_costs(part))
    assert worst(told).factor <= 1.5
    # By the number of steps alone it was not.
    assert worst(replay(RECORDED / f"{log}.log.gz", ())).factor > 2


def test_a_load_that_comes_later_is_not_foreseen_but_followed() -> None:
    # From its middle on other builds took most of the machine: by then a tenth of the time was long told.
    told = replay(RECORDED / "ninja-llvm-loaded.log.gz", step_costs(DISTRIBUTION))
    assert worst(told).factor < 2
    assert all(at(told, tenth).factor < 1.5 for tenth in (3, 4, 5, 6, 7, 8, 9))


def test_a_build_of_llvm_brings_its_course_to_the_line_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def ninja(_: Recipe, **kwargs: Any) -> None:
        nonlocal now
        kwargs["on_line"]("@step compile")
        for done in range(1, 21):
            now += 1
            kwargs["on_line"](f"@ninja {done}/2272 2 {now}@ x")
        raise KeyboardInterrupt

    def fetch(_: BuildWorkspace, source: Source) -> FetchedSource:
        return replace(source, digest="sha256:" + "1" * 64).fetched(small_llvm(tmp_path / "tree"))

    request = Request(cache=Cache(tmp_path / "cache"))
    workspace = BuildWorkspace(
        request=request,
        log=tmp_path / "log",
        progress=Progress("llvm", console=Console(file=io.StringIO()), clock=lambda: now),
        stage="a-test",
        prefetch=Prefetch(request, []),
        _engine=cast("Buildah", SimpleNamespace(build=ninja)),
    )
    monkeypatch.setattr(BuildWorkspace, "fetch", fetch)
    monkeypatch.setattr(BuildWorkspace, "image", lambda *_: "base")
    monkeypatch.setattr(BuildWorkspace, "require_disk", lambda *_: None)
    monkeypatch.setattr(BuildWorkspace, "unpack", lambda *_: tmp_path)
    monkeypatch.setattr(llvm, "_require", lambda *_: None)
    monkeypatch.setattr(llvm, "take_in_llvm", lambda _, __, planned: (planned, {}))
    stage = llvm.LlvmStage()
    under: Any = {"base": SimpleNamespace(input_digest="x"), "sysroot": SimpleNamespace(input_digest="y")}
    with pytest.raises(KeyboardInterrupt):
        stage.build(stage.plan(request, under), under, workspace)
    pace = Pace(Course(step_costs(DISTRIBUTION)))
    pace.count(2271, 2, 1.0)
    run(pace, 1.0, range(2252, 2271), 1.0)
    assert workspace.progress.estimate() == pytest.approx(pace.left(now), rel=0.02), "and the installation"
    assert workspace.progress.estimate() != pytest.approx(2252, rel=0.05), "which is by the number of steps alone"


def test_a_course_knows_the_last_steps_and_grows_with_a_larger_build() -> None:
    course = Course(HALVES)
    assert course.left(0) == 0
    assert course.left(50) == 450
    assert course.left(150) == 950
    assert course.left(200) == 1000
    assert course.left(400) == 2000


def test_slow_first_steps_do_not_decide_alone() -> None:
    pace = Pace(Course([(2000, 2.0)]))
    now = run(pace, 0.0, range(1980, 2001), 10.0)  # a hundredth of the build, ten times as slow as the rest will be
    left = pace.left(now)
    assert left is not None
    assert left < 10_000, "by the pace of these alone it would be 19,800"


def test_a_dear_second_half_is_foreseen() -> None:
    pace = Pace(Course(HALVES))
    now = run(pace, 0.0, range(150, 201), 0.5)
    left = pace.left(now)
    assert left is not None
    assert left == pytest.approx(950 / 2, rel=0.05), "by the number of steps it would be 75"


def test_a_build_that_goes_on_counts_what_is_left_of_the_same_course() -> None:
    pace = Pace(Course(HALVES))
    now = run(pace, 0.0, range(40, 51), 9 / 2)
    left = pace.left(now)
    assert left is not None
    assert left == pytest.approx(40 * 9 / 2, rel=0.05)


def test_steps_from_the_compiler_cache_do_not_make_the_rest_seem_cached() -> None:
    pace = Pace(Course([(400, 4.0)]))
    now = run(pace, 0.0, range(300, 401), 0.02)
    now = run(pace, now, range(260, 300), 2.0)
    left = pace.left(now)
    assert left is not None
    assert left == pytest.approx(260 * 2, rel=0.1)


def test_a_build_that_is_all_cached_is_told_to_end_soon() -> None:
    pace = Pace(Course([(400, 4.0)]))
    now = run(pace, 0.0, range(300, 401), 0.02)
    left = pace.left(now)
    assert left is not None
    assert left == pytest.approx(300 * 0.02, rel=0.1)


def test_steps_that_cmake_adds_count_and_cost_nothing_yet() -> None:
    pace = Pace(Course([(400, 4.0)]))
    assert pace.left(0.0) is None
    pace.count(1, 1, 1.0)
    pace.count(400, 2, 2.0)
    now = run(pace, 2.0, range(360, 400), 2.0)
    left = pace.left(now)
    assert left is not None
    assert left == pytest.approx(360 * 2, rel=0.05)


def test_a_step_that_hangs_makes_the_estimate_grow() -> None:
    pace = Pace(Course([(400, 4.0)]))
    now = run(pace, 0.0, range(360, 401), 2.0)
    before, after = pace.left(now), pace.left(now + 300)
    assert before is not None
    assert after is not None
    assert after > 2 * before


def test_every_part_has_a_table_of_its_steps() -> None:
    assert sum(count for count, _ in step_costs(DISTRIBUTION)) == 4279
    assert sum(count for count, _ in step_costs(TABLEGEN)) == 363
    assert sum(count for count, _ in step_costs(MLIR_TBLGEN)) == 275
    assert sum(count for count, _ in step_costs(SUPPORT)) == 189
    assert step_costs("no such part") == ()


def test_a_table_is_read_from_a_log_and_the_load_divided_out(tmp_path: Path) -> None:
    lines, now = ["@ninja 0/1 1 0.1@ Re-running CMake..."], 1.0
    for done in range(1, 401):
        now += 4.5 if done <= 200 else 45.0  # the machine ten times slower
        lines.append(f"@ninja {done}/400 1 {now:.3f}@ Building CXX object lib/IR/CMakeFiles/LLVMCore.dir/a{done}.cpp.o")
    (tmp_path / "log").write_text("\n".join(lines))
    rows = list(reading.rows(list(reading.without_load(tmp_path / "log"))))
    assert [(count, where) for count, _, where in rows] == [(400, "lib/IR")]
    assert rows[0][1] == pytest.approx(4.5, rel=0.1)
    small = tmp_path / "log.gz"
    small.write_bytes(reduced(tmp_path / "log"))
    assert [line[:2] for line in ninja_lines(small)] == [line[:2] for line in ninja_lines(tmp_path / "log")]


def test_the_ninja_of_the_install_is_no_part_of_the_table(tmp_path: Path) -> None:
    def line(done: int, of: int, now: float) -> str:
        return f"@ninja {done}/{of} 1 {now:.3f}@ Building CXX object lib/IR/CMakeFiles/LLVMCore.dir/a{done}.cpp.o"

    lines = [line(done, 100, done * 4.5) for done in range(1, 101)]
    lines += [line(done, 50, done * 0.1) for done in range(1, 51)]
    (tmp_path / "log").write_text("\n".join(lines))
    assert len(list(reading.without_load(tmp_path / "log"))) == 100
