"""The options that a provenance tells of: what somebody who rebuilds has to ask for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolchain import console
from toolchain.request import DEFAULT_GLIBC, options

_LONGEST = 4000
# What a plain call asks for; saying it again would hide what matters.
_USUAL: Mapping[str, Any] = {
    "base": "debian13",
    "glibc": DEFAULT_GLIBC,
    "arch": ["amd64"],
    "only": "distribution",
    "compression": "gzip",
}


def invocation(statement: Mapping[str, Any]) -> str:
    """What an image was asked for with, as a command; empty where its provenance has another form or no end.

    A checkout is named without its path and a patch by its file name, since paths are the other machine's; a commit
    without its repository. Options that a plain call has anyway are left out, and so are the sources of lower stages.
    """
    asked = statement["predicate"]["buildDefinition"].get("externalParameters")
    if not isinstance(asked, Mapping) or not isinstance(asked.get("stage"), str):
        return ""
    try:
        words = ["toolchain", "build", asked["stage"], *_words(asked)]
        text = " ".join(shlex.quote(console.one_line(word)) for word in words)
    except (TypeError, ValueError, RecursionError):  # a stranger's own form
        return ""
    # People copy it: what a terminal hides or turns around must not be in it.
    return text if len(text) <= _LONGEST and text.isprintable() else ""


def _words(asked: Mapping[str, Any]) -> Iterator[str]:
    for declared in options():
        name, value = declared.option.name, asked.get(declared.field)
        if declared.field == "base" and not asked.get("glibc") and value:
            yield from (f"--{name}", str(value))  # named, so nothing portable was built
        elif declared.field == "shard":
            if isinstance(value, list):
                yield from (f"--{name}", "/".join(map(str, value)))
        elif declared.field == "contract":
            if value is False:
                yield "--no-contract"
        elif value and value != _USUAL.get(declared.field):
            yield from _option(f"--{name}", value, declared.option.kind)


def _option(option: str, value: Any, kind: str) -> Iterator[str]:
    if kind == "flag":
        yield option
    elif isinstance(value, Mapping):
        for key, several in value.items():
            for one in several if isinstance(several, list) else [several]:
                yield from (option, f"{key}={one}")
    elif isinstance(value, list) and kind == "names":
        for one in value:
            yield from (option, str(one))
    else:
        yield from (option, ",".join(map(str, value)) if isinstance(value, list) else str(value))
