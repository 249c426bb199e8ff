"""llvm-config/archive_index.py: indexes without inline functions, of archives that the host's compiler made."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from toolchain.core import recipe

SCRIPT = recipe.root() / "llvm-config" / "archive_index.py"
HEADER = """
#pragma once
template <class T> struct Box {
  T value;
  T twice() { return value + value; }
};
extern template struct Box<int>;
struct Shape {
  int area() { return side() * side(); }
  __attribute__((noinline)) int side() { return width + 1; }
  int width = 0;
};
inline int free_inline(int x) { static int calls = 0; return x + ++calls; }
int strong(int);
"""
SOURCES = {
    "first.cpp": "template struct Box<int>;\nint strong(int x) { return free_inline(x) + Shape{}.area(); }\n",
    "second.cpp": "int other(int x) { Shape shape; shape.width = x; return shape.side() + free_inline(x); }\n",
}
USER = "int other(int);\nint main() { Box<int> box{21}; return box.twice() + strong(1) + other(1) == 50 ? 0 : 1; }\n"


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("archive_index", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["archive_index"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in argv], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile liball.a, whose inline methods are hidden as in LLVM's objects, once for all tests."""
    tmp_path = tmp_path_factory.mktemp("compiled")
    for program in ("g++", "ar", "nm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} IS NOT INSTALLED: apt-get install g++")
    (tmp_path / "box.h").write_text(HEADER)
    for name, text in {**SOURCES, "user.cpp": USER}.items():
        (tmp_path / name).write_text(f'#include "box.h"\n{text}')
    flags = ["-O0", "-fPIC", "-fvisibility-inlines-hidden", "-ffunction-sections"]
    run("g++", *flags, "-c", *SOURCES, "user.cpp", cwd=tmp_path)
    folder = tmp_path / "it's lib"
    folder.mkdir()
    run("ar", "rcsD", folder / "liball.a", "first.o", "second.o", cwd=tmp_path)
    return tmp_path


@pytest.fixture
def built(compiled: Path, tmp_path: Path) -> Path:
    """Return a copy of the compiled folder for one test."""
    return shutil.copytree(compiled, tmp_path / "built")


def contents(archive: Path) -> bytes:
    return subprocess.run(["ar", "p", archive], capture_output=True, check=True).stdout


def index(archive: Path) -> Mapping[str, str]:
    """Return the member of each symbol, as binutils reads the index."""
    text = run("nm", "-s", archive, cwd=archive.parent).split("\n\n")[0]
    return {symbol: member for symbol, _, member in (line.partition(" in ") for line in text.splitlines()) if member}


def test_archive_without_inline_methods_in_index_links_and_runs(built: Path) -> None:
    archive = built / "it's lib" / "liball.a"
    before, members = index(archive), contents(archive)
    assert "_ZN5Shape4sideEv" in before
    run(sys.executable, SCRIPT, archive.parent, cwd=built)
    after = index(archive)
    gone = set(before) - set(after)
    assert "_ZN5Shape4sideEv" in gone
    assert gone <= {"_ZN5Shape4sideEv", "_ZN5Shape4areaEv", "_Z11free_inlinei"}
    # The index keeps this instantiation, because the header only declares it, so that users take it from the archive.
    assert "_ZN3BoxIiE5twiceEv" in after
    assert {"_Z6strongi", "_Z5otheri"} <= set(after)
    assert {name: before[name] for name in after} == after
    assert contents(archive) == members
    run("g++", "-fuse-ld=bfd", "user.o", archive, "-o", "program", cwd=built)
    run(built / "program", cwd=built)
    once = archive.read_bytes()
    run(sys.executable, SCRIPT, archive.parent, cwd=built)
    assert archive.read_bytes() == once
    assert sorted(path.name for path in archive.parent.iterdir()) == ["liball.a"]


def test_index_keeps_symbols_that_objects_need(built: Path, module: ModuleType) -> None:
    data = (built / "it's lib" / "liball.a").read_bytes()
    wanted = {b"_ZN5Shape4sideEv"}
    assert b"_ZN5Shape4sideEv" in module.with_short_index(data, wanted)[:2000]
    kept, bare = (len(module.with_short_index(data, names)) for names in (wanted, set()))
    assert bare < kept < len(data)
    assert b"_Z11free_inlinei" not in module.undefined(data), "every user has it itself"
    assert {b"_Z6strongi", b"_Z5otheri", b"_ZN3BoxIiE5twiceEv"} <= module.undefined(archive_of(built, "user.o"))


def archive_of(folder: Path, name: str) -> bytes:
    run("ar", "rcsD", "user.a", name, cwd=folder)
    return (folder / "user.a").read_bytes()


@pytest.mark.parametrize("broken", ["cut", "header", "index", "thin", "object"])
def test_broken_archive_is_reported_and_unchanged(built: Path, broken: str) -> None:
    archive = built / "it's lib" / "liball.a"
    data = bytearray(archive.read_bytes())
    if broken == "cut":
        del data[-300:]
    elif broken == "header":
        data[66:68] = b"xx"
    elif broken == "index":
        data[72:76] = (5).to_bytes(4, "big")
    elif broken == "thin":
        data[:8] = b"!<thin>\n"
    else:
        at = data.index(b"\x7fELF")
        data[at + 0x28 : at + 0x30] = (1 << 40).to_bytes(8, "little")
    archive.write_bytes(data)
    done = subprocess.run([sys.executable, SCRIPT, archive.parent], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("toolchain: liball.a: ")
    assert archive.read_bytes() == data
