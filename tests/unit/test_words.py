"""Documentation, docstrings, comments and messages have short sentences and the usual words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_house import TOP, script

PROSE = script("prose")


def test_no_sentence_is_too_long() -> None:
    found = [row for path in PROSE.own_files() for row in PROSE.too_long(path, path.name)]
    assert not found, "\n".join(f"{row.path}:{row.line}: {row.words} words: {row.text}" for row in found)


def test_no_sentence_is_in_words_of_our_own_making(tmp_path: Path) -> None:
    found = [row for path in PROSE.files_of_words() for row in PROSE.in_dialect(path, str(path))]
    assert not found, "\n".join(f"{row.path}:{row.line}: {row.text}" for row in found)
    (tmp_path / "a.py").write_text('raise PinError("nobody knows its LLVM")\n')
    assert len(list(PROSE.in_dialect(tmp_path / "a.py", "a.py"))) == 1
    (tmp_path / "b.py").write_text("# None where it\n# lies\n\nx = 1  # as JSON has it\n")
    assert [row.line for row in PROSE.in_dialect(tmp_path / "b.py", "b.py")] == [1, 4]
    (tmp_path / "a.md").write_text("The first signature counts.\n\nIt continues. It goes on.\n")
    assert len(list(PROSE.in_dialect(tmp_path / "a.md", "a.md"))) == 2


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
    assert len((TOP / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
