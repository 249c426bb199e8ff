"""The rooms import downwards."""

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
    sys.modules[name] = module  # dataclasses and named tuples look their module up
    spec.loader.exec_module(module)
    return module


HOUSE = script("house")


@pytest.fixture(scope="module")
def rooms() -> dict[str, set[str]]:
    """Return the rooms of the tool and what each of them imports."""
    found: dict[str, set[str]] = HOUSE.arrows()
    return found


def test_no_two_rooms_import_each_other(rooms: dict[str, set[str]]) -> None:
    assert {"cli", "pipeline", "stages", "oci", "sources"} <= rooms.keys()
    floors = HOUSE.floors(rooms)
    assert all(floors[room] > floors[other] for room, others in rooms.items() for other in others)


def test_a_stage_knows_no_engine_and_oci_neither(rooms: dict[str, set[str]]) -> None:
    assert "engine" not in rooms["stages"]
    assert "stages" not in rooms["engine"]
    assert not {"engine", "stages", "pipeline"} & rooms["oci"]


def test_every_room_is_in_the_guide(rooms: dict[str, set[str]]) -> None:
    guide = (TOP / "docs" / "develop.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)(?:/|\.py)`", guide))
    assert rooms.keys() - named == set()


def test_the_tool_does_not_import_the_lab() -> None:
    modules = {**HOUSE.sources(), **HOUSE.sources(package=HOUSE.LAB)}
    imports = {
        module: {name.split(".")[0] for name in HOUSE.imported(path.read_text(encoding="utf-8"), frozenset(modules))}
        for module, path in modules.items()
    }
    of_lab = {module: names for module, names in imports.items() if module.startswith("toolchain_lab.")}
    assert any("toolchain" in names for names in of_lab.values())
    assert [module for module in imports.keys() - of_lab.keys() if "toolchain_lab" in imports[module]] == []


def test_no_two_rooms_of_the_lab_import_each_other() -> None:
    rooms = HOUSE.arrows(package=HOUSE.LAB)
    assert {"emulator", "numbers", "examine", "report", "cli"} <= rooms.keys()
    assert HOUSE.floors(rooms)["emulator"] == 0


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


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "toolchain"
    for room, other in (("red", "blue"), ("blue", "green"), ("green", "red")):
        (package / room).mkdir(parents=True)
        (package / room / "one.py").write_text(f"from toolchain.{other} import one\n")
    (package / "alone.py").write_text("def late():\n    import toolchain.red.one\n")
    rooms = HOUSE.arrows(tmp_path)
    with pytest.raises(CycleError):
        HOUSE.floors(rooms)
    rooms["green"].clear()
    assert HOUSE.floors(rooms) == {"red": 2, "blue": 1, "green": 0, "alone": 3}
    assert HOUSE.drawn(rooms).startswith("4 rooms, 4 floors, 3 arrows\n 3  alone\n")


def test_no_two_modules_share_a_name() -> None:
    names = [path.stem for path in (TOP / "toolchain").rglob("*.py") if not path.stem.startswith("__")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
