"""Every error says what to do: each place that raises one gives it, or its class does."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import toolchain
from toolchain.core import errors
from toolchain.core.errors import ToolchainError

TOP = Path(toolchain.__file__).resolve().parent
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, ToolchainError) and value is not ToolchainError
}


def calls(path: Path) -> list[tuple[int, ast.Call]]:
    """Where a module makes an error of a class of `errors.py`, by line."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        (node.lineno, node)
        for node in found
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES
    ]


def test_every_place_that_raises_an_error_says_what_to_do() -> None:
    seen, silent = 0, []
    for path in sorted(TOP.rglob("*.py")):
        for line, call in calls(path):
            assert isinstance(call.func, ast.Name)
            seen += 1
            said = any(word.arg in {"fix", None} for word in call.keywords)
            if not said and not CLASSES[call.func.id].advice:
                silent.append(f"{path.relative_to(TOP)}:{line}")
    assert seen > 450
    assert silent == []


def test_no_module_defines_an_error_with_a_code_of_its_own() -> None:
    for module in pkgutil.walk_packages([str(TOP)], "toolchain."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, ToolchainError):
                assert value.code in {1, *(one.code for one in CLASSES.values())}, value
