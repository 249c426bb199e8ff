"""Collect the ids of errors that `toolchain` and `toolchain_lab` raise, for docs/exit-codes.md."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from toolchain.core import errors
from toolchain_lab.bridge import CLASSES

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "exit-codes.md"
SEVERAL = 0  # stands for the exit code of an id if the class of the error is chosen at run time
_TITLE = "\n## Ids of errors\n"
_HEAD = f"""{_TITLE}
Made by `python -m scripts.site_pages`. A terminal shows an id in brackets, `--json` as the key `id`. Messages may
change; the id of a situation does not.

| code | ids |
|---|---|
"""


def page() -> str:
    """Return the content of docs/exit-codes.md with the current ids."""
    by_code = defaultdict(list)
    for name, code in sorted(collected().items()):
        by_code[code].append(f"`{name}`")
    rows = [f"| {code or 'by cause'} | {', '.join(ids)} |" for code, ids in sorted(by_code.items())]
    return PAGE.read_text(encoding="utf-8").partition(_TITLE)[0] + _HEAD + "\n".join(rows) + "\n"


@functools.cache
def collected() -> dict[str, int]:
    """Return the exit code of every id, or `SEVERAL`. Raise ValueError if an id has two codes or an error has no id."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("toolchain", "lab/src")
        for path in sorted((TOP / folder).rglob("*.py"))
    }
    codes = _codes(trees.values())
    shared = {name: code for tree in trees.values() for name, code in _passing(tree, codes) if name[0] != "_"}
    by_id: dict[str, set[int]] = defaultdict(set, usage={2})
    for path, tree in trees.items():
        emulator = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                    and node.module == "toolchain_lab.emulator.errors" for alias in node.names}  # fmt: skip
        known = {**codes, **{kind.__name__: code.code for kind, code in CLASSES.items() if kind.__name__ in emulator}}
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        passing = {**{name: shared[name] for name in names & shared.keys()}, **dict(_passing(tree, known))}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            named = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            ids = list(_literals(node.args[0])) if node.args else []
            if named in known and named != "CommandError" and not ids and not _passed(node):
                raise ValueError(f"{path}:{node.lineno}: an error without an id")
            if code := known.get(named) or passing.get(named):
                for one in ids:
                    by_id[one].add(code)
            elif named in {"error", "kind"} and {"why", "fix"} & {word.arg for word in node.keywords}:
                for one in ids:
                    by_id.setdefault(one, set())
    if twice := {name: found for name, found in by_id.items() if len(found) > 1}:
        raise ValueError(f"ids of errors with several exit codes: {twice}")
    return {name: next(iter(found), SEVERAL) for name, found in by_id.items()}


def _codes(trees: Iterable[ast.Module]) -> dict[str, int]:
    """Return the exit codes of the classes in `toolchain.core.errors` and of their subclasses, by name."""
    codes = {name: value.code for name, value in vars(errors).items() if hasattr(value, "code")}
    codes["Fault"] = errors.UntrustedError.code  # a `Fault` gives its id to an UntrustedError
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if isinstance(base, ast.Name) and base.id in codes:
                        codes.setdefault(node.name, codes[base.id])
    return codes


def _passing(tree: ast.Module, known: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the name of each function that has a parameter `id` and creates an error, with the error's exit code."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and "id" in {word.arg for word in function.args.args}:
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                    yield function.name, known[node.func.id]


def _literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)


def _passed(call: ast.Call) -> bool:
    """Return whether an error takes its id from another error or from a parameter."""
    first = call.args[0] if call.args else None
    return getattr(first, "attr", getattr(first, "id", "")) == "id"
