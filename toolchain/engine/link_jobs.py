"""Have a cached LLVM build tree configured again if it may run more links at once than the memory allows."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from toolchain.core.filesystem import read_regular

_LARGEST_CMAKE_CACHE = 16 << 20  # bytes; the one of an LLVM build has about 300 KB
_LINKS = re.compile(rb"^LLVM_PARALLEL_LINK_JOBS:[A-Z]+=(\d{1,9})$", re.MULTILINE)


def limit_links(place: Path, jobs: int) -> None:
    """Have a cached LLVM build tree configured again if it may run more than `jobs` links at once.

    CMake writes the number into the build files, and a resumed build keeps them. The memory may since have become less.
    Without its stamp, containerfiles/llvm/build.sh configures a tree again, and ninja keeps what is built.
    """
    for stamp in (place / "toolchain-stamp", *place.glob("*/toolchain-stamp")):
        with contextlib.suppress(OSError):  # a build may have put a link, a folder or a huge file here
            cached = read_regular(stamp.with_name("CMakeCache.txt"), _LARGEST_CMAKE_CACHE, within=place)
            found = _LINKS.search(cached)
            if found is not None and int(found[1]) > jobs:
                stamp.unlink()
