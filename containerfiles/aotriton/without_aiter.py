"""Edit the tuning databases in a copy of AOTriton's source, so that the library never chooses kernels of aiter.

    without_aiter.py SOURCE REPORT

aiter's kernels are prebuilt code objects from another repository. The image packs of this build do not contain them,
but upstream's tables still choose them, and the library then throws an exception although it has kernels of its own.
The program replaces each choice of aiter by the operator's first other backend. The backends of each operator are
listed in `modules/FAMILY/aot` or, before AOTriton 0.13, in `v3python/rules/FAMILY`.

The program rewrites `op_database.sqlite3.tar.xz` below SOURCE, in `modules/FAMILY/database` or in a folder for all
families: `modules/database`, `v3python/database` or `v3python/rules`. It writes the number of changed rows of each
operator and GPU to REPORT as JSON: {"op_attn_fwd": {"gfx942_mod0": 73}}. If no row chooses aiter, or the source has no
such database, the source is not changed and the report is {}.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMBER = "op_database.sqlite3"
BACKEND = "op$backend"


def functions(folder: Path) -> Iterator[ast.FunctionDef]:
    """Yield the syntax trees of the top-level functions in a folder's Python files."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            if isinstance(node, ast.FunctionDef):
                yield node


def backends(folder: Path) -> dict[str, dict[int, str]]:
    """Return the backends that each operator in a folder lists: {operator: {index: name of a function}}."""
    found: dict[str, dict[int, str]] = {}
    for node in functions(folder):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "ati.backend":
                index, implementation = mark.args[:2]
                found.setdefault(node.name, {})[int(ast.literal_eval(index))] = ast.unparse(implementation)
    return found


def foreign(folder: Path) -> set[str]:
    """Return the names of a folder's functions with an `ati.affine` decorator, which marks aiter's kernels."""
    return {
        node.name
        for node in functions(folder)
        if any(ast.unparse(mark).startswith("ati.affine") for mark in node.decorator_list)
    }


def of_rules(folder: Path) -> tuple[dict[str, dict[int, str]], set[str]]:
    """Read the operators of a family in AOTriton before 0.13, where each backend is a Python expression.

    Returns:
        The backends of each operator, {operator: {index: expression}}, and the expressions that use aiter's kernels.
    """
    names: dict[str, str] = {}
    operators: dict[str, dict[int, str]] = {}
    out: set[str] = set()
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            for one in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "NAME":
                    names[node.name] = ast.unparse(one.value).strip("'")
    for node in ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List):
            continue
        listed, target = node.value.elts, ast.unparse(node.targets[0])
        if target == "affine_kernels":
            out |= {ast.unparse(one) for one in listed}
        if target == "operators":
            for one in listed:
                if isinstance(one, ast.Call) and isinstance(one.args[0], ast.List):
                    made = {index: ast.unparse(each) for index, each in enumerate(one.args[0].elts)}
                    operators[names[ast.unparse(one.func)]] = made
    # A backend may have several kernels. It is a backend of aiter if any of its kernels is a kernel of aiter.
    texts = {text for known in operators.values() for text in known.values()}
    return operators, {text for text in texts if out & set(re.findall(r"\w+", text))}


def redirect(
    database: Path, family: str, operators: dict[str, dict[int, str]], out: set[str]
) -> dict[str, dict[str, int]]:
    """Change the choices in a database, and return the number of changed rows by operator and GPU.

    Raise SystemExit if all backends of an operator in the database are in `out`.

    Args:
        operators: the backends of each operator, by index.
        out: the backends that must not be chosen.
    """
    counts: dict[str, dict[str, int]] = {}
    with sqlite3.connect(database) as db:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for operator, known in sorted(operators.items()):
            table = f"{family.upper()}${operator}"
            gone = sorted(index for index, name in known.items() if name in out)
            stay = sorted(set(known) - set(gone))
            if table not in tables or not gone:
                continue
            if not stay:
                raise SystemExit(f"toolchain: {operator} has no backend but aiter's")
            marks = ",".join("?" * len(gone))
            where = f'"{BACKEND}" IN ({marks})'
            # The statements contain only the names of an existing table and a fixed column; the values are parameters.
            rows = db.execute(f'SELECT gpu, count(*) FROM "{table}" WHERE {where} GROUP BY gpu ORDER BY gpu', gone)  # noqa: S608
            found = rows.fetchall()
            db.execute(f'UPDATE "{table}" SET "{BACKEND}" = ? WHERE {where}', [stay[0], *gone])  # noqa: S608
            if found:
                counts[operator] = dict(found)
    db.close()
    return counts


def add(counts: dict[str, dict[str, int]], more: dict[str, dict[str, int]]) -> None:
    """Add numbers by operator and GPU to `counts`."""
    for operator, gpus in more.items():
        here = counts.setdefault(operator, {})
        for gpu, count in gpus.items():
            here[gpu] = here.get(gpu, 0) + count


def rewrite(archive: Path, families: list[Path]) -> dict[str, dict[str, int]]:
    """Change the families' tables in an archived database; return the number of changed rows by operator and GPU."""
    counts: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        database = Path(scratch) / MEMBER
        with tarfile.open(archive, "r:xz") as tar:
            member = tar.extractfile(MEMBER)
            if member is None:
                raise SystemExit(f"toolchain: {archive.name} holds no {MEMBER}")
            database.write_bytes(member.read())
        for family in families:
            aot = family / "aot"
            operators, out = (backends(aot), foreign(aot)) if aot.is_dir() else of_rules(family)
            add(counts, redirect(database, family.name, operators, out))
        if not counts:
            return {}
        content = database.read_bytes()
    info = tarfile.TarInfo(MEMBER)
    info.size, info.mtime = len(content), int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    partial = archive.with_name(f"{archive.name}.partial")
    with tarfile.open(partial, "w:xz", preset=1) as tar:
        tar.addfile(info, io.BytesIO(content))
    partial.replace(archive)
    return counts


def main(source: Path, report: Path) -> None:
    """Change the databases below `source`, write the report, and print the numbers."""
    counts: dict[str, dict[str, int]] = {}
    modules = source / "modules"
    for archive in sorted(modules.glob(f"*/database/{MEMBER}.tar.xz")):
        add(counts, rewrite(archive, [archive.parent.parent]))
    if (shared := modules / "database" / f"{MEMBER}.tar.xz").is_file():
        add(counts, rewrite(shared, sorted(folder.parent for folder in modules.glob("*/aot"))))
    rules = source / "v3python" / "rules"
    families = sorted(path.parent for path in rules.glob("*/__init__.py"))
    for folder in (rules, source / "v3python" / "database"):
        if not modules.is_dir() and (archive := folder / f"{MEMBER}.tar.xz").is_file():
            add(counts, rewrite(archive, families))
    report.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for operator, gpus in sorted(counts.items()):
        told = ", ".join(f"{gpu} {count}" for gpu, count in gpus.items())
        sys.stdout.write(f"{operator}: choices of aiter's kernels that were changed to Triton's: {told}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
