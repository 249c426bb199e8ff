"""Locations of documentation pages, for messages that refer to them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

_TOP = Path(__file__).parents[2]


def page(name: str) -> str:
    """Return the location of a page such as `docs/costs.md#anchor`, for a message.

    In a checkout, the location is the path of the page. An installed wheel contains no pages, so the location is a URL
    below the wheel's project URL `Documentation` or, if there is none, text that refers to the source repository.
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
