"""docs/json.md: what every verb prints with `--json`, out of docs/json.schema.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

DOCS = Path(__file__).resolve().parent.parent / "docs"
SCHEMA = DOCS / "json.schema.json"
_PINNED = ("pinned llvm", "pinned triton", "pinned aotriton", "pinned pytorch")
_PARTS = ("compiled kernel", "source", "finished image", "evidence", "file", "use", *_PINNED)
_HEAD = """\
# What `--json` prints

Made by `python -m scripts.site_pages` from [json.schema.json](json.schema.json), a JSON Schema (2020-12) with a
definition for each verb. Tests validate the output of all verbs. Do not edit this page.

Standard output has exactly one JSON document; human-readable messages go to standard error. `verify`, `doctor`,
`reproduce`, `cache prune` and `build` also print their result when their exit code is not 0. Other failures, also
usage errors, print an [error](#error) instead; only a bug (exit code 1) prints nothing. Sizes are in bytes, digests
are `sha256:` and 64 hexadecimal digits.

Later versions may add keys; existing keys keep their meaning. `keygen` has no `--json`. A key in *italics*
may be missing.

"""


def page() -> str:
    """The page for the schema."""
    shapes = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    verbs = [name for name in shapes if name not in {"error", *_PARTS}]
    parts = ["error", *sorted(verbs), *_PARTS]
    return _HEAD + "\n".join(line for name in parts for line in _section(name, shapes[name]))


def _section(name: str, shape: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    if text := shape.get("description"):
        yield f"{text[0].upper()}{text[1:]}"
        yield ""
    for one in shape.get("oneOf", [shape]):
        if one is not shape:
            yield f"{one['description'][0].upper()}{one['description'][1:]}:"
            yield ""
        yield "| key | type | meaning |"
        yield "|---|---|---|"
        yield from _rows(one, "")
        yield ""


def _rows(shape: Mapping[str, Any], before: str) -> Iterator[str]:
    for key, value in shape["properties"].items():
        named = f"`{before}{key}`"
        told = named if key in shape["required"] else f"*{named}*"
        yield f"| {told} | {_type(value)} | {_meaning(value)} |"
        for inner, path in _inner(value, f"{before}{key}"):
            yield from _rows(inner, f"{path}.")


def _inner(value: Mapping[str, Any], path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    if "properties" in value:
        yield value, path
    if "items" in value:
        yield from _inner(value["items"], f"{path}[]")
    for one in value.get("oneOf", ()):
        yield from _inner(one, path)


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = unquote(value["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.replace(' ', '-')})"
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if "oneOf" in value:
        return " or ".join(_type(one) for one in value["oneOf"])
    if value["type"] == "array":
        return f"list of {_type(value['items'])}"
    if value.get("pattern"):
        return "digest"
    kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
    return " or ".join("integer" if one == "integer" else one for one in kinds)


def _meaning(value: Mapping[str, Any]) -> str:
    return str(value.get("description", "")).replace("|", "\\|")
