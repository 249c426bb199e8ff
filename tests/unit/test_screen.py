"""The screen: listings at several widths, and colours only on a terminal that supports and permits them."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from toolchain.catalog.release_data import triton_releases
from toolchain.cli.listing import Listing
from toolchain.core.cache import Cache
from toolchain.pipeline import cache_usage

ANSI = re.compile(r"\x1b\[([0-9;]*)m")
# The codes of foreground and background colours: plain, bright and of the larger palettes.
COLOUR = re.compile(r"(?:^|;)(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;|$)")
NO_TERMINAL = {"FORCE_COLOR", "NO_COLOR", "TERM", "COLUMNS", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE"}


LISTING = Listing(
    title="Things",
    columns=("name", "size", "commit", "why"),
    rows=[("[bold]a[/]", "1", "c" * 40, "because of it"), (Text("much longer", style="red"), "100", "-", "")],
    head=("name", "size"),
    right=("size",),
)


def drawn(listing: Listing, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(listing)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_listing_is_a_table_if_it_fits() -> None:
    wide = drawn(LISTING, 100)
    assert wide == [
        "Things",
        "name         size  commit                                    why",
        f"[bold]a[/]      1  {'c' * 40}  because of it",
        "much longer   100  -",
    ]
    assert drawn(LISTING, len(max(wide, key=len))) == wide
    assert drawn(LISTING, 60) == [
        "Things",
        "name         size",
        "[bold]a[/]      1",
        f"    commit  {'c' * 40}",
        "    why     because of it",
        "much longer   100",
    ]
    assert "c" * 40 in "".join("".join(drawn(LISTING, 20)).split()), "broken where nothing else helps, never cut"
    assert max(map(len, drawn(LISTING, 20))) <= 20


def test_folder_removed_during_the_survey_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that ends removes its work folder, possibly during a survey."""
    cache = Cache(tmp_path)
    cache.make()
    real = cache_usage._children
    monkeypatch.setattr(
        cache_usage, "_children", lambda folder: [*real(folder), *([folder / "gone"] if folder == cache.work else [])]
    )
    (ghost,) = cache_usage.survey(cache)
    assert (ghost.name, ghost.bytes) == ("gone", 0)
    assert cache_usage.prune(cache, unused_for=3600.0, dry=True).gone == ()


# Colours


def on_a_terminal(words: tuple[str, ...], env: dict[str, str]) -> str:
    """Return the output of a verb on a new terminal, both streams together."""
    kept = {name: value for name, value in os.environ.items() if name not in NO_TERMINAL}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 80))
    child = subprocess.Popen(
        [sys.executable, "-m", "toolchain", *words], stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, **env}
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # Linux raises this when the other end is closed
        pass
    finally:
        os.close(ours)
        child.wait(300)
    return said.decode()


def colours(text: str) -> list[str]:
    return [code for code in ANSI.findall(text) if COLOUR.search(code)]


VERBS = (("pins",), ("build", "nothing"))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_colours_require_a_capable_terminal_without_no_color(words: tuple[str, ...], tmp_path: Path) -> None:
    env = {"TOOLCHAIN_CACHE": str(tmp_path), "TERM": "xterm-256color"}
    assert colours(on_a_terminal(words, env))
    assert colours(on_a_terminal(words, {**env, "NO_COLOR": "1"})) == []
    dumb = on_a_terminal(words, {**env, "TERM": "dumb"})
    assert ANSI.findall(dumb) == []
    assert "\x1b" not in dumb
    kept = {name: value for name, value in os.environ.items() if name not in NO_TERMINAL}
    piped = subprocess.run(
        [sys.executable, "-m", "toolchain", *words], capture_output=True, text=True, check=False, env={**kept, **env}
    )
    assert "\x1b" not in piped.stdout + piped.stderr


def test_pins_fit_a_terminal_of_80_columns_and_commits_are_not_cut(tmp_path: Path) -> None:
    said = ANSI.sub("", on_a_terminal(("pins",), {"TOOLCHAIN_CACHE": str(tmp_path), "TERM": "xterm-256color"}))
    assert [line for line in said.splitlines() if len(line) > 80] == []
    assert "…" not in said
    commits = {row.llvm for row in triton_releases() if row.llvm}
    assert commits
    assert [commit for commit in commits if commit not in said] == []
