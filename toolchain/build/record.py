"""Records: what is kept of a finished stage, and what of it the provenance tells."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from toolchain import __version__
from toolchain.cache import Cache
from toolchain.digest import write_atomically
from toolchain.options import declared, plain
from toolchain.request import Request
from toolchain.sources.patch import listed
from toolchain.stages.stage import Planned
from toolchain.trust import attest
from toolchain.trust.image_facts import Record


def run_facts(request: Request, planned: Planned, seconds: float) -> dict[str, Any]:
    """What a record holds for the provenance: when, by whom, on which request, with which sources.

    Paths of this machine and what the environment holds stay out of it.

    Args:
        seconds: that the build took; it ends now.
    """
    now = time.time()
    tool: dict[str, str] = {"version": __version__, "builder": attest.LOCAL_BUILDER}
    if os.environ.get("GITHUB_ACTIONS") == "true":
        server, repository = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
        tool["builder"] = f"{server}/{os.environ.get('GITHUB_WORKFLOW_REF', repository)}"
        tool["run"] = f"{server}/{repository}/actions/runs/{os.environ.get('GITHUB_RUN_ID', '')}"
    facts: dict[str, Any] = {
        "sources": [
            {
                **source.as_plan(),
                "kind": source.kind,
                "license": source.licensed,
                "locked": source.locked,
                "patches": listed(request.patches.get(source.name, ())),
            }
            for source in planned.sources
        ],
        "request": _request(request, planned),
        "started": round(now - seconds, 1),
        "finished": round(now, 1),
        "tool": tool,
    }
    if isolation := isolation_facts(request.cache):
        facts["isolation"] = isolation
    return facts


def _request(request: Request, planned: Planned) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "stage": planned.name,
        **{one.field: plain(getattr(request, one.field)) for one in declared(request) if one.option.counts},
        # Of a local image the digest counts, which is among the inputs; its path is this machine's affair.
        "base": "oci:" if request.base.image is not None else str(request.base),
        "glibc": request.glibc or None,
        "sources": {source.name: source.ref for source in planned.sources if source.name in request.sources},
        "patches": {name: [path.name for path in files] for name, files in request.patches.items()},
    }
    return {name: value for name, value in asked.items() if value not in (None, [], {})}


def isolation_facts(cache: Cache) -> dict[str, Any] | None:
    """What the engine's probe found on this machine; None where it left nothing."""
    try:
        value = json.loads((cache.engine / "isolation.json").read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_record(cache: Cache, record: Record) -> None:
    """Write the record of a finished stage: from now on the stage counts as finished."""
    write_atomically(cache.record(record["input_digest"]), json.dumps(record, indent=1).encode())


def read_record(cache: Cache, digest: str) -> Record:
    """The record of a finished stage."""
    value: Record = json.loads(cache.record(digest).read_bytes())
    return value
