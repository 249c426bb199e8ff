"""Tests of containerfiles/triton/setup.sh on small trees of each layout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolchain.core.recipe import root

OFFLINE = 'os.getenv("TRITON_OFFLINE_BUILD")\nos.getenv("TRITON_BUILD_DIR")\nos.getenv("TRITON_APPEND_CMAKE_ARGS")\n'
OLD = """\
Package("pybind11", "PYBIND11_SYSPATH")
download_and_copy(variable="TRITON_PTXAS_PATH")
download_and_copy(
    variable="TRITON_CUPTI_PATH",
)
"""


def run(tmp_path: Path, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Source the script with /build and /src below `tmp_path`, and run a command."""
    text = (root() / "containerfiles/triton/setup.sh").read_text().replace("/src/triton", f"{tmp_path}/triton")
    (tmp_path / "build").mkdir(exist_ok=True)
    (tmp_path / "setup.sh").write_text(re.sub(r"(?<!setup)/build/", f"{tmp_path}/build/", text))
    bin_ = tmp_path / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "cmake").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (bin_ / "cmake").chmod(0o755)
    (bin_ / "pybind11.py").write_text("def get_include(): return '/wheels/pybind11/include'\n")
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": str(bin_),
        "TRITON_BUILD_DIR": f"{tmp_path}/build/cmake",
        "TRITON_APPEND_CMAKE_ARGS": "-DA=1 '-DB=two words'",
        **env,
    }
    words = ["sh", "-euc", f'. "{tmp_path}/setup.sh"; {command}', "sh"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def prepared(tmp_path: Path, then: str) -> str:
    done = run(tmp_path, f'prepare_setup "{sys.executable}"; {then}')
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "build/src/python").mkdir(parents=True)
    return tmp_path / "build/src"


def test_setup_folder_is_the_folder_with_setup_py(source: Path, tmp_path: Path) -> None:
    (source / "python/setup.py").write_text(OLD)
    assert prepared(tmp_path, 'echo "$setup"').strip() == str(source / "python")
    (source / "setup.py").write_text(OFFLINE)
    assert prepared(tmp_path, 'echo "$setup"').strip() == str(source)


def test_tree_without_setup_py_exits_with_code_49(source: Path, tmp_path: Path) -> None:
    done = run(tmp_path, f'prepare_setup "{sys.executable}"')
    assert done.returncode == 49
    assert "python/setup.py" in done.stderr
    assert source.is_dir()


def test_an_old_setup_py_downloads_nothing(source: Path, tmp_path: Path) -> None:
    (source / "python/setup.py").write_text(OLD)
    lines = prepared(tmp_path, "env").splitlines()
    empty = f"{tmp_path}/build/empty"
    for name, value in (
        ("TRITON_PTXAS_PATH", empty),
        ("TRITON_CUPTI_PATH", empty),
        ("JSON_SYSPATH", empty),
        ("PYBIND11_SYSPATH", "/wheels/pybind11"),
        ("TRITON_BUILD_PROTON", "OFF"),
    ):
        assert f"{name}={value}" in lines


def test_setup_py_with_offline_builds_gets_only_the_offline_variable(source: Path, tmp_path: Path) -> None:
    (source / "setup.py").write_text(f"import pybind11\n{OFFLINE}{OLD}")
    output = prepared(tmp_path, "env")
    assert "TRITON_OFFLINE_BUILD=1\n" in output
    assert "TRITON_PTXAS_PATH" not in output
    assert "PYBIND11_SYSPATH" not in output
    assert not (tmp_path / "build/tools/cmake").exists()
    # In newer trees, python/build_helpers.py reads these variables.
    (source / "setup.py").write_text("import pybind11\n")
    (source / "python/build_helpers.py").write_text(OFFLINE)
    prepared(tmp_path, "true")
    assert not (tmp_path / "build/tools/cmake").exists()
    assert not (source / "build").exists()


def test_old_setup_py_configures_with_the_options_and_folder_of_the_build(source: Path, tmp_path: Path) -> None:
    (source / "python/setup.py").write_text(OLD)
    options = prepared(tmp_path, '"$setup/../../tools/cmake" /tree -DA=0').splitlines()
    assert options == ["/tree", "-DA=0", "-DA=1", "-DB=two words"]
    for option in ("--build", "--version"):
        assert prepared(tmp_path, f'"$setup/../../tools/cmake" {option} x').split() == [option, "x"]
    (link,) = (source / "python/build").iterdir()
    assert link.name.startswith("cmake.linux-")
    assert link.name.endswith(f"-cpython-{sys.version_info[0]}.{sys.version_info[1]}")
    assert link.resolve() == tmp_path / "build/cmake"


def test_unit_tests_are_emptied_in_a_tree_without_an_option_for_them(tmp_path: Path) -> None:
    for tree, text, left in (("old", "add_subdirectory(unittest)\n", ""), ("new", "option(TRITON_BUILD_UT)\n", "x\n")):
        folder = tmp_path / tree
        (folder / "triton/unittest").mkdir(parents=True)
        (folder / "triton/CMakeLists.txt").write_text(text)
        (folder / "triton/unittest/CMakeLists.txt").write_text("x\n")
        assert run(folder, "lay_source").returncode == 0
        assert (folder / "build/src/unittest/CMakeLists.txt").read_text() == left
        assert (folder / "triton/unittest/CMakeLists.txt").read_text() == "x\n"
