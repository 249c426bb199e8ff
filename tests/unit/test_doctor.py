"""The doctor: works with nothing installed, says what to install, and its exit code tells."""

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
    """A machine with no program at all and no network."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def refuse(*args: object, **kwargs: object) -> socket.socket:
        raise OSError("no network here")

    monkeypatch.setattr(socket, "create_connection", refuse)
    return Cache(tmp_path / "cache")


def install(bare: Cache, name: str, script: str) -> None:
    """A program of that name that runs `script`."""
    program = bare.root.parent / "bin" / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def found(cache: Cache) -> dict[str, Check]:
    return {check.name: check for check in doctor.examine(cache)}


def test_with_nothing_installed_it_says_what_to_install(bare: Cache) -> None:
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


def test_exit_code_is_the_first_failures() -> None:
    fine, disk = Check("a", "ok", "x"), Check("disk", "fail", "x", "y", 9)
    for checks, code in (([fine], 0), ([fine, disk], 9), ([Check("buildah", "fail", "x"), disk], 8)):
        assert doctor.exit_code(checks) == code


def test_a_cache_that_cannot_be_one(bare: Cache) -> None:
    bare.root.touch()
    checks = list(doctor.examine(bare))
    assert (checks[0].name, checks[0].status, doctor.exit_code(checks)) == ("cache", "fail", 3)
    assert str(bare.root) in checks[0].detail
    for check in checks:
        assert check.fix or check.status == "ok", check


@pytest.mark.parametrize("proxy", ["http://proxy:99999999", "http://[::1"])
def test_a_proxy_that_is_no_address(bare: Cache, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    assert found(bare)["git-host"].status == "warn"


def test_an_old_buildah_is_refused(bare: Cache) -> None:
    install(bare, "buildah", "echo 'buildah version 1.19.6 (image-spec 1.0.1)'")
    assert found(bare)["buildah"].status == "fail"
    install(bare, "buildah", "echo 'buildah version 1.28.2 (image-spec 1.1.0)'")
    assert found(bare)["buildah"] == Check("buildah", "ok", "1.28.2")


def test_too_little_disk_and_memory(bare: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "disk_free", lambda _: 5 * 1000**3)
    monkeypatch.setattr(resources, "memory_available", lambda: 2 * resources.GIB)
    checks = found(bare)
    assert (checks["disk"].status, checks["disk"].code) == ("fail", 9)
    assert subset_of(DISTRIBUTION, needs_for("3.7.1")).disk == FULL_DISK
    assert checks["memory"].status == "warn"


def test_emulators_are_looked_for_as_the_build_does(bare: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_verb_prints_json_and_leaves_with_the_code(bare: Cache) -> None:
    app = typer.Typer()
    app.command()(verb)
    result = CliRunner().invoke(app, ["--json", "--cache", os.fspath(bare.root)])
    said = json.loads(result.stdout)
    assert (result.exit_code, said["ready"], said["exit_code"]) == (8, False, 8)
    spoken = CliRunner().invoke(app, ["--cache", os.fspath(bare.root)])
    assert (spoken.exit_code, spoken.stdout) == (8, ""), "standard output is data"
