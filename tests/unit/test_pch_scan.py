"""Tests of llvm-config/pch-scan.py, which lists the sources that must not get a precompiled header."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "llvm-config" / "pch-scan.py"


def left_out(tmp_path: Path, sources: dict[str, str]) -> list[str]:
    include = tmp_path / "include"
    for name, content in {
        "include/llvm/ADT/A.h": '#ifndef A\n#define A\n#include "llvm/Config/abi-breaking.h"\n#endif\n',
        "include/llvm/ADT/Plain.h": "int x();\n",
        **sources,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    names = tmp_path / "sources"
    names.write_text("".join(f"{tmp_path / name}\n" for name in sources))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(names), str(include)], capture_output=True, text=True, check=True
    )
    return sorted(Path(line).relative_to(tmp_path).as_posix() for line in done.stdout.splitlines())


def test_source_that_does_not_include_the_header_gets_no_pch(tmp_path: Path) -> None:
    assert left_out(
        tmp_path,
        {
            "lib/direct.cpp": '#include "llvm/Config/abi-breaking.h"\n',
            "lib/guarded.cpp": '#include "llvm/ADT/A.h"\n',  # the conditions in headers are ignored
            "lib/plain.cpp": '#include "llvm/ADT/Plain.h"\n',
        },
    ) == ["lib/plain.cpp"]


def test_source_that_is_one_large_condition_gets_no_pch(tmp_path: Path) -> None:
    assert left_out(
        tmp_path,
        {
            "lib/all.cpp": '#include "a.h"\n#if defined(X)\n# ifdef Y\n# endif\n#include "llvm/ADT/A.h"\n#endif\n',
            "lib/after.cpp": '#ifdef Z\n#include "a.h"\n#endif\n#include "llvm/ADT/A.h"\n',
        },
    ) == ["lib/all.cpp"]


def test_source_that_is_known_to_differ_gets_no_pch(tmp_path: Path) -> None:
    text = '#include "llvm/ADT/A.h"\n'
    named = "llvm/lib/Support/Timer.cpp"
    assert left_out(tmp_path, {named: text, "llvm/lib/Support/Twine.cpp": text}) == [named]
