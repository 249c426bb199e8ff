"""The tool with an additional stage, defined by one row: `with_report.py copied|contained WORD...`."""

from __future__ import annotations

import sys

from toolchain.catalog import stages
from toolchain.catalog.stages import StageRow


def register(how: str) -> None:
    """Add the stage; this must come first, because help texts are made when their modules are loaded."""
    row = StageRow(name="report", on=("base",), sources={"notes": "CC0-1.0"}, license="CC0-1.0")
    stages.STAGES = (*stages.STAGES, row)
    # These modules are imported here, because they read the table of stages when they are loaded.
    from tests import report_stage  # noqa: PLC0415
    from toolchain.publish import plain_files as files  # noqa: PLC0415
    from toolchain.stages import makers  # noqa: PLC0415

    makers.MAKERS["report"] = f"tests.report_stage:{how}"
    files.FORMS["report"] = report_stage.text


if __name__ == "__main__":
    register(sys.argv.pop(1))
    from toolchain.cli.app import main

    main()
