"""Check kernels inside the namespaces of `contained`, as `python -m toolchain_lab.numbers.inside`.

The program reads a JSON document from standard input, and prints a line for each kernel: `ROW` and JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.check_result import Object
from toolchain_lab.bridge import run_program
from toolchain_lab.emulator.disassembly import Disassembler
from toolchain_lab.numbers.campaign import results

# Each line with a result begins with this prefix.
ROW = "@row "


def main() -> None:
    job: dict[str, Any] = strict_json.read(sys.stdin.read())
    major, minor, patch = job["version"]
    disassembler = Disassembler(Path(job["objdump"]), (major, minor, patch), run_program)
    objects = [Object(Path(path), name, "", "") for path, name in job["objects"]]
    for row in results(objects, disassembler, job["jobs"]):
        sys.stdout.write(f"{ROW}{json.dumps(row.as_json())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
