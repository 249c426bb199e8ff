"""Where a reader of a message finds a page of the documentation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

_TOP = Path(__file__).parents[2]


def page(name: str) -> str:
    """Return a name for a page such as `docs/costs.md` that its reader can open.

    In a checkout that is the page's path below the top folder. A wheel holds no pages: there it is the URL below the
    wheel's project URL `Documentation`, or, if the wheel was built without one, the path and where it lies.
    """
    if (_TOP / name).is_file():
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
