"""Requests from the text of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolchain.catalog.base_ref import parse_base
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.request.model import Request
from toolchain.sources.spec import SourceSpec, parse_source_spec
from toolchain.stages.base import recipe_digest, write_packages

PACKAGES = [{"name": "libc6", "version": "1", "architecture": "amd64", "sha256": "b" * 64}]


def specs(texts: Mapping[str, str]) -> dict[str, SourceSpec]:
    """Return sources by name, as `--source NAME=TEXT` gives them."""
    return {name: parse_source_spec(text, project=name) for name, text in texts.items()}


def request_of(**words: Any) -> Request:
    """Return a request; its `base` and `sources` are given as text."""
    read: dict[str, Callable[[Any], Any]] = {"base": parse_base, "sources": specs}
    return Request(**{name: read[name](value) if name in read else value for name, value in words.items()})


def with_base(folder: Path) -> Cache:
    """Return a cache that knows the packages of debian13, so that stages on this base have an input digest."""
    found = Cache(folder)
    recipe = base_recipe("debian13", "amd64")
    lock = {"recipe": recipe_digest(recipe), "packages": PACKAGES}
    write_packages(found.package_list("base", "debian13", "amd64"), lock)
    return found
