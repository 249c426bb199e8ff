"""The site: generated pages are current, no page loads from another host, and the commands in blocks are run."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from scripts import site_pages
from scripts.options_table import commands
from scripts.site_compatibility import anchor, sections
from toolchain.cli.app import app
from toolchain.cli.verbs import GROUPS
from toolchain.data import load

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_RUN, _NOT_RUN, _BY = "Run by a test", "Not run by a test", ("Run by tests/", "Run by lab/tests/")
LANGUAGES = {"sh", "text", "json", "yaml", "toml", "dockerfile", "python"}


@dataclass(frozen=True)
class Block:
    """A block of code: its page, number, language, title and text."""

    page: str
    number: int
    language: str
    title: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Return the command lines of the block; continued lines are joined."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for number, found in enumerate(_FENCE.finditer(text), 1):
        language, _, rest = found[2].partition(" ")
        title = re.fullmatch(r'title="([^"]+)"', rest.strip())
        body = re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield Block(page, number, language, title[1] if title else "", body)


def of_page(page: str) -> list[Block]:
    return list(blocks(page, (DOCS / page).read_text(encoding="utf-8")))


def wrong(block: Block) -> str:
    """Return the fault of a block, or an empty string."""
    if block.language not in LANGUAGES:
        return f"{block.language!r} is no language of a block"
    if block.language != "sh":
        return (
            "a command in a block that is not sh"
            if re.search(r"^toolchain [a-z]", block.text, re.MULTILINE) and ("[OPTIONS]" not in block.text)
            else ""
        )
    if block.title.startswith(_BY):
        path = block.title.removeprefix("Run by ").partition(",")[0]
        return "" if (TOP / path).is_file() else f"there is no {path}"
    if block.title.startswith(_NOT_RUN):
        named = re.findall(r"(?:lab/)?tests/\w+/\w+\.py", block.title)
        missing = [path for path in named if not (TOP / path).is_file()]
        return (
            f"there is no {missing[0]}" if missing else "" if re.search(r": \S", block.title) else "no reason is told"
        )
    return "" if block.title.startswith(_RUN) else "nothing says whether a test runs it"


def check_line(words: list[str]) -> None:
    """Parse a call of the tool as the tool does, without running it.

    Raises:
        click.exceptions.UsageError: an option or value is not valid.
    """
    known = commands()
    words = words[1:]
    while words and words[0] in {"-v", "--verbose"}:
        words = words[1:]
    if words and words[0] in {"--version", "--help"}:
        return
    if words[:1] == ["--config"]:
        words = words[2:]
    depth = 2 if " ".join(words[:2]) in known else 1
    verb = " ".join(words[:depth])
    assert verb in known, f"{verb!r} is no verb"
    if not {"--help", "-h"} & set(words):
        known[verb].make_context(verb, words[depth:])


def calls(text: str) -> Iterator[list[str]]:
    """Yield the calls of the tool in shell lines."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if line.startswith(("toolchain ", ".venv/bin/toolchain ")) else []
        if words:
            yield list(itertools.takewhile(lambda word: word not in {"||", ">"}, words))


