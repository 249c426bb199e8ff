"""A parser for the control files of dpkg and apt."""

from __future__ import annotations

import re
from collections.abc import Iterator


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield each paragraph of a control file as a dict with lowercase keys; a value keeps its continuation lines."""
    for block in re.split(r"\n[ \t]*\n", text):
        stanza: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and key:
                stanza[key] += "\n" + line
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                stanza[key] = value.strip()
        if stanza:
            yield stanza
