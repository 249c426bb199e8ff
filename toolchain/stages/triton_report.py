"""Read the results of upstream's lit tests in a build of Triton."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from toolchain.core.errors import BuildError


def lit_totals(path: Path) -> dict[str, Any]:
    """Return the totals of a lit run, from the JUnit file that it wrote.

    BuildError is raised if the file is malformed or contains no test.

    Returns:
        `{"tests", "passed", "failed", "skipped", "failures", "skips"}`: the number of all tests, the numbers of tests
        that passed, failed and were skipped, and the reasons why tests failed or were skipped, by the test's name.
    """
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))  # noqa: S314 - our recipe writes the file
    except (ET.ParseError, UnicodeError, ValueError, LookupError) as error:
        raise _unusable(f"{path.name} is not a JUnit file") from error
    if not cases:
        raise _unusable(f"{path.name} contains no test, so lit ran none")
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
    """Return the first three lines of a failed test's output that mention an error, or else its last three lines.

    At most 1000 characters are returned.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b(?:error|Assertion|command not found|No such file)\b", line)]
    return "\n".join(named[:3] or lines[-3:])[:1000]


def lit(out: Path, *, required: bool) -> dict[str, Any]:
    """Return the totals of lit's runs by Python version.

    BuildError is raised if `lit_totals` cannot read a report, or if `required` is set and there is no report.
    """
    totals = {path.stem.removeprefix("lit-"): lit_totals(path) for path in sorted(out.glob("lit-*.xml"))}
    if required and not totals:
        raise _unusable("upstream's lit tests left no report")
    return totals


def _unusable(what: str) -> BuildError:
    return BuildError("lit-report-unusable", what, fix="see the log; --no-contract skips these tests")
