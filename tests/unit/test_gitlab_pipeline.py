"""Tests of the pipeline for GitLab: its schema, its scripts, and its calls of the tool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from tests.unit.test_site import calls, check_line
from tests.unit.test_workflows import TOP

PIPELINE = TOP / "examples" / "gitlab" / "gitlab-ci.yml"
JOBS: dict[str, Any] = yaml.safe_load(PIPELINE.read_text(encoding="utf-8"))
VALUES = {**JOBS["variables"], "SIGNING_KEY": "key", "layer": f"registry.example/ns/name@sha256:{'1' * 64}"}


def test_pipeline_is_valid_by_a_schema_that_refuses_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(yaml.safe_dump({**JOBS, "layer": {**JOBS["layer"], "tag": ["privileged"]}}))
    words = ["check_jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]
    words = [sys.executable, "-m", *words, "-o", "JSON", str(PIPELINE), str(wrong)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert {Path(error["filename"]).name for error in json.loads(done.stdout)["errors"]} == {"wrong.yml"}, done.stderr


def test_tool_parses_its_calls_in_the_pipeline() -> None:
    lines = "\n".join(line for name in ("verify", "layer") for line in JOBS[name]["script"])
    found = list(calls(Template(lines).safe_substitute(VALUES)))
    assert [words[1] for words in found] == ["verify", "build", "publish", "verify"]
    for words in found:
        check_line([word for word in words if word not in {">", "published.json"}])


@pytest.mark.parametrize("job", ["verify", "layer"])
def test_scripts_pass_shellcheck(job: str) -> None:
    variables = "".join(
        f"export {name}=x\n" for name in (*JOBS["variables"], *JOBS[job].get("variables", ()), "SIGNING_KEY")
    )
    script = "\n".join([*JOBS[".tool"]["before_script"], *JOBS[job]["script"]])
    program = shutil.which("shellcheck")
    assert program is not None
    # SC2086 is excluded because the list of packages must be split.
    words = [program, "--shell=sh", "--exclude=SC2086", "-"]
    done = subprocess.run(words, input=variables + script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(
    shutil.which("jq") is None, reason="JQ IS NOT INSTALLED: the line that reads the plan is NOT tested"
)
def test_the_layer_is_named_by_its_digest(tmp_path: Path) -> None:
    (line,) = (line for line in JOBS["layer"]["script"] if line.startswith("layer="))
    (tmp_path / "published.json").write_text(
        json.dumps({"published": [{"refs": ["host:5000/ns/name:latest"], "digest": "sha256:1"}]})
    )
    words, env = ["sh", "-c", f'{line}; echo "$layer"'], {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "host:5000/ns/name@sha256:1\n"
