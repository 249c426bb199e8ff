"""Tests of the Containerfile that is rendered for a build, and of the checks of a build's output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.process import CommandError
from toolchain.core.recipe import Recipe
from toolchain.engine import isolation, relay
from toolchain.engine.buildah import render
from toolchain.engine.isolation import PROOF
from toolchain.engine.judge import build_error, first_error

TOP = Path(__file__).parents[2]
CONTAINERFILE = """\
ARG BASE
FROM ${BASE} AS build
ARG X
RUN --mount=type=cache,id=toolchain-llvm-tree,target=/build \\
    # RUN in a comment
    --mount=type=cache,id=toolchain-llvm-tree-not,target=/other \\
    --mount=type=cache,id=toolchain-ccache,target=/ccache \\
    RUN=1 sh build.sh
RUN true
FROM build AS second
run echo lower
FROM scratch
COPY --from=build /out/ /
"""


def recipe(**change: object) -> Recipe:
    values: dict[str, object] = {"name": "llvm", "containerfile": "C", "base": "b", "cache_key": "abc"}
    return Recipe(**(values | change))  # type: ignore[arg-type]


def test_cache_mounts_are_named_after_their_keys() -> None:
    text = render(recipe(), CONTAINERFILE)
    assert "id=toolchain-llvm-tree-abc,target=/build" in text
    assert "id=toolchain-llvm-tree-not,target=/other" in text
    assert "id=toolchain-llvm-tree,target" in render(recipe(cache_key=""), CONTAINERFILE)
    # The compiler cache has the key of its sources, or is not mounted.
    assert "id=toolchain-ccache-0123,target=/ccache \\" in render(recipe(compiler_cache="0123"), CONTAINERFILE)
    assert "ccache" not in text
    assert "RUN=1 sh build.sh" in text


@pytest.mark.parametrize(
    "path", sorted((TOP / "containerfiles").rglob("Containerfile")), ids=lambda path: path.parent.name
)
def test_each_build_tree_belongs_to_one_input_digest(path: Path) -> None:
    """Another build could leave objects in a tree without a key; `unfinished` and `--fresh` look for this name."""
    text = path.read_text()
    trees = re.findall(r"type=cache,id=([^,]*),target=/build\b", render(recipe(name="a-name"), text))
    assert trees == ["toolchain-a-name-tree-abc"] * text.count("target=/build ")


def test_each_stage_with_a_run_step_proves_that_it_is_offline() -> None:
    lines = render(recipe(cache_key="", compiler_cache="0"), CONTAINERFILE).splitlines()
    expected = CONTAINERFILE.replace("toolchain-ccache", "toolchain-ccache-0").splitlines()
    assert [line for line in lines if line not in {PROOF, relay.SHELL}] == expected, "nothing else changes"
    places = [number for number, line in enumerate(lines) if line == PROOF]
    assert [lines[number + 1].split()[0] for number in places] == ["RUN", "run"]
    assert PROOF not in render(recipe(network=True), CONTAINERFILE)


def test_build_without_proof_of_isolation_is_refused() -> None:
    seen: list[str] = []
    witness = isolation.NetworkProbe(seen.append)
    witness.line("[1/2] STEP 3/4: RUN true")
    with refused("build-not-isolated"):
        witness.check(finished=True)
    witness.line("@interfaces 0")
    witness.check(finished=True)
    witness.line("@interfaces 2")
    with refused("build-not-isolated"):
        witness.check(finished=False)
    assert seen == ["[1/2] STEP 3/4: RUN true"]
    copied_only = isolation.NetworkProbe(None)
    copied_only.line("STEP 2/2: COPY a b")
    copied_only.check(finished=True)


def test_first_error_begins_with_the_error_of_the_compiler() -> None:
    lines = [f"-- checking {number}" for number in range(60)]
    error = ["/src/a.cpp:3:5: error: expected ';' after expression", "    3 |   x", "      |    ^"]
    lines += ["FAILED: lib/a.o", *error, *(f"note {number}" for number in range(30)), "ninja: build stopped"]
    shown = first_error(lines).splitlines()
    assert shown[:3] == error
    assert shown[-1] == "ninja: build stopped"
    assert len(shown) < 25
    assert first_error(lines[:60]).splitlines() == lines[20:60]


def test_exception_of_a_generator_is_shown_before_the_error_of_cmake() -> None:
    """CMake only reports that its child process failed."""
    raised = [
        '  File "shim.py", line 103, in main',
        "    connection.execute(text)",
        "sqlite3.OperationalError: no such column",
    ]
    lines = [*(f"step {number}" for number in range(30)), "KeyError: told, not raised", *raised, "CMake Error at x:141"]
    assert first_error(lines).splitlines()[0] == raised[-1]
    assert first_error([*lines[:-1], "a.cpp:1: error: no"]).splitlines()[0] == "a.cpp:1: error: no"


def test_stage_without_instructions_gets_a_label() -> None:
    text = (
        "FROM ${LLVM} AS llvm\n# a comment\n\nFROM scratch AS sysroot\n\nFROM ${BASE} AS build\nCOPY --from=llvm / /\n"
    )
    lines = render(recipe(), text).splitlines()
    assert [lines[number + 1].split()[0] for number, line in enumerate(lines) if line.startswith("FROM ${")] == [
        "LABEL",
        "COPY",
    ]


def test_only_the_last_try_of_a_script_gives_the_reason() -> None:
    first = ("@step configure", "@step compile", "ld.lld: error: undefined symbol: text()", "all are compiled now")
    second = ("@step configure", "toolchain: no disk", "@step compile", "a.cpp:1:2: error: no such name")
    error = build_error("llvm", CommandError(["buildah"], 1, (*first, *second)))
    assert error.what == "building llvm failed: no disk"
    assert error.why.startswith("a.cpp:1:2: error: no such name")
    assert "undefined symbol" in build_error("llvm", CommandError(["buildah"], 1, first)).why
