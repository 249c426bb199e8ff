"""Tests of the limits of containers, of the user's values for them, and of the page that lists them."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.errors import ConfigError
from toolchain.engine import container_limits
from toolchain.engine.docker_watch import watched

PAGE = Path(__file__).resolve().parents[2] / "docs" / "isolation.md"


def test_no_recorded_build_reaches_half_of_a_limit() -> None:
    recorded = [row for row in container_limits.rows() if row.source]
    assert {row.name for row in recorded} >= {"written-bytes", "hours"}
    assert [row.name for row in recorded if row.most * 2 > row.value] == []


def test_page_lists_all_limits() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Limits of a container")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([a-z-]+)` \| (\d+)[^|]* \| ([^|]+) \|$", text, re.MULTILINE)
    assert listed == [(row.name, str(row.value), row.what) for row in container_limits.rows()]


def test_process_limit_grows_with_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_limits, "cores", lambda: 2)
    assert container_limits.values()["processes"] == 4096
    monkeypatch.setattr(container_limits, "cores", lambda: 256)
    assert container_limits.values()["processes"] == 16384


def test_user_values_replace_the_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLCHAIN_LIMITS", "hours=0.5,written-bytes=2e9")
    limits = container_limits.limits_for(tmp_path, [tmp_path])
    assert (limits["seconds"], limits["written_bytes"]) == (1800, 2_000_000_000)
    assert container_limits.limits_for(tmp_path, [], timed=False)["seconds"] == 0


@pytest.mark.parametrize(
    "text", ["hour=1", "hours", "hours=", "hours=0", "hours=-1", "hours=inf", "hours=nan", "processes=1e19", "x"]
)
def test_invalid_value_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TOOLCHAIN_LIMITS", text)
    with pytest.raises(ConfigError) as caught:
        container_limits.values()
    assert text in caught.value.what


def test_container_is_ended_if_its_limits_cannot_be_checked(tmp_path: Path) -> None:
    """A thread that only stopped would leave the container without limits."""
    place, ended = tmp_path / "place", threading.Event()
    place.mkdir()
    limits = container_limits.limits_for(tmp_path / "log", [place])
    with refused("limits-unchecked"), watched(limits, processes=lambda: 1, kill=ended.set):
        place.rmdir()
        assert ended.wait(300)


def test_kill_is_repeated_until_docker_knows_the_container(tmp_path: Path) -> None:
    limits = container_limits.limits_for(tmp_path / "log", [])
    limits["seconds"] = 0.001
    tries, ended = list[float](), threading.Event()

    def kill() -> None:
        tries.append(time.monotonic())
        if len(tries) > 1:  # docker does not know the container at the first attempt
            ended.set()

    with watched(limits, processes=lambda: 1, kill=kill) as watch:
        assert ended.wait(20)
    assert watch.reached == "hours"


def test_empty_note_is_read_as_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / container_limits._NOTE).touch()
    assert container_limits.reached(tmp_path) == container_limits.Reached("free-bytes", ())
