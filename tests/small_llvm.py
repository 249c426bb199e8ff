"""As much of an LLVM source tree as plans and locks look at."""

from __future__ import annotations

from pathlib import Path

PROJECTS = ("llvm", "mlir", "lld", "clang")


def small_llvm(folder: Path, projects: tuple[str, ...] = PROJECTS, version: str = "22.1.8") -> Path:
    """Make the tree in `folder`, which need not be there."""
    for name in projects:
        (folder / name).mkdir(parents=True)
        (folder / name / "CMakeLists.txt").write_text("project(x)\n")
    file = folder / "cmake" / "Modules" / "LLVMVersion.cmake"
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    file.write_text("".join(f"set(LLVM_VERSION_{name} {number})\n" for name, number in parts))
    return folder
