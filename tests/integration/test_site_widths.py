"""The site in a browser as wide as a laptop and as a phone: no page is wider, and the compatibility table fits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
WIDTHS = (1280, 390)
_LOOK = """<pre id="said"></pre><script>
const [pages, widths, said] = [PAGES, WIDTHS, []];
(function look(at) {
  document.getElementById("said").textContent = JSON.stringify(said);
  if (at == pages.length * widths.length) return;
  const [page, width] = [pages[at % pages.length], widths[Math.floor(at / pages.length)]];
  const frame = Object.assign(document.createElement("iframe"), {width, height: 900, src: page});
  frame.onload = () => setTimeout(() => {
    const inside = frame.contentDocument, table = inside.querySelector("table");
    const cut = table ? table.scrollWidth > table.closest(".md-typeset__scrollwrap").clientWidth + 1 : false;
    said.push([page, width, inside.documentElement.scrollWidth, cut]); frame.remove(); look(at + 1);
  }, 100);
  document.body.appendChild(frame);
})(0);
</script>"""


def test_no_page_is_wider_than_the_screen(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("NO CHROMIUM: how wide the pages are is not looked at (apt-get install chromium)")
    shutil.copytree(TOP / "docs", tmp_path / "docs")
    shutil.copy(TOP / "mkdocs.yml", tmp_path)
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict"], cwd=tmp_path, check=True, capture_output=True)
    pages = [path.as_uri() for path in sorted((tmp_path / "site").rglob("index.html"))]
    look = tmp_path / "look.html"
    look.write_text(_LOOK.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS)))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         "--virtual-time-budget=120000", "--window-size=1400,1000", "--dump-dom", look.as_uri()],
        check=True, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    said = json.loads(done.stdout.partition('<pre id="said">')[2].partition("</pre>")[0])
    assert len(said) == len(pages) * len(WIDTHS) > 60
    assert [row for row in said if row[2] > row[1]] == []
    assert [page for page, width, _, cut in said if cut and width == WIDTHS[0] and "compatibility" in page] == []
