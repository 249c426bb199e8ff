"""docs/github.md and action.yml: what people copy is linted, pinned as ours is, and says what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.unit.test_workflows import TOP, actionlint

PAGE = (TOP / "docs" / "github.md").read_text()
# Whole workflows, and not the step that takes another one's place.
BLOCKS = re.findall(r"^```yaml\n(name: .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ACTION: dict[str, Any] = yaml.safe_load((TOP / "action.yml").read_text())


def test_workflows_to_copy_pass_the_linter(tmp_path: Path) -> None:
    assert len(BLOCKS) == 2
    for number, block in enumerate(BLOCKS):
        path = tmp_path / ".github" / "workflows" / f"{number}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block)
        done = actionlint(path)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_workflows_to_copy_are_pinned_as_ours() -> None:
    ours = "".join(path.read_text() for path in (TOP / ".github" / "workflows").glob("*.yml"))
    pinned = re.findall(r"(?:uses|image): (\S+@\S+)", "".join(BLOCKS))
    assert len(pinned) >= 3
    assert [one for one in pinned if one not in ours] == ["OWNER/toolchain@COMMIT"]


def test_inputs_that_are_used_and_told_exist() -> None:
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


def test_the_action_hands_every_input_on() -> None:
    text = (TOP / "action.yml").read_text()
    for name in ACTION["inputs"]:
        assert f"${{{{ inputs.{name} }}}}" in text, name
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], "no expression inside a script"
