"""The conditions of `reproduce --vary` reach the programs of a build, whose output shows each of them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from toolchain.core.recipe import Recipe
from toolchain.engine.buildah import Buildah
from toolchain.engine.variation import Variation

pytestmark = pytest.mark.engine

# The program prints what a careless build could put into its output, such as the distances of allocated blocks.
LEAK = """
import ctypes, json, os, platform, time
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
blocks = [malloc(48) for _ in range(64)]
umask = os.umask(0)
print(json.dumps({
    "heap": [later - earlier for earlier, later in zip(blocks, blocks[1:])],
    "time": time.gmtime().tm_year * 1000 + time.gmtime().tm_yday, "file-order": os.listdir("/src"),
    "cpus": sorted(os.sched_getaffinity(0)), "kernel": platform.release()[:4], "umask": umask,
    "aslr": open("/proc/self/personality").read().strip(), "time-zone": os.environ.get("TZ"),
    "locale": os.environ.get("LANG"), "home": os.environ.get("HOME"), "exec-path": os.environ.get("PATH"),
    "environment": len(os.environ.get("TOOLCHAIN_VARIED", "")),
}))
"""
# CMake copies a file together with its time.
COPY = """
cd /tmp; touch -d @1767225600 file; echo 'file(COPY file DESTINATION copy)' >copy.cmake
cmake -P copy.cmake; stat -c %Y copy/file
"""
CONTAINERFILE = """
ARG BASE
FROM ${BASE} AS build
RUN --mount=type=bind,from=tree,target=/src python3 /src/leak.py >/leaked

FROM scratch
COPY --from=build /leaked /
"""


def leaked(engine: Buildah, image: str, tree: Path, top: Path) -> dict[str, Any]:
    """Build the careless recipe, and return the values that it leaked."""
    recipe = Recipe(name="careless", containerfile="containerfiles/Careless", base=image, contexts={"tree": tree})
    engine.build(recipe, root=top, out=top / "out", log=top / "log")
    found: dict[str, Any] = json.loads((top / "out" / "leaked").read_text())
    return found


def test_build_sees_every_varied_condition(base: tuple[Buildah, str], tmp_path: Path) -> None:
    for program in ("disorderfs", "faketime"):
        if shutil.which(program) is None:
            pytest.skip(f"NO {program.upper()}: its condition cannot be changed (apt-get install {program})")
    plain, image = base
    (tmp_path / "containerfiles").mkdir()
    (tmp_path / "containerfiles" / "Careless").write_text(CONTAINERFILE)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "leak.py").write_text(LEAK)
    for number in range(12):
        (tree / f"file-{number}").touch()
    first, varied = Variation(3), Variation(8)
    usual = leaked(plain, image, tree, tmp_path)
    assert leaked(plain, image, tree, tmp_path) == usual, "nothing but the conditions changes"
    with_first = leaked(Buildah(plain.cache, variation=first), image, tree, tmp_path)
    with_second = leaked(Buildah(plain.cache, variation=varied), image, tree, tmp_path)
    told = first.as_json()
    changed = {name for name, value in usual.items() if with_first[name] != value}
    assert set(told["changed"]) - changed <= {"cpus"}, "a machine with one processor has no other"
    assert changed <= set(told["changed"])
    assert with_first["heap"] != with_second["heap"]
    assert with_first["time"] != with_second["time"]
    one_processor = {"cpus"} if len(os.sched_getaffinity(0)) == 1 else set()
    assert set(told["unchanged"]) == {"build-path", "host-name", "user"} | one_processor
    again = Variation(3)
    assert leaked(Buildah(plain.cache, variation=again), image, tree, tmp_path) == with_first, "a seed repeats a run"
    assert again.as_json() == told
    varied_engine = Buildah(plain.cache, variation=varied)
    shown = varied_engine.run(image, ["sh", "-c", "umask; date +%Y"], capture=True).stdout
    assert int(shown.split()[0], 8) != 0o022
    copied = varied_engine.run(image, ["sh", "-c", COPY], capture=True).stdout
    assert copied.split() == ["1767225600"], "a copy that is newer than its outputs would be built again after a resume"
    assert (tree / "leak.py").read_text() == LEAK, "the source is only read"
