"""The compiler launcher of precompiled headers, with compilers that fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

LAUNCHER = Path(__file__).parents[2] / "llvm-config/pch-launcher.sh"


def test_killed_compiler_leaves_no_empty_precompiled_header(tmp_path: Path) -> None:
    compiler = tmp_path / "clang"
    compiler.write_text("#!/bin/sh\nkill -9 $$\n")
    compiler.chmod(0o755)
    call = [str(compiler), "-Xclang", "-emit-pch", "-o", str(tmp_path / "header.pch"), "-c", "header.cxx"]
    done = subprocess.run(["sh", str(LAUNCHER), *call], check=False)
    assert done.returncode == 137
    assert not (tmp_path / "header.pch").exists()
