"""Shell scripts are checked like all other code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    """Every file of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("NOT A GIT CHECKOUT: what the repository holds is not checked")
    return [TOP / name for name in listed.stdout.split("\0") if name and (TOP / name).is_file()]


def test_shell_scripts_are_clean() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("SHELLCHECK IS NOT INSTALLED: no shell script is checked (apt-get install shellcheck)")
    scripts = [p for p in tracked() if p.suffix == ".sh" or p.read_bytes()[:9] == b"#!/bin/sh"]
    assert len(scripts) >= 5
    done = subprocess.run(
        ["shellcheck", "-x", "-S", "warning", *scripts], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_pip_is_told_to_look_no_further_than_a_lock() -> None:
    places = [p for p in tracked() if p.suffix in {".sh", ".yml", ".md", ".py"} and p != Path(__file__)]
    said = [
        line
        for p in places
        for line in p.read_text().splitlines()
        if re.search(r"(?<!uv )pip.*requirements/\S+\.lock", line)
    ]
    assert len(said) >= 7
    assert [line for line in said if "--no-deps --require-hashes" not in line.replace('", "', " ")] == []


def test_too_little_disk_is_told_before_anything_is_installed(tmp_path: Path) -> None:
    for name, text in (
        ("df", "echo; echo /dev/vda 9 9 14600000 9% /"),
        ("dpkg-query", "exit 1"),
        ("apt-get", "exit 1"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "TOOLCHAIN_CACHE": str(tmp_path / "no/folder")}
    done = subprocess.run([TOP / "test"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, "")
    assert "14 GB free" in done.stderr
    assert "15 GB" in done.stderr
