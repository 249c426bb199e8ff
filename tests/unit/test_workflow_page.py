"""Tests of action.yml, and of the example workflows and the table of inputs in docs/github.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.unit.test_workflows import TOP, actionlint

PAGE = (TOP / "docs" / "github.md").read_text()
# The complete workflows of the page, without the example of a single step.
BLOCKS = re.findall(r"^```yaml\n(name: .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ACTION: dict[str, Any] = yaml.safe_load((TOP / "action.yml").read_text())


def test_example_workflows_pass_actionlint(tmp_path: Path) -> None:
    assert len(BLOCKS) == 2
    for number, block in enumerate(BLOCKS):
        path = tmp_path / ".github" / "workflows" / f"{number}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block)
        done = actionlint(path)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_example_workflows_have_the_pins_of_this_repository() -> None:
    ours = "".join(path.read_text() for path in (TOP / ".github" / "workflows").glob("*.yml"))
    pinned = re.findall(r"(?:uses|image): (\S+@\S+)", "".join(BLOCKS))
    assert len(pinned) >= 3
    assert [one for one in pinned if one not in ours] == ["OWNER/toolchain@COMMIT"]


def test_documented_inputs_are_those_of_the_action() -> None:
    (step,) = [
        step
        for block in BLOCKS
        for job in yaml.safe_load(block)["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("OWNER/toolchain@")
    ]
    assert set(step["with"]) <= set(ACTION["inputs"])
    table = PAGE.partition("| input | what |")[2].partition("\n\n")[0]
    told = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert told == set(ACTION["inputs"])


def test_action_reads_every_input_outside_its_scripts() -> None:
    text = (TOP / "action.yml").read_text()
    for name in ACTION["inputs"]:
        assert f"${{{{ inputs.{name} }}}}" in text, name
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], "no expression inside a script"
