"""A build does not read the files that a hostile build of another tree leaves in all writable places."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.hostile_llvm import hostile_llvm
from tests.integration.conftest import Quickstart, toolchain

pytestmark = pytest.mark.engine

# A ccache that reads one of these configurations compiles with -DSAYS=__FILE__, which changes the program's output.
# Programs in /ccache/bin have the same effect.
_POISON = """
for place in /ccache /build /src /recipe /tmp /var/tmp /dev/shm /run "$HOME"; do
  mkdir -p "$place" 2>/dev/null
  printf '#!/bin/sh\\nexec "$@" -DSAYS=__FILE__\\n' >"$place/prefix.sh" 2>/dev/null && chmod 755 "$place/prefix.sh"
  echo "prefix_command = $place/prefix.sh" >"$place/ccache.conf" 2>/dev/null
done
mkdir -p /ccache/bin
for name in clang++ clang cmake ninja ccache; do cp /ccache/prefix.sh "/ccache/bin/$name"; done
"""


def _build(tree: Path) -> tuple[str, str]:
    """Build a tree's mlir-tblgen, and return the diff_id of its layer and the name of its image."""
    words = ("--source", f"llvm={tree}", "--only", "mlir-tblgen", "--base", "debian13")
    said = toolchain("build", "llvm", *words, "--json")
    assert said.code == 0, said.err[-3000:]
    return str(said.json["stages"][-1]["facts"]["diff_id"]), str(said.json["publish"][0])


def test_hostile_build_does_not_change_the_bytes_of_a_build_of_another_tree(
    quickstart: Quickstart, tmp_path: Path
) -> None:
    victim = hostile_llvm(tmp_path / "victim", says=f"victim {os.getpid()}")
    hostile = hostile_llvm(tmp_path / "hostile", probe=_POISON, says=f"hostile {os.getpid()}")
    _build(hostile)
    after, name = _build(victim)
    again = toolchain("reproduce", name, "--json")
    assert json.loads(again.out)["diff_ids"] == [after, after], again.err
