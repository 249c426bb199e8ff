"""Whose fault it is: what a failed compile says of the machine, and what keeps a kernel's JSON from serving."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from toolchain.kernels.rules import Rule

# What a worker says, or how it ends, when the machine is at fault and not the kernel.
_OF_THE_MACHINE = re.compile(
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|Read-only file system|Input/output error"
    r"|Too many open files|\bMemoryError\b|std::bad_alloc|LLVM ERROR: out of memory"
    r"|^the worker was ended by SIG(?:KILL|TERM|INT|HUP)\b"
)
# With less than this free a compiler fails in ways that do not name the disk.
_LEAST_FREE = 32_000_000


def of_machine(reason: str, folder: Path) -> str:
    """What is wrong with the machine where a compile failed by that; empty where it is the kernel.

    Args:
        reason: the failure's.
        folder: where the objects lie.
    """
    if shutil.disk_usage(folder).free < _LEAST_FREE:
        return "the disk is full"
    return "the machine failed a compile, not the kernel" if _OF_THE_MACHINE.search(reason) else ""


def of_metadata(rule: Rule, metadata: Any) -> str:
    """What keeps the JSON beside an object from serving the packers; empty when nothing does."""
    if not isinstance(metadata, dict):
        return "the JSON beside the object is no object"
    numbers = {name: metadata.get(name) for name in ("shared", "num_warps", "warp_size")}
    if lacking := [name for name, value in numbers.items() if not isinstance(value, int)]:
        return f"the JSON beside the object lacks {', '.join(lacking)}"
    if metadata.get("compile_status") != "Complete" or metadata.get("arch") != rule.target:
        return f"the JSON says {metadata.get('compile_status')} for {metadata.get('arch')}"
    return ""
