"""Tests of the table of calls for which the kernels of a wheel are compiled."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.triton_cache_fixtures import CALLS
from toolchain.core.errors import UnsupportedError
from toolchain.kernels.calls import calls_of, listed


@pytest.mark.parametrize("wheel", ["vllm", "aiter"])
def test_module_has_exactly_the_functions_in_the_table_of_calls(wheel: str) -> None:
    table = calls_of(wheel)
    tree = ast.parse((CALLS.parent / f"{table.module}.py").read_text())
    (made_,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_FUNCTIONS"
    ]
    assert isinstance(made_, ast.Dict)
    names_ = [ast.literal_eval(key) for key in made_.keys if key is not None]
    assert sorted(names_) == sorted({name for row in table.call for name in row["function"]})


@pytest.mark.parametrize("ask", [lambda: calls_of("torch"), lambda: listed(calls_of("flash-attn"), ["gfx90a"])])
def test_unlisted_wheel_or_gpu_is_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError):
        ask()
