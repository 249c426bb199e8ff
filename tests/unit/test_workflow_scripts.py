"""Tests of the scripts that workflows call."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from scripts import compiler_cache
from toolchain.trust.keys import new_key

TOP = Path(__file__).resolve().parents[2]
DAY = 86400.0


def script(name: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TOP / "scripts" / name)],
        env={"PATH": os.environ["PATH"], **env},
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )


# Keys


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    found = {"": "", "text": "no key"}
    for name in ("one", "other"):
        new_key(tmp_path / name)
        found[name], found[f"{name}.pub"] = (tmp_path / name).read_text(), (tmp_path / f"{name}.pub").read_text()
    return found


@pytest.mark.parametrize(
    ("private", "public", "told"),
    [
        ("one", "one.pub", ""),
        ("one", "other.pub", "belong"),
        ("", "one.pub", "SIGNING_KEY"),
        ("one", "", "PUBLIC_KEY"),
        ("text", "one.pub", "private"),
        ("one", "text", "public"),
        ("one", "one", "public"),
    ],
)
def test_signing_key_must_belong_to_the_public_key(keys: dict[str, str], private: str, public: str, told: str) -> None:
    done = script("same_key.sh", SIGNING_KEY=keys[private], PUBLIC_KEY=keys[public])
    assert (done.returncode, told in done.stdout) == (1 if told else 0, True), done.stdout + done.stderr
    assert "PRIVATE" not in done.stdout + done.stderr


# Requests


@pytest.mark.parametrize(
    ("stage", "env", "arches", "told"),
    [
        ("llvm", {}, '["arm64"]', ""),
        ("triton", {"TOOLCHAIN_SOURCE": "triton=pypi:triton==3.7.1"}, '["amd64"]', "prebuilt code (triton-wheel)"),
        # The configuration of the workflows names an LLVM, so the Triton may be unknown.
        ("triton", {"TOOLCHAIN_TRITON": "1" * 40}, '["amd64"]', ""),
        ("triton", {}, '["arm64"]', "only build Triton for amd64"),
        ("triton", {"TOOLCHAIN_ONLY": "tablegen"}, '["amd64"]', "whole of LLVM"),
        ("llvm", {}, "[]", "arches is not a JSON list"),
        ("llvm", {"TOOLCHAIN_SOURCE": "llvm="}, '["amd64"]', "NAME=VALUE"),
    ],
)
def test_request_that_the_tool_refuses_is_reported_before_the_build(
    tmp_path: Path, stage: str, env: dict[str, str], arches: str, told: str
) -> None:
    given = {
        "STAGE": stage,
        "BASES": '["debian13"]',
        "ARCHES": arches,
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    config = {"TOOLCHAIN_CONFIG": str(TOP / ".github/toolchain.toml"), "TOOLCHAIN_CACHE": str(tmp_path / "cache")}
    done = script("asked.sh", **given, **config, **env)
    assert done.returncode == (1 if told else 0), done.stdout + done.stderr
    if told:
        assert "::error::" in done.stdout
        assert told in done.stdout
    else:
        assert "llvm-triton-" in (tmp_path / "summary").read_text()


# Findings

_GH = """#!/bin/sh
echo "$*" >>"$GH_CALLS"
case "$*" in
  *"--jq .has_issues") echo "$HAS_ISSUES" ;;
  *--paginate*) shift 3; jq -r "$2" "$KNOWN" ;;
  *dispatches*) ;;
  *title=*) [ -z "${FAIL:-}" ] || exit 1; echo https://example.test/1 ;;
esac
"""


def findings(tmp_path: Path, count: int, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script on findings that can be built, and return the process and its calls of `gh`."""
    (tmp_path / "gh").write_text(_GH)
    (tmp_path / "gh").chmod(0o755)
    rows = [
        {"title": f"LLVM {n}", "why": "it's new", "build": {"source": f"llvm=u@{n}", "triton": ""}}
        for n in range(count)
    ]
    known = tmp_path / "known"
    if not known.exists():
        known.write_text("[]")
    calls = tmp_path / "calls"
    given = {
        "FINDINGS": json.dumps(rows), "ISSUES": "5", "BUILDS": "1", "REF": "main", "HAS_ISSUES": "true",
        "KNOWN": str(known),
        "GH_CALLS": str(calls), "GITHUB_REPOSITORY": "a/b", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        [str(TOP / "scripts/open_findings.sh")], env=given | env, capture_output=True, text=True, check=False
    )
    return done, calls.read_text().splitlines()


