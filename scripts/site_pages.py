"""Write the pages and pictures of the site that are made from code and data.

python -m scripts.site_pages            # writes the files
python -m scripts.site_pages --check    # exits with 1 if a file is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from scripts import error_ids, site_compatibility, site_pictures, site_reference

TOP = Path(__file__).resolve().parents[1]
DOCS = TOP / "docs"
MADE: dict[str, Callable[[], str]] = {
    "exit-codes.md": error_ids.page,
    "compatibility.md": site_compatibility.compatibility,
    "costs.md": site_compatibility.what_it_takes,
    "reference/verbs.md": site_reference.verbs,
    "reference/names.md": site_reference.names,
    "assets/flow.svg": site_pictures.flow,
}


def stale(docs: Path = DOCS) -> list[str]:
    """Return the names of the files that differ from what this script would write."""
    return [name for name, make in MADE.items() if not _is(docs / name, make())]


def _is(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


def main(words: list[str]) -> None:
    if words == ["--check"]:
        if old := stale():
            sys.exit(f"{', '.join(old)}: out of date. Run python -m scripts.site_pages")
        return
    for name, make in MADE.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
