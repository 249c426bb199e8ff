"""As much of an LLVM source tree as plans and locks look at."""

from __future__ import annotations

from pathlib import Path

PROJECTS = ("llvm", "mlir", "lld", "clang")


def small_llvm(folder: Path, projects: tuple[str, ...] = PROJECTS) -> Path:
    """Make the tree in `folder`, which need not be there."""
    for name in projects:
        (folder / name).mkdir(parents=True)
        (folder / name / "CMakeLists.txt").write_text("project(x)\n")
    return folder
