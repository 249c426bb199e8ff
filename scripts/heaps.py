"""Compile the allocator of `reproduce --vary` for scripts that preload it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[1] / "toolchain" / "data" / "vary" / "heap.c"


def compile_heap(folder: Path, seed: int) -> Path:
    """Compile the allocator with a seed to a library in `folder`, and return the library's path for LD_PRELOAD."""
    heap = folder / f"heap-{seed}.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"-DSEED={seed}u", "-o", heap, _SOURCE], check=True)
    return heap
