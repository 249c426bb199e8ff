"""Tests of containerfiles/aotriton/without_aiter.py on a tree with the layout of AOTriton."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "containerfiles" / "aotriton" / "without_aiter.py"
OPERATORS = """
from .ours import split, fused
from .theirs import fast

@ati.start
@ati.backend(2, fast, 'fast')
@ati.backend(1, fused, 'fused')
@ati.backend(0, split, 'split')
@ati.operator(call_options_name='options')
def op_back(): ...
"""
OURS = """
@ati.kernel
def split(): ...
@ati.kernel
def fused(): ...
"""
THEIRS = """
@ati.affine.arch(['gfx942'])
@ati.affine.aiter_asm(name='fast')
def fast(): ...
"""


def lay(top: Path, rows: list[tuple[str, int]], operators: str = OPERATORS) -> Path:
    family = top / "modules" / "flash"
    for name, text in (("__init__", operators), ("ours", OURS), ("theirs", THEIRS)):
        path = family / "aot" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    database = top / "op_database.sqlite3"
    with sqlite3.connect(database) as db:
        db.execute('CREATE TABLE "FLASH$op_back" (id INTEGER PRIMARY KEY, gpu TEXT, "op$backend" INTEGER)')
        db.executemany('INSERT INTO "FLASH$op_back" (gpu, "op$backend") VALUES (?, ?)', rows)
    db.close()
    archive = family / "database" / "op_database.sqlite3.tar.xz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(database, database.name)
    return archive


def run(top: Path) -> tuple[int, object]:
    done = subprocess.run([sys.executable, SCRIPT, top, top / "report.json"], check=False, capture_output=True)
    return done.returncode, json.loads((top / "report.json").read_text()) if done.returncode == 0 else None


def choices(archive: Path, scratch: Path) -> list[tuple[str, int]]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile("op_database.sqlite3")
        assert member is not None
        (scratch / "read").write_bytes(member.read())
    db = sqlite3.connect(scratch / "read")
    try:
        return db.execute('SELECT gpu, "op$backend" FROM "FLASH$op_back" ORDER BY id').fetchall()
    finally:
        db.close()


def test_choices_of_missing_kernels_are_redirected_to_the_fallback(tmp_path: Path) -> None:
    archive = lay(tmp_path, [("gfx942", 2), ("gfx942", 1), ("gfx950", 2), ("gfx942", 2), ("gfx90a", 0)])
    assert run(tmp_path) == (0, {"op_back": {"gfx942": 2, "gfx950": 1}})
    assert choices(archive, tmp_path) == [("gfx942", 0), ("gfx942", 1), ("gfx950", 0), ("gfx942", 0), ("gfx90a", 0)]
    first = archive.read_bytes()
    assert run(tmp_path) == (0, {}), "nothing is left to redirect"
    assert archive.read_bytes() == first


def test_shared_database_of_all_families_is_changed(tmp_path: Path) -> None:
    archive = lay(tmp_path, [("gfx942", 2), ("gfx942", 1)])
    shared = tmp_path / "modules" / "database" / archive.name
    shared.parent.mkdir()
    archive.rename(shared)
    assert run(tmp_path) == (0, {"op_back": {"gfx942": 1}})
    assert choices(shared, tmp_path) == [("gfx942", 0), ("gfx942", 1)]


def test_counts_of_several_databases_are_added(tmp_path: Path) -> None:
    archive = lay(tmp_path, [("gfx942", 2), ("gfx942", 1)])
    shared = tmp_path / "modules" / "database" / archive.name
    shared.parent.mkdir()
    shutil.copy(archive, shared)
    assert run(tmp_path) == (0, {"op_back": {"gfx942": 2}})


def test_tree_without_a_database_is_accepted(tmp_path: Path) -> None:
    assert run(tmp_path) == (0, {})


def test_operator_without_a_fallback_fails(tmp_path: Path) -> None:
    lay(tmp_path, [("gfx942", 2)], "@ati.backend(2, fast, 'fast')\n@ati.operator()\ndef op_back(): ...\n")
    code, _ = run(tmp_path)
    assert code == 1


def test_a_damaged_database_fails(tmp_path: Path) -> None:
    archive = lay(tmp_path, [("gfx942", 2)])
    with tarfile.open(archive, "w:xz") as tar:
        info = tarfile.TarInfo("another")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    assert run(tmp_path)[0] == 1
