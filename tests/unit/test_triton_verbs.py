"""Tests of `--triton` with every kind of value, in the verbs that plan with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from tests.git_server import triton_repository
from tests.refusals import refused
from toolchain.catalog.releases import triton_release
from toolchain.cli.app import app
from toolchain.core.errors import UnsupportedError
from toolchain.kernels.result_name import FORMAT
from toolchain.pipeline.plan import PlanRow, plan
from toolchain.request.model import Request
from toolchain.sources.tree import Source

UPSTREAM = "https://github.com/triton-lang/triton"
NEWEST = triton_release("3.7.1")
COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
NOWHERE = "0123456789" * 4
# The words before `--triton`, and the function that gets the request; the fixture replaces this function.
VERBS: dict[str, tuple[tuple[str, ...], str]] = {
    "plan": (("plan", "GOAL"), "toolchain.cli.plan_cmd.plan_stages"),
    "fetch": (("fetch", "GOAL"), "toolchain.cli.plan_cmd.resolved_plan"),
    "lock": (("lock", "GOAL"), "toolchain.pipeline.plan.resolved_plan"),
    "build": (("build", "GOAL"), "toolchain.cli.build_cmd.build_stages"),
    "kernels run": (("kernels", "run"), "toolchain.cli.build_cmd.build_stages"),
    "kernels merge": (("kernels", "merge", "kernels", "store"), "toolchain.cli.build_cmd.build_stages"),
    "kernels worker": (("kernels", "worker", "tcp://127.0.0.1:1"), "toolchain.pipeline.cluster_member.serve_kernels"),
    "bundle export": (("bundle", "export", "oci:out", "GOAL"), "toolchain.bundle.export.export"),
}
GOALS = ("triton", "kernels", "all", "aotriton")
# The verbs share the code that reads the option, so only these values are tested with every verb.
EVERYWHERE = {"3.7.1", "../checkout", "2.2.0", ""}


class SeenError(Exception):
    """The error that ends a verb after its request was recorded."""


@dataclass
class Run:
    """A runner of verbs, which records a verb's request and stops before the verb's work."""

    folder: Path
    requests: list[tuple[Request, str]] = field(default_factory=list)

    def call(self, verb: str, target: str, *options: str, env: dict[str, str] | None = None) -> tuple[int, str]:
        self.requests.clear()
        words = [target if word == "GOAL" else word for word in VERBS[verb][0]]
        done = CliRunner().invoke(app, [*words, *options], env=env)
        assert done.exit_code != 1 or isinstance(done.exception, SeenError), done.exception
        return (0 if self.requests else done.exit_code), done.stderr

    def source(self, name: str = "triton") -> Source:
        """Return the source with this name from the plan of the request."""
        ((request, target),) = self.requests
        rows: list[PlanRow] = plan(request, target)
        return next(source for row in rows for source in row.planned.sources if source.name == name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "store").mkdir()
    (folder / "store/kernel-store.json").write_text(json.dumps({"format": FORMAT}))
    (tmp_path / "empty").mkdir()
    (tmp_path / "llvm-hash.txt").write_text(NEWEST.llvm)
    triton_repository(tmp_path / "checkout", version="3.6.0", llvm=NEWEST.llvm, tag="v3.6.0")
    made = Run(folder)

    def seen(request: Request, target: str = "kernels", *_: Any, **__: Any) -> None:
        made.requests.append((request, target))
        raise SeenError

    for _, where in VERBS.values():
        monkeypatch.setattr(where, seen)
    return made


def test_every_verb_with_the_triton_option_is_known() -> None:
    def verbs(command: Any, words: tuple[str, ...]) -> Iterator[str]:
        command = getattr(command, "loaded", command)
        for name, below in getattr(command, "commands", {}).items():
            yield from verbs(below, (*words, name))
        if any("--triton" in parameter.opts for parameter in command.params):
            yield " ".join(words)

    assert set(verbs(typer.main.get_command(app), ())) == {*VERBS, "pins", "reproduce", "shell"}


def at(ref: str) -> Callable[[Source], bool]:
    return lambda source: (source.ref, source.repository) == (ref, UPSTREAM)


KINDS: list[tuple[str, Callable[[Source], bool] | int, str]] = [
    ("3.7.1", at(NEWEST.commit), ""),
    ("3.7", at(NEWEST.commit), "Triton 3.7 is 3.7.1"),
    ("3.6.0", at("v3.6.0"), ""),
    (COMMIT, at(COMMIT), ""),
    (COMMIT.upper(), at(COMMIT), ""),
    ("../checkout", lambda source: source.ref == "local:checkout" and source.repository == "local", ""),
    ("../llvm-hash.txt", 4, "does not name a Triton"),
    ("../empty", 4, "not a checkout of Triton"),
    ("3.6.7", 7, "the nearest known: 3.6.0 and 3.7.0"),
    ("4.0", 7, "the nearest known: 3.9.0"),
    ("3.99.0", 7, "second LLVM"),
    ("2.2.0", 7, "cannot be built here"),
    (NOWHERE, at(NOWHERE), ""),
    (COMMIT[:12], 4, "nor a commit of 40 digits"),
    ("junk", 4, "junk"),
    ("", 4, "does not name a Triton"),
]


@pytest.mark.parametrize(("value", "wanted", "says"), KINDS, ids=[repr(kind[0]) for kind in KINDS])
def test_value_of_the_triton_option_selects_its_source_or_is_refused(
    run: Run, value: str, wanted: Callable[[Source], bool] | int, says: str
) -> None:
    for verb in VERBS if value in EVERYWHERE else ("plan", "kernels run"):
        for target in GOALS if verb == "plan" else ("triton",):
            also = ("--source", f"aotriton={UPSTREAM}@{NOWHERE}") if target == "aotriton" else ()
            code, output = run.call(verb, target, "--triton", value, *also)
            if isinstance(wanted, int) and code == 0:
                # The plan refuses a value that only the data of the releases can refuse.
                with pytest.raises(UnsupportedError):
                    run.source()
                continue
            assert code == (wanted if isinstance(wanted, int) else 0), (verb, target, output)
            assert says in output, (verb, target, output)
            if not isinstance(wanted, int):
                assert wanted(run.source()), (verb, target, run.source())


def test_default_triton_is_from_source_and_a_wheel_must_be_requested(run: Run) -> None:
    def call(verb: str, *words: str) -> tuple[int, str]:
        code, output = run.call(verb, "kernels", *words)
        # Verbs with a kernel store warn that it has no key.
        return code, "".join(line for line in output.splitlines(keepends=True) if "--kernel-key" not in line)

    for verb in VERBS:
        assert call(verb) == (0, "")
        assert at(NEWEST.commit)(run.source()), verb
        code, output = call(verb, "--source", "triton=pypi:3.7.1", "--allow-binary", "triton-wheel")
        assert (code, output, run.source().ref) == (0, "", "pypi:triton==3.7.1")
    assert run.call("plan", "kernels", "--source", "triton=pypi:3.6.0")[0] == 0
    with refused("wheel-digest-unknown", "triton==3.6.0"):
        run.source()
