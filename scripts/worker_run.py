"""Compile rules of AOTriton's plan with one worker process, and define the arguments that such scripts share."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.catalog.aotriton_generations import generation_of
from toolchain.kernels.aotriton_plan import read_plan
from toolchain.kernels.rules import Rule
from toolchain.stages.kernel_workers import VARIABLES

TOP = Path(__file__).resolve().parents[1]
START = TOP / "aotriton" / "start.py"


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments plan, source, python, --gpu and --release."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("python")
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--release", default="0.13b", help="the AOTriton release whose generator wrote the plan")
    return parser


def planned(given: argparse.Namespace) -> tuple[Rule, ...]:
    """Return the rules of the plan that the arguments of `command_line` name."""
    of = generation_of(given.release)
    return read_plan(given.plan, given.source, build=str(given.plan), source=str(given.source), of=of).rules


def compile_rules(
    python: str, source: Path, rules: Sequence[Rule], folder: Path, changed: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Compile rules to `folder/ID.hsaco` with one worker process, and return the worker's answers.

    Args:
        changed: environment variables to add or replace.
    """
    tasks = [rule.task(str(source), str(folder)) for rule in rules]
    for task in tasks:
        task["out"] = str(folder / f"{task['id']}.hsaco")
    env = {**VARIABLES, "TRITON_F32_DEFAULT": "ieee", "TRITON_CACHE_DIR": str(folder / "cache"), **changed}
    lines = "".join(json.dumps(task) + "\n" for task in tasks)
    argv: list[str | Path] = [python, START, "", ""]
    done = subprocess.run(argv, env=env, check=True, input=lines, stdout=subprocess.PIPE, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()[1:]]
    if failed := [answer for answer in answers if answer["status"] != "done"]:
        raise SystemExit(f"a rule was not compiled: {failed[0]}")
    return answers
