"""Progress that is read from the lines of ninja, buildah and the recipes' scripts."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import pairwise

import pytest
from rich.console import Console

from toolchain.engine import isolation
from toolchain.engine.progress import Progress


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("CI", raising=False)


def make(
    clock: Clock,
    weights: Mapping[str, float] | None = None,
    *,
    terminal: bool = False,
) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, highlight=False)
    progress = Progress("llvm", 2, 5, console, clock=clock)
    progress.weigh(weights or {}, ninja={})
    return progress, out


def shown(progress: Progress) -> tuple[int, int]:
    """Return the done and total counts of the progress line."""
    counted = progress.text().split(", ")[1].rpartition(" ")[2]
    done, _, total = counted.partition("/")
    return int(done), int(total)


def recorded() -> list[tuple[float, str]]:
    """Return a ninja log as (seconds, line) pairs. Its total grows twice, and two lines are out of order."""
    lines: list[tuple[float, str]] = []
    total = 100
    for done in range(1, 131):
        if done in (40, 80):
            total += 15
        lines.append((done * 2.0, f"@ninja {done}/{total} 2 {done * 2.0:.3f}@ Building CXX object lib/a{done}.cpp.o"))
    lines[60], lines[61] = lines[61], lines[60]
    return lines


def test_progress_is_monotonic_and_ends_complete() -> None:
    clock = Clock()
    progress, _ = make(clock)
    progress.line("@step compile")
    begun, seen = clock.now, []
    for second, line in recorded():
        clock.now = max(clock.now, begun + second)
        assert progress.line(line)
        seen.append(shown(progress))
    for (done, total), (later_done, later_total) in pairwise(seen):
        assert later_done >= done
        assert later_total >= total
    assert seen[0] == (1, 100)
    assert seen[-1] == (130, 130)
    assert progress.estimate() == 0


def test_second_ninja_in_a_step_adds_to_the_counts() -> None:
    progress, _ = make(Clock())
    for line in ("@ninja 1/2 1 1.0@ a", "@ninja 2/2 0 2.0@ b", "@ninja 1/3 1 0.1@ c"):
        progress.line(line)
    assert shown(progress) == (3, 5)


def test_work_of_an_earlier_run_is_excluded_from_the_rate() -> None:
    clock = Clock()
    progress, _ = make(clock)
    progress.line("@count 900/1000 attn_fwd")
    assert progress.estimate() is None, "900 kernels in no time were done by an earlier run"
    clock.now += 10
    progress.line("@count 910/1000 attn_fwd")
    assert progress.estimate() == pytest.approx(90)


def test_steps_ahead_are_estimated_by_weight() -> None:
    clock = Clock()
    weights = {"configure": 1.0, "compile": 8.0, "install": 1.0}
    progress, _ = make(clock, weights)
    progress.line("@step configure")
    clock.now += 10
    progress.line("@step compile")
    progress.line("@ninja 0/100 2 0.0@ x")
    clock.now += 40
    progress.line("@ninja 50/100 2 40.0@ x")
    # configure took 10 for weight 1, compile will take 80 for weight 8: install is 10 more.
    assert progress.estimate() == pytest.approx(40 + 10)


def test_small_first_step_gives_no_estimate() -> None:
    clock = Clock()
    progress, _ = make(clock, {"configure": 1.0, "compile": 99.0})
    progress.line("@step configure")
    progress.count(1, 10)
    clock.now += 300
    progress.count(2, 10)
    assert progress.estimate() is None
    progress.line("@step compile")
    progress.count(1, 100)
    clock.now += 60
    progress.count(2, 100)
    assert progress.estimate() == pytest.approx(98 * 60)


def test_without_terminal_a_line_is_printed_each_minute_and_step() -> None:
    clock = Clock()
    progress, out = make(clock)
    progress.line("@step configure")
    clock.now += 5
    progress.line("@step compile")
    for second in range(1, 181):
        clock.now += 1
        progress.line(f"@ninja {second}/1000 2 {second}.0@ x")
    said = out.getvalue().splitlines()
    assert len(said) == 2 + 3
    assert said[0].startswith("[2/5] llvm, configure")
    assert "compile 60/1000, 1 min 05 s" in said[2]


def test_github_log_has_a_group_and_no_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    progress, out = make(Clock(), terminal=True)
    with progress:
        progress.line("@step compile")
    plain = [line.strip() for line in out.getvalue().splitlines()]
    assert plain[0] == "::group::llvm"
    assert plain[-1] == "::endgroup::"
    assert any("llvm, compile" in line for line in plain)


def test_summary_has_the_seconds_of_each_step() -> None:
    clock = Clock()
    progress, _ = make(clock)
    with progress:
        for name, seconds in (("configure", 3), ("compile", 50), ("configure", 2), ("done", 4)):
            progress.line(f"@step {name}")
            clock.now += seconds
    clock.now += 1000
    assert progress.summary() == {"configure": 5, "compile": 50, "export": 4}
    assert progress.elapsed() == 59


@pytest.mark.parametrize("line", ["@ninja 1/2 1 1.2.3@ x", f"@count {'9' * 5000}/1", f"@ninja {'9' * 5000}/1 1 1.0@ x"])
def test_malformed_progress_line_is_not_consumed(line: str) -> None:
    progress, _ = make(Clock())
    assert not progress.line(line)


def test_overlong_number_of_interfaces_is_unknown() -> None:
    word = isolation._WORD
    lines = (f"{word} 2", f"{word} unknown", f"{word} {'9' * 5000}", "x")
    assert [isolation.answer(line) for line in lines] == [2, -1, -1, None]
