"""The report of a build of Triton: totals of upstream's lit tests, and seconds of ninja's steps."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from toolchain.core.errors import BuildError
from toolchain.core.filesystem import read_regular

_LARGEST_LOG = 256 << 20  # bytes


def lit_totals(path: Path) -> dict[str, Any]:
    """Totals of a lit run's JUnit file: `{"tests", "passed", "failed", "skipped", "failures": {name: why}, "skips"}`."""
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))  # noqa: S314 - written by our own build
    except ET.ParseError as error:
        raise BuildError(
            f"{path.name} is not a JUnit file", why=str(error), fix="see the log; --no-contract leaves these tests out"
        ) from error
    if not cases:
        raise BuildError(f"{path.name} has no test: lit ran none", fix="see the log; --no-contract leaves them out")
    failures, skipped = {}, {}
    for case in cases:
        name = f"{case.get('classname', '')}/{case.get('name', '')}"
        failure = next((element for element in map(case.find, ("failure", "error")) if element is not None), None)
        left = case.find("skipped")
        if failure is not None:
            failures[name] = _why(failure.text or failure.get("message") or "")
        elif left is not None:
            skipped[name] = (left.get("message") or left.text or "").strip()
    return {
        "tests": len(cases),
        "passed": len(cases) - len(failures) - len(skipped),
        "failed": len(failures),
        "skipped": len(skipped),
        "failures": dict(sorted(failures.items())),
        "skips": dict(sorted(skipped.items())),
    }


def _why(output: str) -> str:
    """The lines of a failed lit test's output that name an error; its last ones if none does."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b(?:error|Assertion|command not found|No such file)\b", line)]
    return "\n".join(named[:3] or lines[-3:])[:1000]


def lit(out: Path, *, required: bool) -> dict[str, Any]:
    """Totals by Python version."""
    totals = {path.stem.removeprefix("lit-"): lit_totals(path) for path in sorted(out.glob("lit-*.xml"))}
    if required and not totals:
        raise BuildError("upstream's lit tests left no report", fix="see the log; --no-contract leaves them out")
    return totals


def ninja_seconds(path: Path) -> dict[str, float]:
    """Seconds of ninja's own log by kind of output: objects, libraries and programs, the rest; summed over jobs."""
    sums = {"compile": 0.0, "link": 0.0, "other": 0.0}
    for line in read_regular(path, _LARGEST_LOG).decode("utf-8", "replace").splitlines():
        fields = line.split("\t")
        if len(fields) < 4 or not fields[0].isdigit():
            continue
        name = fields[3]
        linked = name.startswith("bin/") or name.endswith((".so", ".a"))
        kind = "compile" if name.endswith(".o") else "link" if linked else "other"
        sums[kind] += (int(fields[1]) - int(fields[0])) / 1000
    return {kind: round(value, 1) for kind, value in sums.items()}
