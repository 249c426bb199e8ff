"""The stages that the kernel worker shares between rules, with a fake compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolchain.kernels.worker_process import Job, groups

AOTRITON = Path(__file__).parents[2] / "aotriton"
# The fake compiler has three stages: it reads no launch option, then num_warps, then all options.
# The first two stages each append a line to a file.
PROGRAM = """
import dataclasses, json, os, signal, sys, time
import shared_stages
from shared_stages import Chain, DiedError, Metadata, SharedRule, watch

@dataclasses.dataclass(frozen=True)
class Options:
    num_warps: int = 4
    num_stages: int = 2
    waves_per_eu: int = 0
    arch: str = "gfx942"

    def all(self):
        return dict(vars(self))

def did(what):
    with open(sys.argv[1], "a") as stream:
        stream.write(what + "\\n")

def compile_here(shared):
    options = watch(Options(**shared.rule["options"]), shared)
    did("first " + options.arch)
    warps = options.num_warps
    did(f"warps {warps}")
    if shared.rule.get("dies"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if shared.rule.get("fails"):
        return {"failed": True}
    return {"warps": warps, "all": options.all(), "id": shared.rule["id"]}

chain = Chain(compile_here)
for line in sys.stdin:
    rule = json.loads(line)
    rule.update(rule["options"])
    if rule.get("kills"):
        os.kill(chain._child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, chain._child.pid, os.WEXITED | os.WNOWAIT)
    try:
        print(json.dumps(chain.compile(rule["group"], rule)), flush=True)
    except DiedError as error:
        print(json.dumps({"died": error.status}), flush=True)
chain.stop()
try:
    os.waitpid(-1, 0)
    print(json.dumps("a process is left"))
except ChildProcessError:
    pass
"""


def run(tmp_path: Path, rules: list[dict[str, Any]]) -> tuple[list[Any], list[str]]:
    """Return the answers, and the lines that the fake compiler appended to its file."""
    done = tmp_path / "done"
    done.touch()
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(done)],
        input="\n".join(map(json.dumps, rules)),
        env={"PYTHONPATH": str(AOTRITON)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    return [json.loads(line) for line in said.splitlines()], done.read_text().splitlines()


def rule(name: str, warps: int, stages: int, waves: int = 0, **more: Any) -> dict[str, Any]:
    options = {"num_warps": warps, "num_stages": stages, "waves_per_eu": waves}
    return {"id": name, "group": "one", "options": options, **more}


def test_consecutive_rules_share_stages_before_their_first_difference(tmp_path: Path) -> None:
    rules = [rule("a", 4, 1), rule("b", 4, 2), rule("c", 4, 2, 3), rule("d", 8, 2), rule("e", 4, 1)]
    answers, done = run(tmp_path, rules)

    assert [answer["id"] for answer in answers] == list("abcde")
    for given, answer in zip(rules, answers, strict=True):
        assert answer["all"] == {**given["options"], "arch": "gfx942"}
        assert answer["warps"] == given["options"]["num_warps"]
    assert done == ["first gfx942", "warps 4", "warps 8", "warps 4"]


@pytest.mark.parametrize("later", [False, True])
def test_dead_compiler_is_reported_and_the_next_rule_succeeds(tmp_path: Path, later: bool) -> None:
    before = [rule("a", 4, 1)] if later else []
    answers, _ = run(tmp_path, [*before, rule("b", 8, 1, dies=True), rule("c", 8, 1)])

    assert answers[-2] == {"died": 11}
    assert answers[-1]["id"] == "c"


def test_killed_waiting_process_fails_only_one_rule(tmp_path: Path) -> None:
    answers, _ = run(tmp_path, [rule("a", 4, 1), rule("b", 8, 1, kills=True), rule("c", 8, 1)])

    assert answers[1] == {"died": 9}
    assert answers[2]["id"] == "c"


def test_failed_rule_does_not_affect_other_rules(tmp_path: Path) -> None:
    answers, _ = run(tmp_path, [rule("a", 4, 1, fails=True), rule("b", 4, 1), rule("c", 8, 1)])

    assert answers[0] == {"failed": True}
    assert [answer["warps"] for answer in answers[1:]] == [4, 8]


def test_tasks_are_grouped_by_kernel_and_files_up_to_a_maximum() -> None:
    tasks = [{"id": str(n), "kernel": "ab"[n > 4], "num_warps": n, "out": str(n)} for n in range(7)]
    jobs = [Job(task, "ab"[task["id"] == "6"], Path()) for task in tasks]

    found = [[job.task["id"] for job in group] for group in groups(jobs, most=3)]
    assert found == [["0", "1", "2"], ["3", "4"], ["5"], ["6"]], "the last one sees other files"
