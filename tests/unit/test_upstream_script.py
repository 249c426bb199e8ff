"""Tests of the comparison of kernels with those that upstream's own compile script makes from the same rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plan_fixtures import BUILD, SIGNATURE, SOURCE, plan_of, tree_of
from tests.refusals import refused
from toolchain.core.errors import ContractError
from toolchain.kernels.aotriton_plan import parse_signature, read_plan
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import Entry
from toolchain.kernels.rules import RuleSet
from toolchain.stages.aotriton_comparison import Answer, compare, read_answers
from toolchain.stages.aotriton_images import KernelImages, upstream_arguments


def entry(
    out: str, status: str, sha256: str = "", reason: str = "TypeError: boom\nbecause", exit_code: int | None = None
) -> Entry:
    return Entry(
        id=out, kernel="attn", target="gfx942", out=out, cluster="c", status=status, reason=reason, sha256=sha256,
        exit_code=exit_code,
    )  # fmt: skip


def answer(sha256: str = "", *, code: int = 0, status: str = "", error: str = "") -> Answer:
    return Answer(
        id="x", code=code, status=status, sha256=sha256, size=len(sha256), error=error, reason="the last lines"
    )


def test_upstream_script_gets_the_signature_of_the_plan(tmp_path: Path) -> None:
    plan = read_plan(plan_of(tmp_path / "p", {"c1": ["a"]}), tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    arguments = upstream_arguments(plan.rules[0])
    # An argument that is known to be 1 is a constant for both sides.
    assert arguments[-1] == SIGNATURE.replace("u64:1", "1")
    assert arguments[0] == "/build/src/modules/flash/kernel/fwd.py"
    assert parse_signature(arguments[-1], [name for name, _ in plan.rules[0].signature], where="") == (
        plan.rules[0].signature,
        plan.rules[0].constexprs,
    )


BOOM = answer(code=1, error="TypeError: boom")


def test_equal_objects_and_equal_failures_pass() -> None:
    counts = compare([entry("a", "done", "ff")], [entry("b", "failed")], {"a": answer("ff"), "b": BOOM})
    assert counts == {"sampled": 1, "equal": 1, "failures": 1, "alike": 1}


@pytest.mark.parametrize(
    ("answers", "pattern"),
    [
        ({"a": answer("ee"), "b": BOOM}, "a: ff here, ee there"),
        ({"a": answer(), "b": BOOM}, "a: ff here, nothing there"),
        ({"a": answer("ff"), "b": answer("dd")}, r"b failed here \(TypeError: boom\), an object there"),
    ],
)
def test_different_bytes_or_a_failure_on_one_side_is_an_error(answers: dict[str, Answer], pattern: str) -> None:
    with pytest.raises(ContractError) as caught:
        compare([entry("a", "done", "ff")], [entry("b", "failed")], answers)
    assert re.search(pattern, caught.value.why)


@pytest.mark.parametrize(
    ("status", "reason", "exit_code", "there", "alike"),
    [
        ("failed", "TypeError: boom", None, answer(code=1, error="TypeError: boom"), True),
        # The script failed before it compiled the kernel.
        ("failed", "TypeError: boom", None, answer(code=2), False),
        ("failed", "the worker was ended by SIGABRT\nLLVM ERROR", -6, answer(code=-6), True),
        ("failed", "the worker was ended by SIGABRT\nLLVM ERROR", -6, answer(code=1, error="OSError: no"), False),
        ("failed", "the file is empty", None, answer(), True),
        ("failed", "the file is empty", None, answer(code=1, error="TypeError: boom"), False),
        ("timeout", "no result after 3 s", None, answer(status="Timeout"), True),
        ("timeout", "no result after 3 s", None, answer(status="Exception"), False),
    ],
)
def test_only_the_same_failure_is_accepted(
    status: str, reason: str, exit_code: int | None, there: Answer, alike: bool
) -> None:
    bad = [entry("b", status, reason=reason, exit_code=exit_code)]
    if alike:
        assert compare([], bad, {"b": there})["alike"] == 1
    else:
        with refused("comparison-differs"):
            compare([], bad, {"b": there})


def test_answer_names_the_last_exception_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "try:\n    raise KeyError('inner')\nexcept KeyError as e:\n    raise ValueError('first\\nerror: more') from e\n"
    )
    job = {"script": str(script), "jobs": 1, "rules": [{"id": "x", "arguments": [], "timeout": 0}]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    upstream = Path(__file__).resolve().parents[2] / "aotriton/upstream.py"
    done = subprocess.run([sys.executable, upstream, tmp_path / "job.json"], capture_output=True, text=True, check=True)
    answer_ = json.loads(done.stdout)
    assert (answer_["code"], answer_["error"], answer_["size"]) == (1, "ValueError: first", 0)


def test_kernel_over_its_memory_limit_is_not_given_to_upstream_script(tmp_path: Path) -> None:
    """The memory of the script has no limit. A kernel that timed out after an hour may also take an hour there."""
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b", "c"]})
    rules = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE).rules
    good, large, late = rules
    entries = (
        Entry.of(good, "done", sha256="ab"),
        Entry.of(large, "failed", reason="memory: 9 GB, one kernel may take 4 GB", over_memory=True),
        Entry.of(late, "timeout", reason="no result after 3600 s"),
    )
    sent: list[dict[str, Any]] = []

    def run(_: str, __: object, *, mounts: Sequence[Any], **___: object) -> Any:
        (path,) = (mount.source for mount in mounts if mount.target == "/job.json")
        sent.extend(json.loads(path.read_text())["rules"])
        answers = {
            good.id: {"sha256": "ab", "size": 1, "status": "Complete"},
            late.id: {"sha256": "", "size": 0, "status": "Timeout"},
        }
        rows = [{"id": mount["id"], "code": 0, "error": "", "reason": "", **answers[mount["id"]]} for mount in sent]
        return SimpleNamespace(stdout="\n".join(map(json.dumps, rows)))

    workspace: Any = SimpleNamespace(
        request=SimpleNamespace(kernel_timeout=None), work=lambda: tmp_path, jobs=lambda _: 1, log=tmp_path / "log",
        runner=SimpleNamespace(run=run), on_line=print,
    )  # fmt: skip
    result = CampaignResult(entries=entries, skipped=0, partial=False, about={})
    images = KernelImages(folder, tmp_path / "t", "image", workspace)
    assert images.against_upstream(RuleSet(rules, total=3), result)["failures"] == 1
    assert [(row["id"], row["timeout"]) for row in sent] == [(good.id, 0), (late.id, 60.0)]


@pytest.mark.parametrize("printed", ["garbage", "[]", '{"id": 7}', '{"id": "x", "code": "0"}', "[" * 10**5])
def test_malformed_answer_of_the_script_is_an_error(printed: str) -> None:
    with refused("comparison-failed"):
        read_answers(printed)


def test_rule_without_an_answer_is_an_error() -> None:
    with refused("comparison-failed"):
        compare([entry("a", "done", "ff")], [], {})
