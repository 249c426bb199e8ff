"""The recipes' compilers get large pages, which the kernel gives only to programs that ask for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolchain.engine.buildah import Buildah

pytestmark = pytest.mark.engine
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
BUILD = Path(__file__).parents[2] / "containerfiles/llvm/build.sh"
# The kernel tells how much of the memory of a process is in large pages.
PROGRAM = """
held = b"x" * (64 << 20)
print(next(line for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages:")))
"""


def large(base: tuple[Buildah, str], tunables: str) -> int:
    """Return how many kB of a program that holds 64 MiB are in large pages."""
    engine, image = base
    argv = ["python3", "-I", "-S", "-c", PROGRAM]
    return int(engine.run(image, argv, env={"GLIBC_TUNABLES": tunables}, capture=True).stdout.split()[1])


def test_programs_with_the_tunable_of_the_recipes_get_large_pages(base: tuple[Buildah, str]) -> None:
    if not SETTING.exists() or "[madvise]" not in SETTING.read_text():
        pytest.skip(f"{SETTING} is not madvise, so programs cannot choose large pages")
    found = re.search(r"^export GLIBC_TUNABLES=(\S+)$", BUILD.read_text(), re.MULTILINE)
    assert found is not None
    assert large(base, found[1]) > 32 << 10
    assert large(base, "glibc.malloc.hugetlb=0") == 0
