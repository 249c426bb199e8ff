"""Runs of verbs with `--json` in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from toolchain.cli.app import app


def answer(*words: Any, code: int = 0) -> dict[str, Any]:
    """Run a verb with `--json`, check its exit code, and return the object that it prints."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))
