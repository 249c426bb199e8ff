"""Tests that input digests depend only on options that change the result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.request.model import Request
from toolchain.stages.aotriton import AotritonStage
from toolchain.stages.kernels import KernelsStage
from toolchain.stages.llvm import LlvmStage
from toolchain.stages.stage import Planned, Stage
from toolchain.stages.triton_source import TritonSourceStage

OF_KERNELS: tuple[dict[str, Any], ...] = (
    {"gpus": ("gfx950",)},
    {"select": "attn*"},
    {"limit": 3},
    {"keep_going": True},
)
CASES: list[tuple[Stage, dict[str, Any]]] = [
    *((stage, change) for stage in (KernelsStage(), AotritonStage()) for change in OF_KERNELS),
    (TritonSourceStage(), {"pythons": ("3.13",)}),
    (TritonSourceStage(), {"drop_binary": ("libdevice",)}),
    (LlvmStage(), {"only": "support"}),
]
STAGES: list[Stage] = [KernelsStage(), AotritonStage(), TritonSourceStage(), LlvmStage()]


def request_in(folder: Path) -> Request:
    return Request(cache=Cache(folder / "cache"), aotriton="0.13b", gpus=("gfx942",))


def digest(stage: Stage, request: Request) -> str:
    names, recipe = ("base", "sysroot", "hip", "llvm", "triton"), base_recipe("debian13", "amd64")
    if isinstance(stage, AotritonStage):
        request = replace(request, glibc="2.31")  # No base with a name has the HIP that a bound library needs.
    dependencies = {name: Planned(name=name, image=name, inputs={"x": name}, details=recipe) for name in names}
    result = stage.plan(request, dependencies).input_digest
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("stage", "change"), CASES, ids=[f"{stage.name}-{'-'.join(change)}" for stage, change in CASES]
)
def test_option_that_changes_the_result_changes_the_digest(
    tmp_path: Path, stage: Stage, change: dict[str, Any]
) -> None:
    request = request_in(tmp_path)
    assert digest(stage, replace(request, **change)) != digest(stage, request)


@pytest.mark.parametrize("stage", STAGES, ids=[stage.name for stage in STAGES])
def test_digest_depends_on_patches_but_not_on_options_that_change_no_byte(tmp_path: Path, stage: Stage) -> None:
    request, patch = request_in(tmp_path), tmp_path / "a patch"
    patch.write_text("one")
    patched = replace(request, patches=dict.fromkeys(("llvm", "triton", "aotriton", "flash-attn"), (patch,)))
    before, with_patch = digest(stage, request), digest(stage, patched)
    assert with_patch != before
    patch.write_text("two")
    assert digest(stage, patched) not in {before, with_patch}
    free = replace(request, jobs=3, offline=True, json=True, kernel_timeout=60.0, contract=False)
    assert digest(stage, free) == before
