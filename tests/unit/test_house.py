"""The rooms import downwards, and what people read is written in short sentences."""

from __future__ import annotations

import importlib.util
import re
import sys
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


HOUSE, PROSE = script("house"), script("prose")


def test_no_two_rooms_import_each_other() -> None:
    rooms = HOUSE.arrows()
    assert {"cli", "build", "stages", "oci", "sources"} <= rooms.keys()
    assert HOUSE.circles(rooms) == []
    floors = HOUSE.floors(rooms)
    assert all(floors[room] > floors[other] for room, others in rooms.items() for other in others)


def test_a_stage_knows_no_engine_and_oci_neither() -> None:
    rooms = HOUSE.arrows()
    assert "engine" not in rooms["stages"]
    assert "stages" not in rooms["engine"]
    assert not {"engine", "stages", "build"} & rooms["oci"]


def test_every_room_is_in_the_guide() -> None:
    guide = (TOP / "docs" / "develop.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9_]+)(?:/|\.py)`", guide))
    assert HOUSE.arrows().keys() - named == set()


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "toolchain"
    for room, other in (("red", "blue"), ("blue", "green"), ("green", "red")):
        (package / room).mkdir(parents=True)
        (package / room / "one.py").write_text(f"from toolchain.{other} import one\n")
    (package / "alone.py").write_text("def late():\n    import toolchain.red.one\n")
    rooms = HOUSE.arrows(tmp_path)
    assert HOUSE.circles(rooms) == [("blue", "green", "red")]
    assert HOUSE.floors(rooms) == {"red": 0, "blue": 0, "green": 0, "alone": 1}
    assert HOUSE.drawn(rooms).startswith("4 rooms, 2 floors, 4 arrows, 1 circles\ncircle: blue - green - red\n")


def test_no_sentence_is_too_long() -> None:
    found = [row for path in PROSE.own_files() for row in PROSE.too_long(path, path.name)]
    assert not found, "\n".join(f"{row.path}:{row.line}: {row.words} words: {row.text}" for row in found)


def test_no_sentence_is_in_words_of_our_own_making(tmp_path: Path) -> None:
    found = [row for path in PROSE.own_files() for row in PROSE.in_dialect(path, path.name)]
    assert not found, "\n".join(f"{row.path}:{row.line}: {row.text}" for row in found)
    (tmp_path / "a.py").write_text('raise PinError("nobody knows its LLVM")\n')
    assert len(list(PROSE.in_dialect(tmp_path / "a.py", "a.py"))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "Words {}.\n"),
        ("a.md", "- an item\n- {}\n"),
        ("a.md", "| a | {} |\n"),
        ("a.py", '"""{}."""\n'),
        ("a.py", 'def f():\n    """Short.\n\n    Args:\n        one: {}\n    """\n'),
        ("a.py", 'raise SourceError("{}")\n'),
        ("a.py", 'raise SourceError("short", fix="{}")\n'),
        ("a.py", 'typer.Option(help="{}")\n'),
    ],
)
def test_a_long_sentence_is_found(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text.format(" ".join(["word"] * 31)))
    assert len(list(PROSE.too_long(path, name))) == 1
    path.write_text(text.format(" ".join(["word"] * 15 + ["word."] + ["word"] * 14)))
    assert list(PROSE.too_long(path, name)) == []


def test_code_in_markdown_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"One `{'x ' * 40}` two.\n\n```\n{'word ' * 40}\n```\n")
    assert list(PROSE.too_long(path, "a.md")) == []


def test_the_front_page_is_short() -> None:
    assert len((TOP / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
