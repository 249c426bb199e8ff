"""Compile rules with AOTriton's own compile script, each in a separate process, inside the Triton image.

    upstream.py JOB

JOB is a JSON file: `{"script": PATH, "jobs": N, "rules": [{"id", "arguments": [...], "timeout": minutes}]}`, in which
`jobs` is the number of processes at a time, and the timeout 0 means no limit. The program prints a JSON line for each
rule: `{"id", "code", "status", "sha256", "size", "error", "reason"}`. `code` is the script's exit code (negative for a
signal). `status` is the `compile_status` in the JSON file that the script wrote; it is empty if the script wrote none.
`sha256` and `size` describe the object; if the object is missing or empty, `sha256` is empty and `size` is 0. `error`
is the first line of the exception in the last traceback; it is empty if there is no traceback. `reason` consists of the
last five lines of the output. Long values of `error` and `reason` are truncated.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Upstream's build sets the first two. Line information is disabled because it contains the folder of the sources. The
# hash seed is fixed because some versions of Triton iterate over sets, whose order depends on the seed.
ENVIRONMENT = {
    "TRITON_F32_DEFAULT": "ieee",
    "TRITON_STORE_BINARY_ONLY": "1",
    "TRITON_DISABLE_LINE_INFO": "1",
    "PYTHONHASHSEED": "0",
}


def error_of(said: str) -> str:
    """Return the first line of the last exception in a program's output; empty if the output has no traceback."""
    lines = said.splitlines()
    starts = [number for number, line in enumerate(lines) if line == "Traceback (most recent call last):"]
    behind = lines[starts[-1] + 1 :] if starts else []
    return next((line for line in behind if line and not line[0].isspace()), "")[:500]


def compile_one(script: str, rule: dict[str, Any]) -> dict[str, Any]:
    """Run the script for one rule, with a temporary folder for its object and cache, and return the result to print."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "object.hsaco"
        path = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        # Some versions of Triton import setuptools to build launchers, which are not built here.
        if importlib.util.find_spec("setuptools") is None:
            (Path(folder) / "setuptools.py").touch()
            path.append(folder)
        done = subprocess.run(
            [sys.executable, script, *rule["arguments"], "-o", str(out), "--timeout", str(rule["timeout"])],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": ":".join(path), "TRITON_CACHE_DIR": f"{folder}/cache"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        code = out.read_bytes() if out.is_file() else b""
        try:
            status = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))["compile_status"]
        except (OSError, ValueError, KeyError):
            status = ""
        return {
            "id": rule["id"],
            "code": done.returncode,
            "status": status,
            "sha256": hashlib.sha256(code).hexdigest() if code else "",
            "size": len(code),
            "error": error_of(done.stdout),
            "reason": "\n".join(done.stdout.strip().splitlines()[-5:])[:2000],
        }


def main(arguments: list[str]) -> int:
    """Compile the rules of a job, print the results, and return the exit code."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    with concurrent.futures.ThreadPoolExecutor(job["jobs"]) as pool:
        for result in pool.map(lambda rule: compile_one(job["script"], rule), job["rules"]):
            print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
