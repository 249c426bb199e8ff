"""Tests that packages import only packages of lower levels, and that names of modules are unique."""

from __future__ import annotations

import importlib.util
import re
import sys
from graphlib import CycleError
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOP / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and named tuples look up their module here
    spec.loader.exec_module(module)
    return module


HOUSE = script("house")


@pytest.fixture(scope="module")
def packages() -> dict[str, set[str]]:
    """Return the packages that each package of the tool imports."""
    found: dict[str, set[str]] = HOUSE.imports()
    return found


def test_no_two_packages_import_each_other(packages: dict[str, set[str]]) -> None:
    assert {"cli", "pipeline", "stages", "oci", "sources"} <= packages.keys()
    levels = HOUSE.levels(packages)
    assert all(levels[name] > levels[other] for name, others in packages.items() for other in others)


def test_stages_and_engine_are_independent_and_oci_imports_neither(packages: dict[str, set[str]]) -> None:
    assert "engine" not in packages["stages"]
    assert "stages" not in packages["engine"]
    assert not {"engine", "stages", "pipeline"} & packages["oci"]


def test_every_package_is_in_the_guide(packages: dict[str, set[str]]) -> None:
    guide = (TOP / "docs" / "develop.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)(?:/|\.py)`", guide))
    assert packages.keys() - named == set()


def test_the_tool_does_not_import_the_lab() -> None:
    modules = {**HOUSE.sources(), **HOUSE.sources(package=HOUSE.LAB)}
    imports = {
        module: {name.split(".")[0] for name in HOUSE.imported(path.read_text(encoding="utf-8"), frozenset(modules))}
        for module, path in modules.items()
    }
    of_lab = {module: names for module, names in imports.items() if module.startswith("toolchain_lab.")}
    assert any("toolchain" in names for names in of_lab.values())
    assert [module for module in imports.keys() - of_lab.keys() if "toolchain_lab" in imports[module]] == []


def test_no_two_packages_of_the_lab_import_each_other() -> None:
    packages = HOUSE.imports(package=HOUSE.LAB)
    assert {"emulator", "numbers", "examine", "report", "cli"} <= packages.keys()
    assert HOUSE.levels(packages)["emulator"] == 0


def test_the_emulator_imports_nothing_of_the_tool() -> None:
    modules = HOUSE.sources(package=HOUSE.LAB)
    emulator = {module: path for module, path in modules.items() if module.startswith("toolchain_lab.emulator")}
    assert len(emulator) > 20
    texts = [path.read_text(encoding="utf-8") for path in emulator.values()]
    names = set().union(*(HOUSE.imported(text, frozenset(modules)) for text in texts))
    assert {name for name in names if name.startswith("toolchain") and name not in emulator} == set()


def test_no_two_modules_of_the_lab_share_a_name() -> None:
    names = [path.stem for path in HOUSE.sources(package=HOUSE.LAB).values() if path.stem != "__init__"]
    assert len(names) == len(set(names))


def test_import_cycle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "toolchain"
    for name, other in (("red", "blue"), ("blue", "green"), ("green", "red")):
        (package / name).mkdir(parents=True)
        (package / name / "one.py").write_text(f"from toolchain.{other} import one\n")
    (package / "alone.py").write_text("def late():\n    import toolchain.red.one\n")
    packages = HOUSE.imports(tmp_path)
    with pytest.raises(CycleError):
        HOUSE.levels(packages)
    packages["green"].clear()
    assert HOUSE.levels(packages) == {"red": 2, "blue": 1, "green": 0, "alone": 3}
    assert HOUSE.drawn(packages).startswith("4 packages, 4 levels, 3 imports\n 3  alone\n")


def test_no_two_modules_share_a_name() -> None:
    names = [path.stem for path in (TOP / "toolchain").rglob("*.py") if not path.stem.startswith("__")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
