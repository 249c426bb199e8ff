"""Generate the section of docs/reference/verbs.md that lists the `--json` keys of each verb, from the JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.site_compatibility import table

DOCS = Path(__file__).resolve().parent.parent / "docs"
SCHEMA = DOCS / "json.schema.json"
_PARTS = (
    "compiled kernel", "source", "finished image", "evidence", "file", "use",
    "pinned llvm", "pinned triton", "pinned aotriton", "pinned pytorch",
)  # fmt: skip
_HEAD = """\
Standard output is exactly one JSON document; messages go to standard error. [json.schema.json](../json.schema.json) is
its JSON Schema (2020-12), with a definition for each verb, the type and meaning of each key. Tests validate the output
of all verbs. `keygen`, `report`, `shell` and `kernels worker` have no `--json`.

Verbs that check, compare or build print their result also if they fail: `verify`, `doctor`, `reproduce`, `inspect`,
`audit`, `emulate`, `kernels check`, `kernels diff`, `kernels try`, `cache prune`, `build`. The other verbs print
`error`. Sizes are in bytes, digests are `sha256:` and 64 hexadecimal digits. Later versions may add keys.

Keys below the first level are in the schema. A key in *italics* may be missing.
"""


def section() -> str:
    shapes = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    verbs = ["error", *sorted(name for name in shapes if name not in {"error", *_PARTS})]
    return "\n".join([
        "## JSON\n",
        _HEAD,
        table(["document", "keys"], [_row(name, shapes[name]) for name in verbs]),
    ])  # fmt: skip


def _row(name: str, shape: Mapping[str, Any]) -> list[str]:
    if "oneOf" not in shape:
        return [f"`{name}`", _keys(shape)]
    return [f"`{name}`", "<br>".join(f"{one['description']}: {_keys(one)}" for one in shape["oneOf"])]


def _keys(shape: Mapping[str, Any]) -> str:
    required = shape.get("required", ())
    return ", ".join(f"`{key}`" if key in required else f"*`{key}`*" for key in shape["properties"])
