"""Input digests of fixed requests, as they were: whoever has an image of one of these need not build it again.

They stand in tests/recorded/input-digests.json. Where a recipe or a default is changed on purpose, remake the file:
`python -m tests.unit.test_frozen_digests > tests/recorded/input-digests.json`, and say so in the commit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolchain.goals import stages_of
from toolchain.settings import Cache, Request
from toolchain.stages.stage import Planned

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "input-digests.json"
# How the wheel is named now; it came without a name when these were recorded.
WHEEL = {"triton": "pypi:3.7.1"}
DISTRO = {"llvm": "distro:llvm-toolchain-22"}
COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llvm of the default Triton": ("llvm", {}),
    "llvm of Triton 3.6.0": ("llvm", {"triton": "3.6.0"}),
    "llvm of Triton 3.8.0": ("llvm", {"triton": "3.8.0"}),
    "llvm of AOTriton 0.13b": ("llvm", {"aotriton": "0.13b"}),
    "llvm of the distribution": ("llvm", {"sources": DISTRO}),
    "tablegen of the distribution": ("llvm", {"sources": DISTRO, "only": "tablegen"}),
    "support": ("llvm", {"only": "support"}),
    "the quickstart": ("all", {"sources": {**DISTRO, **WHEEL}, "only": "tablegen", "gpus": ("gfx1100", "gfx942")}),
    "kernels with the wheel": ("kernels", {"sources": WHEEL}),
    "triton by its wheel": ("triton", {"sources": WHEEL}),
    "triton from a commit": ("triton", {"triton": COMMIT}),
    "triton from a commit by URL": (
        "triton",
        {"sources": {"triton": f"https://github.com/triton-lang/triton@{COMMIT}"}},
    ),
    "aotriton 0.10b": ("aotriton", {"aotriton": "0.10b"}),
    "aotriton 0.13b": ("aotriton", {"aotriton": "0.13b", "gpus": ("gfx942",)}),
}


def digests(folder: Path, goal: str, options: dict[str, Any]) -> dict[str, str | None]:
    """The input digests of a goal's stages above a base that is always the same one, by stage."""
    request = Request(cache=Cache(folder), **options)
    below = {"base": Planned(name="base", image="b", inputs={"x": "base"})}
    for stage in stages_of(goal, request):
        if stage.name != "base":
            planned = stage.plan(request, below)
            # The version of zlib is this machine's.
            below[stage.name] = replace(planned, inputs={**(planned.inputs or {}), "compressor": "gzip"})
    return {name: planned.input_digest for name, planned in below.items() if name != "base"}


@pytest.mark.parametrize("name", CASES)
def test_what_was_built_need_not_be_built_again(name: str, tmp_path: Path) -> None:
    assert digests(tmp_path, *CASES[name]) == json.loads(RECORDED.read_text())[name]


def test_all_that_is_recorded_is_looked_at() -> None:
    assert json.loads(RECORDED.read_text()).keys() == CASES.keys()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = {name: digests(Path(scratch), *case) for name, case in CASES.items()}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
