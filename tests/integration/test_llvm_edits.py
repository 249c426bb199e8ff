"""llvm-config/edits.cmake on a small project with LLVM's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.core import recipe
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah

PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(LLVM CXX)
add_executable(llvm-tblgen utils/TableGen/DFAPacketizerEmitter.cpp)
"""
EMITTER = """
#include <cstdio>
#include <cstring>
#include <set>
struct Record { const char *name; };
struct LessRecord {
  bool operator()(const Record *a, const Record *b) const { return std::strcmp(a->name, b->name) < 0; }
};
int main() {
  static RECORD records[] = {{"b"}, {"a"}};
  std::set<RECORD *> ProcItinList;
  for (RECORD &record : records) ProcItinList.insert(&record);
  for (const Record *record : ProcItinList) std::puts(record->name);
}
"""
SCRIPT = (
    "set -e; cmake -G Ninja -S /tree/llvm -B /tmp/b -DCMAKE_CXX_COMPILER=clang++ "
    '-DCMAKE_PROJECT_LLVM_INCLUDE="$1" >/dev/null; ninja -C /tmp/b >/dev/null; /tmp/b/llvm-tblgen'
)


@pytest.mark.parametrize("record", ["const Record", "Record"], ids=["llvm 19 to 22", "llvm 17 and 18"])
def test_a_set_of_records_is_ordered_by_name(base: tuple[Buildah, str], tmp_path: Path, record: str) -> None:
    engine, image = base
    source = tmp_path / "llvm/utils/TableGen/DFAPacketizerEmitter.cpp"
    source.parent.mkdir(parents=True)
    source.write_text(EMITTER.replace("RECORD", record), encoding="utf-8")
    (tmp_path / "llvm/CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    mounts = [Mount(tmp_path, "/tree"), Mount(recipe.root() / "llvm-config", "/llvm-config")]

    def printed(hook: str) -> list[str]:
        done = engine.run(image, ["sh", "-c", SCRIPT, "sh", hook], mounts=mounts, log=tmp_path / "log", capture=True)
        return done.stdout.split()[-2:]

    assert printed("") == ["b", "a"], "without the edit the order is that of the addresses"
    assert printed("/llvm-config/edits.cmake") == ["a", "b"]
