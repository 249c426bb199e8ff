"""Compute the share of tests that assert the wording of this project's messages.

python -m scripts.asserted_wording          # prints the share
python -m scripts.asserted_wording --list   # also lists these tests, each with the first string found

A test asserts wording if a string in one of its `assert` statements or `match=` arguments contains a sequence of two or
more lower-case words whose first four words (or all words, if there are fewer) also occur in sequence in a string in
toolchain/ or lab/src/. If an `assert` or `match=` uses a parameter of the test, the values of the parameter are
compared as well. Commands and options in these strings are ignored.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
_COMMAND = re.compile(
    r"--[a-z-]+[ =][\w=:-]+|\btoolchain( [a-z][a-z-]+)+"
    r"|\b(kernels|cache|bundle|buildah|docker|skopeo|apt-get|oras) [a-z]+"
)
_RUN = re.compile(r"[a-z]{1,}(?: +[a-z]{1,})+")
_MOST = 4  # the maximum number of words that are compared, from the start of a sequence
_COMPARING = {"startswith", "endswith", "count", "search", "match", "fullmatch", "escape"}


def main(words: list[str]) -> None:
    known = {
        run[at : at + length]
        for tree in _trees("toolchain", "lab/src")
        for text in _texts(tree)
        for run in _runs(text)
        for length in range(2, _MOST + 1)
        for at in range(len(run) - length + 1)
    }
    count, found = 0, []
    for folder in ("tests", "lab/tests"):
        for path in sorted((TOP / folder).rglob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    count += 1
                    if told := next(
                        (
                            text
                            for text in _asserted(node)
                            if any(run[:_MOST] in known for run in _runs(_COMMAND.sub("", text)))
                        ),
                        "",
                    ):
                        found.append(f"{path.relative_to(TOP)}:{node.lineno} {node.name}: {told[:100]!r}")
    if "--list" in words:
        print("\n".join(found))
    print(f"{len(found)} of {count} tests assert wording ({100 * len(found) / count:.1f} %)")


def _trees(*folders: str) -> Iterator[ast.Module]:
    for folder in folders:
        for path in sorted((TOP / folder).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the strings in a syntax tree, except docstrings."""
    skipped = {id(part.value) for part in ast.walk(node) if isinstance(part, ast.Expr)}
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in skipped:
            yield part.value


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the sequences of two or more adjacent lower-case words in `text`."""
    for found in _RUN.finditer(text):
        yield tuple(found[0].split())


def _asserted(test: ast.FunctionDef) -> Iterator[str]:
    """Yield the strings in a test's `assert` statements and `match=` arguments, and in the parameters that they use."""
    used = [node.test for node in ast.walk(test) if isinstance(node, ast.Assert)]
    used += [node.value for node in ast.walk(test) if isinstance(node, ast.keyword) and node.arg == "match"]
    compared = [part for node in used for part in _compared(node)]
    for part in compared:
        yield from _texts(part)
    names = {part.id for part in compared if isinstance(part, ast.Name)}
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and len(decorator.args) > 1:
            arguments = _arguments(decorator.args[0])
            for row in getattr(decorator.args[1], "elts", []):
                cells = getattr(row, "elts", getattr(row, "args", [row]))
                for name, cell in zip(arguments, cells if len(arguments) > 1 else [row], strict=False):
                    if name in names:
                        yield from _texts(cell)


def _compared(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the constants and names in an expression, except paths, indexes and the arguments of most calls."""
    if isinstance(node, ast.Constant | ast.Name):
        yield node
    elif isinstance(node, ast.Call):
        yield from _compared(node.func)
        if getattr(node.func, "attr", "") in _COMPARING:
            for argument in node.args:
                yield from _compared(argument)
    elif isinstance(node, ast.Subscript):
        yield from _compared(node.value)
    elif not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        for child in ast.iter_child_nodes(node):
            yield from _compared(child)


def _arguments(node: ast.expr) -> list[str]:
    return [name.strip() for text in _texts(node) for name in text.split(",")]


if __name__ == "__main__":
    main(sys.argv[1:])
