"""core.pages: messages name a page that their reader can open."""

from __future__ import annotations

import re
from email.message import Message
from pathlib import Path

import pytest

from toolchain.core import pages

TOP = Path(__file__).resolve().parents[2]


def test_a_checkout_has_the_page_itself() -> None:
    assert pages.page("docs/costs.md") == "docs/costs.md"


@pytest.mark.parametrize(
    "urls", [[], ["Homepage, https://home.example"], ["Documentation, https://pages.example/tree/"]]
)
def test_a_wheel_has_none(urls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    headers = Message()
    for url in urls:
        headers["Project-URL"] = url
    monkeypatch.setattr(pages, "_TOP", tmp_path)
    monkeypatch.setattr(pages, "metadata", lambda _: headers)
    known = any(url.startswith("Documentation") for url in urls)
    expected = "https://pages.example/tree/docs/costs.md" if known else "docs/costs.md in the source repository"
    assert pages.page("docs/costs.md").startswith(expected)


def test_every_page_that_a_message_names_is_there() -> None:
    """And none is named without `page`, except in comments and docstrings."""
    named: set[str] = set()
    for path in [*(TOP / "toolchain").rglob("*.py"), *(TOP / "lab/src").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        called = re.findall(r"page\(['\"](docs/[\w/-]+\.md)['\"]\)", text)
        constants = re.findall(r"^_?[A-Z]+ = \"(docs/[\w/-]+\.md)\"$", text, re.MULTILINE)
        named |= {*called, *constants}
    assert len(named) >= 5
    assert [name for name in named if not (TOP / name).is_file()] == []