def test_issues_and_builds_of_one_run_are_limited(tmp_path: Path) -> None:
    done, calls = findings(tmp_path, 9)
    assert done.returncode == 0, done.stderr
    assert sum("title=" in call for call in calls) == 5
    (build,) = [call for call in calls if "dispatches" in call]
    assert "inputs[only]=tablegen" in build
    assert "inputs[source]=llvm=u@0" in build
    # The issue is opened before the build, because a later run recognises the finding by its issue.
    assert calls.index(build) > next(n for n, call in enumerate(calls) if "title=LLVM 0" in call)
    assert (tmp_path / "summary").read_text().count("next run") == 4


def test_failure_to_open_an_issue_starts_no_build(tmp_path: Path) -> None:
    done, calls = findings(tmp_path, 1, FAIL="1")
    assert done.returncode != 0
    assert not any("dispatches" in call for call in calls)


def test_only_issues_of_the_bot_mark_a_finding_as_known(tmp_path: Path) -> None:
    issues = [
        {"title": "LLVM 0", "user": {"login": "stranger"}},
        {"title": "LLVM 1", "user": {"login": "github-actions[bot]"}},
    ]
    (tmp_path / "known").write_text(json.dumps(issues))
    done, calls = findings(tmp_path, 2)
    assert done.returncode == 0, done.stderr
    assert [call for call in calls if "title=" in call and "LLVM 0" in call]
    assert not [call for call in calls if "title=" in call and "LLVM 1" in call]


def test_disabled_issues_start_no_build(tmp_path: Path) -> None:
    done, calls = findings(tmp_path, 2, HAS_ISSUES="false")
    assert done.returncode == 0
    assert len(calls) == 1
    assert "disabled" in done.stdout


# The compiler cache


def cache_of(folder: Path, ages: dict[str, float], *, size: int = 100) -> Path:
    for name, days in ages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (1000 * DAY - days * DAY,) * 2)
    return folder


def test_objects_unused_for_two_weeks_are_removed(tmp_path: Path) -> None:
    folder = cache_of(tmp_path / "ccache", {"a/1R": 0, "a/2R": 13, "b/3M": 15, "stats": 40})
    assert compiler_cache.trim(folder, days=14, limit=10**9, now=1000 * DAY) == (2, 1)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"1R", "2R", "stats", ".objects-before"}


def test_oldest_objects_above_the_limit_are_removed(tmp_path: Path) -> None:
    folder = cache_of(tmp_path / "ccache", {"1R": 1, "2R": 2, "3R": 3})
    assert compiler_cache.trim(folder, days=14, limit=200, now=1000 * DAY) == (2, 1)
    assert not (folder / "3R").exists()


def test_cache_is_changed_only_by_a_new_object(tmp_path: Path) -> None:
    folder = cache_of(tmp_path / "ccache", {"1R": 1, "stats": 1})
    compiler_cache.trim(folder, days=14, limit=10**9, now=1000 * DAY)
    (folder / "stats").write_text("one hit more")
    os.utime(folder / "1R")
    assert not compiler_cache.changed(folder)
    (folder / "2R").write_text("an object")
    assert compiler_cache.changed(folder)


def test_missing_compiler_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    assert compiler_cache.main(["trim", str(tmp_path / "none")]) == 0
    assert compiler_cache.main(["changed", str(tmp_path / "none")]) == 0
    assert (tmp_path / "output").read_text() == "changed=false\n"
    cache_of(tmp_path / "none", {"1R": 0})
    compiler_cache.main(["changed", str(tmp_path / "none")])
    assert (tmp_path / "output").read_text() == "changed=false\nchanged=true\n"
