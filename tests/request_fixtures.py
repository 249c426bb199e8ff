"""Values of a request from the words that people type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolchain.catalog.base_ref import parse_base
from toolchain.request import Request
from toolchain.sources.spec import SourceSpec, parse_source_spec


def specs(texts: Mapping[str, str]) -> dict[str, SourceSpec]:
    """Sources by name, as `--source NAME=TEXT` gives them."""
    return {name: parse_source_spec(text, project=name) for name, text in texts.items()}


def request_of(**words: Any) -> Request:
    """A request whose `base` and `sources` are given as text."""
    read: dict[str, Callable[[Any], Any]] = {"base": parse_base, "sources": specs}
    return Request(**{name: read[name](value) if name in read else value for name, value in words.items()})
