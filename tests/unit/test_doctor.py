"""Tests of `doctor`, which must also work on a machine where nothing is installed."""

from __future__ import annotations

import json
import os
import platform
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from toolchain.catalog.components import needs_for
from toolchain.cli import doctor
from toolchain.cli.doctor import Check
from toolchain.cli.doctor_cmd import doctor as verb
from toolchain.core.cache import Cache
from toolchain.engine import resources
from toolchain.stages.llvm_subset import DISTRIBUTION, FULL_DISK, subset_of


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Remove all programs from PATH, disable the network, and return an empty cache."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def refuse(*args: object, **kwargs: object) -> socket.socket:
        raise OSError("no network here")

    monkeypatch.setattr(socket, "create_connection", refuse)
    return Cache(tmp_path / "cache")


def install(bare: Cache, name: str, script: str) -> None:
    """Install a program that runs `script`."""
    program = bare.root.parent / "bin" / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def found(cache: Cache) -> dict[str, Check]:
    return {check.name: check for check in doctor.examine(cache)}


def test_missing_programs_are_reported_with_the_command_that_installs_them(bare: Cache) -> None:
    checks = found(bare)
    assert bare.is_ours, "what is written there before the first build must not keep `cache prune` away"
    for name in ("buildah", "mmdebstrap"):
        assert checks[name].status == "fail"
        assert checks[name].fix == f"apt-get install {name}"
    assert checks["isolation"].status == "fail"
    assert checks["docker"].status == "warn", "contract checks have another way"
    assert checks["git-host"].status == "warn"
    for check in checks.values():
        assert check.detail
        assert check.fix or check.status == "ok", check


def test_exit_code_is_that_of_the_first_failed_check() -> None:
    fine, disk = Check("a", "ok", "x"), Check("disk", "fail", "x", "y", 9)
    for checks, code in (([fine], 0), ([fine, disk], 9), ([Check("buildah", "fail", "x"), disk], 8)):
        assert doctor.exit_code(checks) == code


def test_cache_path_that_is_a_file_fails_the_check(bare: Cache) -> None:
    bare.root.touch()
    checks = list(doctor.examine(bare))
    assert (checks[0].name, checks[0].status, doctor.exit_code(checks)) == ("cache", "fail", 3)
    assert str(bare.root) in checks[0].detail
    for check in checks:
        assert check.fix or check.status == "ok", check


@pytest.mark.parametrize("proxy", ["http://proxy:99999999", "http://[::1"])
def test_invalid_proxy_address_is_a_warning(bare: Cache, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    assert found(bare)["git-host"].status == "warn"


def test_an_old_buildah_is_refused(bare: Cache) -> None:
    install(bare, "buildah", "echo 'buildah version 1.19.6 (image-spec 1.0.1)'")
    assert found(bare)["buildah"].status == "fail"
    install(bare, "buildah", "echo 'buildah version 1.28.2 (image-spec 1.1.0)'")
    assert found(bare)["buildah"] == Check("buildah", "ok", "1.28.2")


def test_too_little_disk_fails_and_too_little_memory_warns(bare: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "disk_free", lambda _: 5 * 1000**3)
    monkeypatch.setattr(resources, "memory_available", lambda: 2 * resources.GIB)
    checks = found(bare)
    assert (checks["disk"].status, checks["disk"].code) == ("fail", 9)
    assert subset_of(DISTRIBUTION, needs_for("3.7.1")).disk == FULL_DISK
    assert checks["memory"].status == "warn"


def test_missing_emulators_are_named_until_all_are_installed(bare: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    check = found(bare)["emulators"]
    assert (check.status, check.fix) == ("warn", "apt-get install qemu-user-static")
    install(bare, "qemu-aarch64-static", "exit 0")
    check = found(bare)["emulators"]
    assert check.status == "warn"
    assert "arm64: qemu-aarch64-static; ppc64le: qemu-ppc64le-static is not installed" in check.detail
    assert "x86_64" not in check.detail
    for name in ("ppc64le", "s390x"):
        install(bare, f"qemu-{name}-static", "exit 0")
    assert found(bare)["emulators"].status == "ok"


def test_verb_prints_json_and_exits_with_the_code_of_the_failure(bare: Cache) -> None:
    app = typer.Typer()
    app.command()(verb)
    result = CliRunner().invoke(app, ["--json", "--cache", os.fspath(bare.root)])
    said = json.loads(result.stdout)
    assert (result.exit_code, said["ready"], said["exit_code"]) == (8, False, 8)
    spoken = CliRunner().invoke(app, ["--cache", os.fspath(bare.root)])
    assert (spoken.exit_code, spoken.stderr) == (8, ""), "the checks are the result, so a file or pipe gets them"
    assert "not ready: " in spoken.stdout
