"""Both packages, installed as a user installs them, from wheels and editable, and run outside a checkout."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.tests.emulated_objects import compile_all, rule

TOP = Path(__file__).resolve().parents[2]
LLVM = "llvm=https://github.com/llvm/llvm-project@7f77ca0dbda4abbf9af06537b2c475f20ccd6007"
# The script checks a code object as a build does: in namespaces, in which both packages must be visible.
_CHECK = """
import json, sys
from pathlib import Path
from toolchain.core import plugins
from toolchain.core.cache import Cache
from toolchain.core.check_result import Object

def main():
    path = Path(sys.argv[1])
    check = plugins.hook("check", "--check")
    check.require_check()
    numbers = check.check_objects([Object(path, path.name, "", "")], path.parent, Cache(Path("cache")), count=0, jobs=1,
                                  progress=None, note=lambda name, row: None)
    print(json.dumps(numbers))

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Installed:
    """A virtual environment with one or both packages."""

    folder: Path

    def python(self, *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self._run(self.folder / "bin" / "python", *words, cwd=cwd)

    def toolchain(self, *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self._run(self.folder / "bin" / "toolchain", *words, cwd=cwd)

    @staticmethod
    def _run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLCHAIN_", "PYTHON"))}
        env["TOOLCHAIN_CACHE"] = str(cwd / "cache")
        return subprocess.run(list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, check=False)


def pip(*words: str | Path) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    command = [sys.executable, "-m", "pip", *map(str, words), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def environment(folder: Path, install: Callable[[Path], None]) -> Installed:
    """Make a virtual environment with the dependencies of this one, into which `install` installs the packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for path in (Path(name) for name in sys.path if Path(name).name == "site-packages"):
        for item in path.iterdir():
            ours = item.name.lower().lstrip("_").startswith("toolchain") or item.suffix == ".pth"
            if not ours and not (site / item.name).exists():
                (site / item.name).symlink_to(item)
    install(folder / "bin" / "python")
    return Installed(folder)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for source in (TOP, TOP / "lab"):
        pip("wheel", "--wheel-dir", folder, source)
    return folder


@pytest.fixture(scope="module", params=["wheels", pytest.param("editable", marks=pytest.mark.nightly)])
def both(request: pytest.FixtureRequest, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    def install(python: Path) -> None:
        for name, source in (("toolchain-", TOP), ("toolchain_lab-", TOP / "lab")):
            if request.param == "editable":
                pip("--python", python, "install", "--editable", source)
            else:
                (wheel,) = wheels.glob(f"{name}*.whl")
                pip("--python", python, "install", "--no-index", wheel)

    return environment(tmp_path_factory.mktemp("both") / "venv", install)


@pytest.fixture(scope="module")
def alone(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    (wheel,) = wheels.glob("toolchain-*.whl")
    folder = tmp_path_factory.mktemp("alone") / "venv"
    return environment(folder, lambda python: pip("--python", python, "install", "--no-index", wheel))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = compile_all([rule(tmp_path_factory.mktemp("kernels"), "row_sum", "gfx942")])
    return path


def plan(installed: Installed, folder: Path) -> Any:
    words = ("--aotriton", "0.13b", "--source", LLVM, "--drop-binary", "libdevice", "--json")
    done = installed.toolchain("plan", "aotriton", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_both_packages_work_without_a_checkout(both: Installed, kernel: Path, tmp_path: Path) -> None:
    assert plan(both, tmp_path), "recipes and data are found"
    assert "kernels check" in both.toolchain("kernels", "check", "--help", cwd=tmp_path).stdout
    done = both.toolchain("kernels", "diff", kernel.parent, kernel.parent, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["same"] == 1
    done = both.toolchain("report", kernel.parent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "chart" in (tmp_path / "report.html").read_text(encoding="utf-8").lower()


def test_check_in_namespaces_finds_both_packages(both: Installed, kernel: Path, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(_CHECK)
    done = both.python("check.py", kernel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert (numbers["checked"], numbers["skipped"]) == (0, 1), "there is no case for it, so it was loaded and read"


def test_tool_without_the_lab_plans_and_names_the_missing_package(
    alone: Installed, wheels: Path, tmp_path: Path
) -> None:
    assert plan(alone, tmp_path)
    help_text = alone.toolchain("--help", cwd=tmp_path).stdout
    assert "verify" in help_text
    assert "emulate" not in help_text
    (wheel,) = wheels.glob("toolchain_lab-*.whl")
    for words, code in ((("emulate", "x.hsaco"), 2), (("kernels", "diff", "a", "b"), 2), (("inspect", wheel), 3)):
        done = alone.toolchain(*words, "--json", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        told = json.loads(done.stdout)
        assert told["exit_code"] == code
        assert "toolchain-lab" in told["what"]
    done = alone.python("-c", "from toolchain.stages.kernel_check import require_check; require_check()", cwd=tmp_path)
    assert "ConfigError" in done.stderr


def test_each_wheel_has_the_licenses_of_its_files(wheels: Path) -> None:
    for name, license_, files in (
        ("toolchain-", "Apache-2.0", {"LICENSE"}),
        ("toolchain_lab-", "Apache-2.0 AND MIT", {"LICENSE", "chart.LICENSE.md", "color.LICENSE.md"}),
    ):
        (wheel,) = wheels.glob(f"{name}*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            fields = email.message_from_bytes(archive.read(metadata))
        assert fields["License-Expression"] == license_
        assert {Path(file).name for file in fields.get_all("License-File", [])} == files
