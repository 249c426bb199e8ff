"""The tool with one stage more, by one row: `with_report.py copied|contained WORD...`."""

from __future__ import annotations

import sys

from toolchain.catalog import stages
from toolchain.catalog.stages import StageRow


def register(how: str) -> None:
    """Before all else: help texts are made when their modules are loaded."""
    row = StageRow(
        name="report",
        make=f"tests.report_stage:{how}",
        on=("base",),
        sources={"notes": "CC0-1.0"},
        license="CC0-1.0",
        archive="tests.report_stage:text",
    )
    stages.STAGES = (*stages.STAGES, row)


if __name__ == "__main__":
    register(sys.argv.pop(1))
    from toolchain.cli.app import main

    main()
