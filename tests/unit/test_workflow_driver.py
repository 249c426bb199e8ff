"""What runs the workflows in tests reads them as GitHub does: expressions, conditions, needs, matrices, stand-ins."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import workflow_steps
from tests.workflow_expressions import ExpressionError, Scope, holds, value_of
from tests.workflow_machine import TEMP
from tests.workflow_steps import Event, Service, run_workflow

CONTEXTS = {
    "inputs": {"stage": "llvm", "only": "", "keep": False, "days": 14, "list": '["a", "b"]'},
    "needs": {"one": {"result": "success", "outputs": {"refs": "[]"}}},
    "steps": {"find": {"outputs": {"changed": "true"}}},
    "github": {"ref": "refs/tags/v1", "event": {"repository": {"private": True}}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a-${{ inputs.stage }}-${{ github.ref }}", "a-llvm-refs/tags/v1"),
        ("${{ inputs.days }}", 14),
        ("${{ inputs.keep || inputs.only }}", ""),
        ("${{ !(inputs.only || inputs.none) && 'file' || '' }}", "file"),
        ("${{ inputs.only == '' && 'all' || 'part' }}", "all"),
        ("${{ inputs.none == '' }}", True),
        ("${{ contains(inputs.stage, 'LV') }}", True),
        ("${{ join(fromJSON(inputs.list), ',') }}", "a,b"),
        ("${{ format('{0}-{1}', inputs.stage, 'it''s') }}", "llvm-it's"),
        ("${{ needs.one.outputs.refs != '[]' }}", False),
        ("${{ github.event.repository['private'] }}", True),
    ],
)
def test_values(text: str, value: object) -> None:
    assert value_of(text, Scope(CONTEXTS)) == value


@pytest.mark.parametrize("text", ["${{ secret.KEY }}", "${{ toJSON(inputs) }}", "${{ inputs.a && }}", "${{ a ? b }}"])
def test_what_is_not_known_is_no_empty_text(text: str) -> None:
    with pytest.raises(ExpressionError):
        value_of(text, Scope(CONTEXTS))


@pytest.mark.parametrize(
    ("condition", "after"),
    [
        (None, {"success"}),
        ("inputs.stage == 'llvm'", {"success"}),
        ("inputs.stage == 'base'", set()),
        ("always()", {"success", "failure", "cancelled"}),
        ("${{ !cancelled() && steps.find.outputs.changed == 'true' }}", {"success", "failure"}),
        ("failure()", {"failure"}),
    ],
)
def test_conditions(condition: str | None, after: set[str]) -> None:
    assert {one for one in ("success", "failure", "cancelled") if holds(condition, Scope(CONTEXTS, one))} == after


class Here:
    """Runs steps on this machine: enough to see what the driver does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "temp").mkdir(parents=True)

    def outside(self, path: str) -> Path:
        return self.home / "temp" / path.removeprefix(TEMP).lstrip("/")

    def run(
        self, shell: list[str], script: str, env: Mapping[str, str], *, log: Path, cancel: Callable[[], bool] | None
    ) -> int:
        if cancel is not None and cancel():
            return 137
        log.touch()
        given = {name: value.replace(TEMP, str(self.home / "temp")) for name, value in env.items()}
        done = subprocess.run([shell[0], "-e", "-c", script], env={"PATH": "/usr/bin:/bin"} | given, check=False)
        return done.returncode

    def remove(self) -> None:
        pass


def driven(tmp_path: Path, text: str, **event: Any) -> tuple[dict[str, str], Service]:
    path = tmp_path / "some.yml"
    path.write_text("name: some\non: workflow_dispatch\njobs:\n" + text)
    service = Service(folder=tmp_path / "github", machine=lambda _job, _yaml, home: Here(home))  # type: ignore[arg-type,return-value]
    service.folder.mkdir()
    return run_workflow(path, Event(**event), service), service


JOBS = """
  one:
    runs-on: x
    outputs: {word: "${{ steps.say.outputs.word }}", list: '["a", "b"]'}
    steps:
      - id: say
        env: {GIVEN: "${{ vars.WORD }}"}
        run: |
          echo "word=$GIVEN" >> "$GITHUB_OUTPUT"
          echo "LATER=yes" >> "$GITHUB_ENV"
      - run: test "$LATER" = yes
  two:
    needs: one
    runs-on: x
    strategy: {matrix: {leg: "${{ fromJSON(needs.one.outputs.list) }}"}}
    env: {LEG: "${{ matrix.leg }}"}
    steps:
      - name: Fails in one leg
        run: test "$LEG" = a
      - name: Behind it
        run: "true"
      - name: Always
        if: always()
        run: "true"
  three:
    needs: two
    runs-on: x
    steps: [{run: "true"}]
  four:
    needs: two
    if: ${{ !cancelled() && needs.two.result != 'skipped' }}
    runs-on: x
    steps: [{run: "true"}]
"""


def test_outputs_environment_matrix_and_needs(tmp_path: Path) -> None:
    results, service = driven(tmp_path, JOBS, variables={"WORD": "hello"})
    assert results == {"one": "success", "two": "failure", "three": "skipped", "four": "success"}
    assert service.steps("two(a)", "success") == ["Fails in one leg", "Behind it", "Always"]
    assert service.steps("two(b)", "skipped") == ["Behind it"]
    assert service.steps("two(b)", "success") == ["Always"]


def test_a_cancelled_step_ends_the_run(tmp_path: Path) -> None:
    results, service = driven(tmp_path, JOBS, cancels={"Fails in one leg": lambda _machine: True})
    assert results == {"one": "success", "two": "cancelled", "three": "skipped", "four": "skipped"}
    assert service.steps("two(a)", "success") == ["Always"]


def test_an_action_that_nothing_stands_in_for_is_refused(tmp_path: Path) -> None:
    text = "  one:\n    runs-on: x\n    steps:\n      - uses: somebody/something@0000\n"
    with pytest.raises(ExpressionError, match="nothing stands in for somebody/something"):
        driven(tmp_path, text)


def test_every_action_of_the_workflows_has_a_stand_in() -> None:
    used = set()
    for path in sorted((workflow_steps.TOP / ".github" / "workflows").glob("*.yml")):
        for job in workflow_steps.read(path)["jobs"].values():
            used |= {step["uses"].partition("@")[0] for step in job.get("steps", []) if "uses" in step}
    assert used == set(workflow_steps.STAND_INS)
