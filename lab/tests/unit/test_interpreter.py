"""The search for an interpreter's Triton, which reads files and does not run the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolchain.core.errors import ConfigError, EngineError, KernelError
from toolchain_lab.examine.interpreter import interpreter_at, triton_of

BACKENDS = "[triton.backends]\namd = triton.backends.amd\n"


def installation(prefix: Path) -> Path:
    """Return a Python that writes a file when it runs."""
    program = prefix / "bin" / "python3.12"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n: > {prefix}/ran\n")
    program.chmod(0o755)
    (prefix / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (prefix / "lib" / "python3.12" / "os.py").touch()
    return program


def triton(folder: Path) -> Path:
    (folder / "triton").mkdir(parents=True)
    (folder / "triton" / "__init__.py").touch()
    return folder / "triton"


def environment(folder: Path, program: Path, *, system: bool = False) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(program)
    (folder / "pyvenv.cfg").write_text(f"home = {program.parent}\ninclude-system-site-packages = {system}\n")
    (folder / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    return folder / "lib" / "python3.12" / "site-packages"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def parts(python: Path) -> dict[str, Path]:
    return {name: path for path, name in triton_of(interpreter_at(str(python)), "3.12")}


def test_installation_exposes_only_its_program_and_libraries(tmp_path: Path) -> None:
    program = installation(tmp_path / "opt")
    (tmp_path / "opt" / "private").touch()
    found = interpreter_at(str(program))
    assert found.files() == [program, tmp_path / "opt" / "lib"]
    assert found.environment is None
    assert not (tmp_path / "opt" / "ran").exists()


def test_system_program_needs_no_more_files() -> None:
    assert interpreter_at("/usr/bin/env").files() == []


def test_triton_of_environment_or_inherited_installation_is_found(tmp_path: Path) -> None:
    program = installation(tmp_path / "opt")
    outer = triton(tmp_path / "opt" / "lib" / "python3.12" / "site-packages")
    site = environment(tmp_path / "alone", program)
    with pytest.raises(ConfigError):
        parts(tmp_path / "alone" / "bin" / "python")
    triton(site)
    assert parts(tmp_path / "alone" / "bin" / "python") == {"triton": site / "triton"}
    inner = environment(tmp_path / "both", program, system=True)
    assert parts(tmp_path / "both" / "bin" / "python") == {"triton": outer}
    triton(inner)
    assert parts(tmp_path / "both" / "bin" / "python") == {"triton": inner / "triton"}, "the environment comes first"
    assert not (tmp_path / "opt" / "ran").exists()


def test_triton_of_user_is_found_outside_of_environments(tmp_path: Path) -> None:
    program = installation(tmp_path / "opt")
    mine = triton(tmp_path / "home" / ".local" / "lib" / "python3.12" / "site-packages")
    assert parts(program) == {"triton": mine}


def test_path_file_adds_folders_and_runs_no_code(tmp_path: Path) -> None:
    program = installation(tmp_path / "opt")
    site = environment(tmp_path / "venv", program)
    checkout = triton(tmp_path / "checkout")
    (site / "a.pth").write_text(
        f"import os; os.mkdir({str(tmp_path / 'ran')!r})\n# {tmp_path}\n\n{tmp_path / 'checkout'}\n"
    )
    assert parts(tmp_path / "venv" / "bin" / "python") == {"triton": checkout}
    assert not (tmp_path / "ran").exists()


def test_backend_metadata_and_bundled_libraries_are_included(tmp_path: Path) -> None:
    program = installation(tmp_path / "opt")
    site = environment(tmp_path / "venv", program)
    triton(site)
    for name, text in (
        ("pytorch_triton-3.6.0.dist-info", BACKENDS),
        ("other-1.dist-info", "[console_scripts]\nx = other:main\n"),
        ("foreign-1.dist-info", "[triton.backends]\nforeign = foreign.backend\n"),
    ):
        (site / name).mkdir()
        (site / name / "METADATA").write_text("Name: x\nVersion: 1\n")
        (site / name / "entry_points.txt").write_text(text)
    (site / "pytorch_triton.libs").mkdir()
    (site / "other.libs").mkdir()
    assert set(parts(tmp_path / "venv" / "bin" / "python")) == {
        "triton",
        "pytorch_triton-3.6.0.dist-info",
        "pytorch_triton.libs",
    }


def test_current_folder_and_pythonpath_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = installation(tmp_path / "opt")
    triton(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    with pytest.raises(ConfigError):
        parts(program)


def test_path_that_is_not_an_interpreter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "shims" / "python3.12"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
    shim.chmod(0o755)
    with pytest.raises(KernelError):
        interpreter_at(str(shim))
    with pytest.raises(EngineError):
        interpreter_at(str(tmp_path / "nowhere"))
    monkeypatch.chdir(shim.parent)
    monkeypatch.setenv("PATH", f".::{Path(sys.executable).parent}")
    with pytest.raises(EngineError):
        interpreter_at("python3.12")
    assert not (tmp_path / "ran").exists()