@pytest.mark.parametrize("page", PAGES)
def test_block_states_whether_a_test_runs_it(page: str) -> None:
    assert [f"{one.page}, block {one.number}: {why}" for one in of_page(page) if (why := wrong(one))] == []


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_every_call_of_the_tool_can_be_parsed(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("TOOLCHAIN_"):
            monkeypatch.delenv(name)
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [words for one in _FENCE.finditer(text) for words in calls(one[3]) if "[OPTIONS]" not in words]
    for words in found:
        try:
            check_line(words)
        except Exception as error:
            raise AssertionError(f"{shlex.join(words)}: {error}") from error
    # A call within a sentence may lack arguments, but its verb and options must exist.
    known = commands()
    for one in re.findall(r"`toolchain ((?:[a-z]+ ?)+)([^`]*)`", _FENCE.sub("", text)):
        said = one[0].split()
        verb = next((name for name in (" ".join(said[:2]), said[0]) if name in known), "")
        assert verb or said[0] in GROUPS, one
        flags = {flag for parameter in known[verb].params for flag in parameter.opts} if verb else set()
        assert set(re.findall(r"--[a-z-]+", one[1])) <= flags, one


# Blocks that are run


def checkout(folder: Path) -> None:
    """Write the files by which the tool recognizes a Triton checkout."""
    for name in ("cmake", "include", "lib", "python/triton", "third_party/amd", "third_party/nvidia"):
        (folder / name).mkdir(parents=True)
    (folder / "cmake/llvm-hash.txt").write_text("f6ded0be897e2878612dd903f7e8bb85448269e5\n")
    (folder / "python/triton/__init__.py").write_text("__version__ = '3.6.0'\n")
    for name in ("setup.py", "third_party/amd/CMakeLists.txt", "third_party/nvidia/CMakeLists.txt"):
        (folder / name).touch()
    (folder / "CMakeLists.txt").touch()


EXECUTED = [page for page in PAGES if any(one.title.startswith(_RUN) for one in of_page(page))]


@pytest.mark.parametrize("page", EXECUTED)
def test_blocks_marked_as_run_succeed(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("TOOLCHAIN_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for one in of_page(page):
        if not one.title.startswith(_RUN):
            continue
        if "in a stand-in for a checkout" in one.title:
            checkout(folder)
        run_block(one)


def run_block(one: Block) -> None:
    """Run a block. A block that contains only calls of the tool is run in this process."""
    if all(line.startswith(("toolchain ", "#")) or not line.strip() for line in one.lines):
        for words in calls(one.text):
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, f"{shlex.join(words)}: {done.output}"
            # `output` includes standard error, because notes are written there.
            assert done.output.strip(), shlex.join(words)
        return
    shell = subprocess.run(["sh", "-eu", "-c", one.text], capture_output=True, text=True, check=False, timeout=600)
    assert shell.returncode == 0, f"{one.page}, block {one.number}: {shell.stdout}{shell.stderr}"


# Pages


def test_generated_pages_and_pictures_are_current(tmp_path: Path) -> None:
    assert site_pages.stale() == [], "run python -m scripts.site_pages"
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "docs/costs.md").write_text("old")
    (tmp_path / "docs/assets/flow.svg").unlink()
    assert site_pages.stale(tmp_path / "docs") == ["costs.md", "assets/flow.svg"]


def test_every_page_is_in_the_navigation() -> None:
    def leaves(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        else:
            for one in value.values() if isinstance(value, dict) else value:
                yield from leaves(one)

    assert sorted(leaves(config()["nav"])) == PAGES


def config() -> dict[str, Any]:
    loaded = yaml.safe_load((TOP / "mkdocs.yml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_tried_rows_name_existing_sections() -> None:
    assert [one["section"] for one in load("tried")["tried"] if one["section"] not in sections()] == []
    assert sum(page.stat().st_size for page in (DOCS / "measurements").iterdir()) < 45_000
    assert anchor("A part of gfx942") == "a-part-of-gfx942"


def test_develop_names_each_file_of_the_nightly_run() -> None:
    files = [path for top in ("tests", "lab/tests") for path in (TOP / top).glob("*/test_*.py")]
    marked = {path.name for path in files if path != Path(__file__) and "mark.nightly" in path.read_text()}
    table = (DOCS / "develop.md").read_text().partition("| only at night |")[2].partition("\n\n")[0]
    assert set(re.findall(r"test_\w+\.py", table)) == marked


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("zensical", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("ZENSICAL IS NOT INSTALLED: the site is not built (pip install '.[docs]')")
    words = [program, "build", "--clean", "--strict"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=1200)


def test_the_site_builds_strictly_and_needs_no_other_host(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy2(TOP / "mkdocs.yml", tmp_path)
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    taken = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'> ]+""")
    assert [found[0] for path in pages for found in [taken.search(path.read_text(encoding="utf-8"))] if found] == []


def test_readme_has_at_most_120_lines() -> None:
    assert len((TOP / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
