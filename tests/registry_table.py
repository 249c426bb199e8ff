"""The table of docs/registries.md, made from the data: `python -m tests.registry_table` writes it."""

from __future__ import annotations

import sys

from toolchain.oci.registry_rules import Rules, known

_WAY = {"whole": "one piece", "chunks": "chunks of {size}"}


def _size(number: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("GB", 10**9), ("MB", 10**6)):
        if number % scale == 0:
            return f"{number // scale:,} {unit}"
    return f"{number:,} bytes"


def _upload(rules: Rules) -> str:
    said = [_WAY[rules.upload].format(size=_size(rules.chunk))]
    if rules.position == "sent":
        said.append("in chunks, offsets by bytes sent" if rules.upload == "whole" else "offsets by bytes sent")
    if rules.last == "piece":
        said.append("the last piece with the PUT")
    return "; ".join(said)


def _limits(rules: Rules) -> str:
    said = [
        f"{kind} {_size(size)}"
        for kind, size in (("layer", rules.layer_limit), ("manifest", rules.manifest_limit))
        if size
    ]
    if rules.upload_seconds:
        said.append(f"an upload {rules.upload_seconds // 60} minutes")
    return ", ".join(said) or "unknown"


def _known_by(rules: Rules) -> str:
    if rules.location:
        return f"`{rules.location}` in the address of an upload"
    return ", ".join(f"`{host}`" for host in rules.hosts) or "nothing"


def table() -> str:
    """Markdown: what is known, and where it is from."""
    rows = ["| registry | known by | upload | limits | names | tags | tried |", "|---|---|---|---|---|---|---|"]
    rows += [
        f"| {one.name} | {_known_by(one)} | {_upload(one)} | {_limits(one)} | {one.names} | {one.tags} | {one.tried} |"
        for one in known()
    ]
    rows += ["", "| registry | login | mount | referrers | zstd | remarks |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {one.name} | {one.auth} | {one.mount} | {one.referrers} | {one.zstd} | {one.note} |" for one in known()
    ]
    rows += ["", "Sources:", ""]
    rows += [f"- {one.name}: {', '.join(f'<{source}>' for source in one.source)}" for one in known()]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
