"""The page of `report` in a browser, used by keyboard, at the widths of a laptop and a phone, with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.tests.report_fixtures import HOSTILE, large_campaign
from tests.browser import Page, browser
from toolchain_lab.examine.diff import compare
from toolchain_lab.report.differences import json_report
from toolchain_lab.report.kernel_tables import campaign_report
from toolchain_lab.report.page import html

COUNT = 19_001
ACTIVE = "document.activeElement"
GRID = "document.querySelector('.grid')"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the pages of a campaign as large as AOTriton's and of a comparison, and return their folder."""
    folder = tmp_path_factory.mktemp("pages")
    entries, kernels = large_campaign(COUNT)
    (folder / "campaign.html").write_text(html(campaign_report("a campaign", entries, kernels)))
    worse = [replace(one, sha256="0", facts=one.facts and replace(one.facts, digest="x", vgpr=256)) for one in kernels]
    (folder / "diff.html").write_text(html(json_report(compare(kernels[:9], worse[:9]).as_json(), "d.json")))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def said(page: Page) -> str:
    return str(page.value("document.querySelector('output').textContent"))


def active(page: Page) -> dict[str, Any]:
    """Return the active row, which the grid names to screen readers."""
    value = page.value(
        f"(() => {{ const row = document.getElementById({GRID}.getAttribute('aria-activedescendant'));"
        " return {place: Number(row.ariaRowIndex), held: row.ariaSelected === 'true',"
        " seen: row.getBoundingClientRect().bottom <= row.closest('.grid').getBoundingClientRect().bottom,"
        " cells: [...row.children].map((cell) => cell.textContent)}; })()"
    )
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("width", [1280, 390])
def test_large_campaign_fits_and_is_usable_by_keyboard(page: Page, pages: Path, width: int) -> None:
    assert (pages / "campaign.html").stat().st_size < 15 << 20
    page.open(pages / "campaign.html", width=width)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("document.querySelectorAll('.row').length") < 100, "rows that are not seen are not drawn"
    assert said(page) == "19,001 rows"
    drawn = "[...document.querySelectorAll('canvas')].filter((one) => one.width > 0 && one.ariaLabel).length"
    page.until(f"{drawn} === 5")
    assert page.requests() == [(pages / "campaign.html").as_uri()]
    # Keys alone find, sort and pin rows.
    page.press("/")
    assert page.value(f"{ACTIVE}.type") == "search"
    page.type("gpu=gfx942 vgpr>200 bwd")
    rows = int(said(page).split()[0].replace(",", ""))
    assert 500 < rows < 4000
    assert page.value(f"{GRID}.ariaRowCount") == str(rows + 1)
    page.press("Enter", "End")
    last = active(page)
    assert (last["place"], last["seen"]) == (rows + 1, True)
    assert (last["cells"][0][:3], last["cells"][1]) == ("bwd", "gfx942")
    # Two pinned rows are compared.
    page.press("Enter", "Home", "ArrowDown", "Enter")
    assert (active(page)["place"], active(page)["held"]) == (3, True)
    assert page.value("document.querySelector('.against h3').textContent") == "Comparison of two rows"
    assert page.value("document.querySelectorAll('.against thead th').length") == 3
    assert page.value("document.querySelectorAll('.against .other').length") >= 2
    page.press("Escape")
    assert page.value("document.querySelectorAll('.row.held').length") == 0
    # Tab moves from the rows to the headings, and Enter sorts by the fourth heading.
    page.press("Tab", "Tab", "Tab", "Tab")
    assert page.value(f"{ACTIVE}.querySelector('small').textContent") == "seconds"
    page.press("Enter")
    assert page.value(f"{ACTIVE}.parentElement.ariaSort") == "ascending"
    shown = page.value("[...document.querySelectorAll('.row')].map((row) => parseFloat(row.children[3].textContent))")
    assert shown == sorted(shown)
    # Escape empties the filter, also a filter by an unknown column.
    page.press("/", "Escape")
    assert said(page) == "19,001 rows"
    page.type("nocolumn>3")
    assert said(page) == "there is no column nocolumn"
    page.press("Escape")
    page.type("</script><img")
    assert said(page).endswith("of 19,001 rows")
    texts = page.value(
        "[...document.querySelectorAll('.row')].flatMap((row) => [...row.children].map((one) => one.textContent))"
    )
    assert HOSTILE in texts
    assert page.value("document.title") == "a campaign"
    assert page.errors() == []


@pytest.mark.parametrize("width", [1280, 390])
def test_comparison_marks_differences_between_both_sides_of_a_row(page: Page, pages: Path, width: int) -> None:
    page.open(pages / "diff.html", width=width)
    assert page.value("document.documentElement.scrollWidth") <= width
    page.press("/", "Enter")
    assert page.value("document.querySelector('.against h3').textContent") == "This row, A against B"
    marked = page.value("[...document.querySelectorAll('.against .other')].map((row) => row.innerText)")
    assert any(text.startswith("VGPR") and "256" in text and "(+" in text for text in marked)
    assert page.errors() == []
