"""engine.shell: where the step of a recipe has its sources."""

from __future__ import annotations

from toolchain.core import recipe
from toolchain.engine.shell import step_of


def test_the_step_of_llvm_has_its_source_and_its_unfinished_tree() -> None:
    step = step_of((recipe.root() / "containerfiles/llvm/Containerfile").read_text(encoding="utf-8"))
    assert step.sources == ["/src/llvm", "/sysroot", "/recipe"]
    assert step.caches["toolchain-llvm-tree"] == "/build"
