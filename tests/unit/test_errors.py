"""Tests that every error advises the user, by its argument `fix` or by its class."""

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
    """Return the calls in a module that create an error of a class in `errors.py`, each with its line."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [
        (node.lineno, node)
        for node in found
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES
    ]


def test_every_error_has_a_fix_or_a_class_with_advice() -> None:
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


def test_no_module_defines_an_error_with_a_new_exit_code() -> None:
    for module in pkgutil.walk_packages([str(TOP)], "toolchain."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, ToolchainError):
                assert value.code in {1, *(one.code for one in CLASSES.values())}, value
