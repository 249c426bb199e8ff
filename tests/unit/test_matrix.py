"""Tests of scripts/matrix.py, without the builds, because these take hours."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import matrix

LOG = """@ninja 1/9 1 0.1@ a
CPU of this run, user and system: 1m2.000s 0m3.000s
@ninja 3781/3781 1 0.1@ b
CPU of this run, user and system: 175m22.4s 12m16.000s
"""
CHECKS = [{"name": "libraries", "ok": True, "detail": ""}, {"name": "symbols", "ok": True, "detail": "34184 of 354"}]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the calls of `toolchain` by fake results, and return the list of the calls."""
    calls: list[str] = []

    def toolchain(*words: str) -> Any:
        calls.append(" ".join(words[:2]))
        version = next((word.rpartition("-")[2] for word in words if word.startswith("llvm=")), "")
        rows: list[dict[str, Any]] = [{"name": "llvm", "input_digest": f"sha256:{version}llvm"}]
        if words[1:2] == ("triton",):
            rows.append({"name": "triton", "input_digest": f"sha256:{version}triton"})
        for row in rows:
            facts = {
                "version": f"{version}.1.0",
                "serves": "3.1",
                "blob_bytes": 5,
                "disk_bytes": 7,
                "total_seconds": 9.4,
            }
            wheels = {"wheels": [{"file": "triton.whl", "digest": "x", "bytes": 3}]}
            more = wheels if row["name"] == "triton" else {"contract": {"checks": CHECKS}}
            row |= {"image": row["name"], "facts": facts | more}
        return {"stages": rows}

    shutil.copy(matrix.TRIED, tmp_path / "tried.toml")
    monkeypatch.setattr(matrix, "TRIED", tmp_path / "tried.toml")
    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "matrix.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "generations.md")
    monkeypatch.setattr(matrix, "toolchain", toolchain)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "logs").mkdir(parents=True)
    (tmp_path / "cache" / "logs" / "llvm-19llvm-1.log").write_text(LOG)
    return calls


def checkouts(folder: Path) -> Path:
    """Create a repository with an empty commit for each Triton, and return their folder."""
    for pair in matrix.PAIRS:
        top = folder / "tritons" / pair.triton
        top.mkdir(parents=True)
        git = ["git", "-C", str(top), "-c", "user.name=x", "-c", "user.email=x@example.org"]
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
            subprocess.run([*git, *words], check=True)
    return folder / "tritons"


def test_pair_is_built_again_only_if_its_inputs_change(asked: list[str], tmp_path: Path) -> None:
    words = argparse.Namespace(tritons=checkouts(tmp_path), only="19,21", machine="here")
    matrix.build(words)
    assert [call for call in asked if call.startswith("build")] == ["build llvm", "build triton"] * 2
    assert asked.count("cache prune") == 4, "one tree at a time"
    asked.clear()
    matrix.build(words)
    assert set(asked) == {"plan llvm", "plan triton"}
    results = matrix.read()
    results["llvm-19"]["input_digest"] = "of other inputs"
    matrix.RESULTS.write_text(json.dumps(results))
    asked.clear()
    matrix.build(words)
    assert [call for call in asked if call.startswith("build")] == ["build llvm"]


def test_write_updates_the_page_and_the_rows_of_tried_builds(asked: list[str], tmp_path: Path) -> None:
    matrix.build(argparse.Namespace(tritons=checkouts(tmp_path), only="19", machine="here"))
    assert asked
    before = tomllib.loads(matrix.TRIED.read_text())["tried"]
    for _ in range(2):  # writing again changes nothing
        matrix.write(argparse.Namespace())
    page = matrix.PAGE.read_text()
    assert "| 19.1.0 | 3.1 | 3,781 | 10,522 and 736 | 5 | 7 | 2 of 2 | 34,184 of 354 |" in page
    assert "`triton.whl` 3" in page
    rows = tomllib.loads(matrix.TRIED.read_text())["tried"]
    new = [row for row in rows if row not in before]
    assert [(row["what"], row["as"]) for row in new] == [("llvm", "glibc 2.31"), ("wheel", "glibc 2.31")]
    assert (new[0]["triton"], new[1]["llvm"], len(new[1]["of"])) == ("3.1", "19.1.0", 40)
