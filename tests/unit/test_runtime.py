"""engine/runtime.py: the program between buildah and its runtime."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from toolchain.engine import runtime


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """The program for a runtime that notes what it is told; a `sleep` that notes it too, in place of the real one."""
    log = tmp_path / "log"
    programs = tmp_path / "some programs"
    told = program(programs / "run'c", f'echo "$@" >>"{log}"; echo answer; exit 7')
    program(programs / "sleep", f'echo "sleep $1" >>"{log}"')
    monkeypatch.setenv("BUILDAH_RUNTIME", str(told))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "an invocation").mkdir()
    name, path = runtime.patient(tmp_path / "an invocation")
    assert name == "--runtime"
    return path, log


def test_everything_is_passed_on(asked: tuple[str, Path]) -> None:
    path, log = asked
    done = subprocess.run([path, "--root", "/a b", "kill", "name", "9"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "answer\n", "")
    assert log.read_text(encoding="utf-8") == "--root /a b kill name 9\n"


def test_only_what_lasts_is_asked_slowly(asked: tuple[str, Path]) -> None:
    path, log = asked
    for _ in range(2):  # a build runs one container after the other
        log.write_text("", encoding="utf-8")
        subprocess.run([path, "create", "--bundle", "x", "name"], check=False, capture_output=True)
        for _ in range(22):
            done = subprocess.run([path, "state", "name"], check=False, capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (7, "answer\n", "")
        lines = log.read_text(encoding="utf-8").splitlines()
        assert lines == ["create --bundle x name", *["state name"] * 20, *["sleep 1", "state name"] * 2]


def test_without_its_note_it_is_slow_and_right(asked: tuple[str, Path]) -> None:
    path, log = asked
    done = subprocess.run([path, "state", "name"], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("answer\n", "")
    assert log.read_text(encoding="utf-8").splitlines() == ["sleep 1", "state name"]


def test_no_runtime_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDAH_RUNTIME", "there-is-no-such-runtime")
    assert runtime.patient(tmp_path) == []


def test_what_buildah_takes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUILDAH_RUNTIME", raising=False)
    fake = "echo '      --runtime path           path to an alternate OCI runtime (default \"my-runtime\")'"
    program(tmp_path / "bin" / "buildah", fake)
    own = program(tmp_path / "bin" / "my-runtime", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    runtime._default.cache_clear()
    try:
        path = Path(runtime.patient(tmp_path)[1])
    finally:
        runtime._default.cache_clear()
    assert f"exec {own} " in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o777 == 0o700
