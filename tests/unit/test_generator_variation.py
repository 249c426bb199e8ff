"""Tests of the comparison of table generators, which finds output that depends on addresses or the time zone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scripts.generator_variation import main

GENERATOR = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
  if (!strcmp(words[count - 1], "cmake_transform_depfile")) return 1;
  void *first = malloc(24), *second = malloc(24);
  for (int at = 1; at < count; at++)
    if (!strcmp(words[at], "-o")) {
      FILE *file = fopen(words[at + 1], "w");
      if (!strcmp(words[1], "-gen-order")) fprintf(file, "%ld\n", (long)((char *)second - (char *)first));
      if (!strcmp(words[1], "-gen-zone")) fprintf(file, "%s\n", getenv("TZ") ? getenv("TZ") : "");
    }
  return 0;
}
"""


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """Write the folder of a build with three calls of one generator, whose paths are those of a container."""
    folder = tmp_path / "tree"
    (folder / "bin").mkdir(parents=True)
    (tmp_path / "generator.c").write_text(GENERATOR)
    subprocess.run(["cc", "-o", folder / "bin/small-tblgen", tmp_path / "generator.c"], check=True)
    program = "  COMMAND = cd /build && /build/bin/small-tblgen"
    lines = [
        f"{program} {option} -I/build --write-if-changed -o lib{option}.inc -d x.d"
        for option in ("-gen-order", "-gen-zone", "-gen-nothing")
    ]
    lines[2] += " && /usr/bin/false -E cmake_transform_depfile"
    (folder / "build.ninja").write_text("\n".join(lines) + "\n  COMMAND = cd /build && /usr/bin/true -o other\n")
    return folder


def test_calls_whose_output_depends_on_the_heap_or_the_time_zone_are_named(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TZ", raising=False)
    results = tmp_path / "rows.jsonl"
    arguments = [str(build), "--results", str(results), "--at", f"/build={build}", "--seeds", "4"]
    assert main(arguments) == 1
    summary = json.loads(capsys.readouterr().out)
    assert (summary["calls"], summary["rows"]) == (3, 3)
    assert summary["differing"] == ["lib-gen-order.inc", "lib-gen-zone.inc"]
    rows = {row["out"]: row for row in map(json.loads, results.read_text().splitlines())}
    assert rows["lib-gen-order.inc"]["differing"] > 0
    assert rows["lib-gen-order.inc"]["seeds"] == 4
    assert not rows["lib-gen-zone.inc"]["conditions"]
    assert rows["lib-gen-nothing.inc"] | {"seconds": 0} == {
        "out": "lib-gen-nothing.inc",
        "program": "small-tblgen",
        "seconds": 0,
        "seeds": 4,
        "conditions": True,
        "differing": 0,
    }
    (build / "bin/small-tblgen").unlink()
    assert main(arguments) == 1
    assert json.loads(capsys.readouterr().out)["rows"] == 3
