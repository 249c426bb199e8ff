"""Where readers of a message find a page of the documentation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

_TOP = Path(__file__).parents[2]


def page(name: str) -> str:
    """Return a path or URL of a page such as `docs/costs.md` or `docs/costs.md#anchor` that the reader can open.

    In a checkout it is the page's path below the top folder. A wheel contains no pages: there it is the URL below the
    wheel's project URL `Documentation`, or if that is missing the path with a hint where it is.
    """
    if (_TOP / name.partition("#")[0]).is_file():
        return name
    address = _address()
    return f"{address.rstrip('/')}/{name}" if address else f"{name} in the source repository of toolchain"


def _address() -> str:
    try:
        urls = metadata("toolchain").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    pairs = (url.partition(",") for url in urls)
    return next((address.strip() for label, _, address in pairs if label.strip().lower() == "documentation"), "")
