"""Tests of `core.pages`, which gives the location of a page of the documentation for a message."""

from __future__ import annotations

import re
from email.message import Message
from pathlib import Path

import pytest

from toolchain.core import pages

TOP = Path(__file__).resolve().parents[2]


def test_page_in_a_checkout_is_given_as_a_path() -> None:
    assert pages.page("docs/costs.md") == "docs/costs.md"


@pytest.mark.parametrize(
    "urls", [[], ["Homepage, https://home.example"], ["Documentation, https://pages.example/tree/"]]
)
def test_page_of_an_installed_wheel_is_given_as_a_url_or_a_text(
    urls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    headers = Message()
    for url in urls:
        headers["Project-URL"] = url
    monkeypatch.setattr(pages, "_TOP", tmp_path)
    monkeypatch.setattr(pages, "metadata", lambda _: headers)
    known = any(url.startswith("Documentation") for url in urls)
    expected = "https://pages.example/tree/docs/costs.md" if known else "docs/costs.md in the source repository"
    assert pages.page("docs/costs.md").startswith(expected)


def test_pages_that_messages_name_exist() -> None:
    named: set[str] = set()
    for path in [*(TOP / "toolchain").rglob("*.py"), *(TOP / "lab/src").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"page\(['\"](docs/[^'\"]+)['\"]\)", text))
        named |= set(re.findall(r"^_?[A-Z]+ = \"(docs/[\w/#-]+\.md[\w#-]*)\"$", text, re.MULTILINE))
    assert len(named) >= 5
    assert [name for name in named if not _is_there(name)] == []


def _is_there(name: str) -> bool:
    path, _, anchor = name.partition("#")
    if not (TOP / path).is_file():
        return False
    headings = re.findall(r"^#+ (.+)$", (TOP / path).read_text(encoding="utf-8"), re.MULTILINE)
    return not anchor or anchor in {re.sub(r"[^\w-]", "", one.lower().replace(" ", "-")) for one in headings}
