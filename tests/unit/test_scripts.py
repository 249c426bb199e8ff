"""The shell scripts: their lint, and the decisions of ./test."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.workflow_expressions import Scope, value_of

TOP = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    """Return the tracked files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("NOT A GIT CHECKOUT: what the repository holds is not checked")
    return [TOP / name for name in listed.stdout.split("\0") if name and (TOP / name).is_file()]


def test_shell_scripts_pass_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("SHELLCHECK IS NOT INSTALLED: no shell script is checked (apt-get install shellcheck)")
    scripts = [p for p in tracked() if p.suffix == ".sh" or p.read_bytes()[:9] == b"#!/bin/sh"]
    assert len(scripts) >= 5
    done = subprocess.run(
        ["shellcheck", "-x", "-S", "warning", *scripts], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_pip_installs_locks_with_hashes_and_without_dependencies() -> None:
    places = [p for p in tracked() if p.suffix in {".sh", ".yml", ".md", ".py"} and p != Path(__file__)]
    said = [
        line
        for p in places
        for line in p.read_text().splitlines()
        if re.search(r"(?<!uv )pip.*requirements/\S+\.lock", line)
    ]
    assert len(said) >= 7
    assert [line for line in said if "--no-deps --require-hashes" not in line.replace('", "', " ")] == []


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """Write shell scripts to `folder`, and return an environment in which ./test finds them first."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "TOOLCHAIN_CACHE": str(folder / "no/folder")}


def test_too_little_disk_is_refused_before_installation(tmp_path: Path) -> None:
    env = programs(
        tmp_path, **{"df": "echo; echo /dev/vda 9 9 14600000 9% /", "dpkg-query": "exit 1", "apt-get": "exit 1"}
    )
    done = subprocess.run([TOP / "test"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, "")
    assert "14 GB free" in done.stderr
    assert "15 GB" in done.stderr


@pytest.mark.parametrize(("event", "marks"), [("schedule", "not full"), ("push", "not full and not nightly")])
def test_workflow_runs_nightly_tests_only_on_schedule(tmp_path: Path, event: str, marks: str) -> None:
    job = yaml.safe_load((TOP / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    nightly = value_of(job["env"]["TOOLCHAIN_TEST_NIGHTLY"], Scope({"github": {"event_name": event}}))
    _, asked = run_tests(tmp_path, nightly=nightly)
    runs = [
        "--durations=10 -n 2 tests/unit",
        "--durations=10 lab/tests",
        "--part quickstart --durations=10 tests/integration",
        "--part recipes --durations=10 tests/integration",
        "--part rest --durations=10 tests/integration",
    ]
    folders = [re.findall(r"--basetemp (\S+)", call) for call in asked]
    assert len({Path(folder) for [folder] in folders}) == len(runs)
    assert sorted(re.sub(r" --basetemp \S+", "", call) for call in asked) == [f"-m {marks} {run}" for run in runs]


def run_tests(venv: Path, *, nightly: str = "", fails: str = "") -> tuple[str, list[str]]:
    """Run ./test with a pytest that does nothing; return its output and the sorted arguments of all calls.

    Args:
        fails: a word in the arguments of the calls that fail.
    """
    note = f'echo "$*" >>{venv}/asked; case "$*" in *"{fails or "no such call"}"*) exit 1;; esac'
    locks = ("pyproject.toml", "lab/pyproject.toml", "requirements/test.lock")
    env = programs(
        venv, **{"df": "echo; echo / 9 9 99000000 9% /", "dpkg-query": "echo ok installed", "apt-get": "exit 1"}
    )
    programs(venv / "bin", pytest=note, ruff="", mypy="", toolchain="")
    (venv / ".prepared").write_text("".join((TOP / name).read_text() for name in locks))
    (venv / "asked").unlink(missing_ok=True)
    env |= {"TOOLCHAIN_VENV": str(venv), "TOOLCHAIN_TEST_NIGHTLY": nightly}
    done = subprocess.run([TOP / "test"], env=env, check=not fails, capture_output=True, text=True)
    return done.stdout, sorted((venv / "asked").read_text().splitlines())


def test_passed_lab_tests_run_again_only_nightly_or_with_other_files(tmp_path: Path) -> None:
    def lab_ran(**how: str) -> tuple[bool, bool]:
        said, asked = run_tests(tmp_path, **how)
        return any("lab/tests" in call for call in asked), "NOT RUN" in said

    assert lab_ran(fails="lab/tests") == (True, False)
    assert lab_ran() == (True, False)
    assert lab_ran() == (False, True)
    assert lab_ran(nightly="1") == (True, False)
    (tmp_path / ".lab-passed").write_text("other files")
    assert lab_ran() == (True, False)
