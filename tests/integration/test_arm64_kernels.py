"""Test that the wheel for arm64, under qemu-user, and the wheel for amd64 compile AOTriton's kernels to the same bytes.

The test is marked `full`: run it after `toolchain build triton --python 3.11,3.13 …`, with and without `--arch arm64`,
on the same cache. A kernel takes up to a minute under the emulator.

TOOLCHAIN_TEST_AOTRITON   AOTriton's source, at any commit that the tool builds
TOOLCHAIN_TEST_EMULATED   the number of kernels, by default 10
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_triton_full import Place, modules, newest, plan_for, source
from toolchain.catalog.architectures import emulator
from toolchain.core.cache import Cache, default_cache
from toolchain.core.digest import sha256_file
from toolchain.core.recipe import Mount, root
from toolchain.engine.buildah import Buildah
from toolchain.kernels.aotriton_plan import read_plan
from toolchain.kernels.rules import Rule
from toolchain.oci.layout import Layout
from toolchain.request.model import Request
from toolchain.sources.store import Store
from toolchain.stages.triton_wheel import unzip

__all__ = ["modules", "source"]
pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.timeout(0)]
PYTHON, GPU = "3.13", "gfx942"
PORTABLE = "checked_wheels"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with the image of Triton for amd64, because that for arm64 has no base."""
    cache, record = Cache(default_cache()), newest("triton", has=PORTABLE)
    engine = Buildah(cache)
    image = engine.ensure_image(record.image, cache.images, record.manifest)
    return Place(Request(cache=cache), tmp_path_factory.mktemp("campaign"), image, engine)


def compile_with(arch: str, rules: Sequence[Rule], place: Place, source: Path, folder: Path) -> dict[str, Any]:
    """Compile rules with the wheel for an architecture, and return the worker's answers by the rules' ids."""
    cache = Cache(default_cache())
    triton, python = newest("triton", has=PORTABLE, arch=arch), newest("python", has="packages", arch=arch)
    tag = f"-cp{PYTHON.replace('.', '')}-"
    (wheel,) = [one for one in triton.facts["wheels"] if tag in one["file"]]
    assert wheel["file"].endswith(f"{MACHINES[arch]}.whl")
    path = Store(cache.store).file(wheel["digest"], verify=True)
    assert path is not None
    unzip(path, folder / "wheel")
    with tarfile.open(Layout(cache.images).blob(python.layers[-1]["digest"])) as tar:
        tar.extractall(folder / "pythons", filter="data")
    (pythons,) = [one.parent for one in folder.glob(f"pythons/**/{PYTHON}") if one.is_dir() and (one / "usr").is_dir()]
    (folder / "out").mkdir()
    (folder / "tasks").write_text("".join(json.dumps(rule.task("/source", "/out")) + "\n" for rule in rules))
    mounts = [
        Mount(source, "/source"),
        Mount(root() / "aotriton", "/recipe/aotriton"),
        Mount(root() / "containerfiles/triton-portable", "/recipe/python"),
        Mount(folder / "wheel", "/wheel"),
        Mount(pythons, "/pythons"),
        Mount(folder / "tasks", "/tasks"),
        Mount(folder / "out", "/out", read_only=False),
    ]
    env = {"PYTHONPATH": "/wheel", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    if arch == "arm64":
        (folder / "emulator").mkdir()
        shutil.copy(emulator(arch), folder / "emulator" / "emulator")
        mounts.append(Mount(folder / "emulator", "/emulator"))
        env["EMULATOR"] = "/emulator/emulator"
    began = time.monotonic()
    done = place.runner.run(
        place.image,
        ["sh", "-c", f"exec sh /recipe/python/python.sh {PYTHON} /recipe/aotriton/worker.py </tasks"],
        mounts=mounts,
        env=env,
        capture=True,
        check=False,
        log=folder / "log",
    )
    assert done.returncode == 0, "\n".join(done.tail)
    ready, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    print(f"\n{arch}: {ready}, {len(answers)} kernels in {time.monotonic() - began:.0f} s")
    for answer in answers:
        assert answer["status"] == "done", answer
        assert sha256_file(folder / answer["object"].lstrip("/")) == f"sha256:{answer['sha256']}"
    return {answer["id"]: answer for answer in answers}


def test_wheel_for_arm64_compiles_the_same_bytes_as_the_wheel_for_amd64(
    place: Place, source: Path, modules: Path, tmp_path: Path
) -> None:
    for arch in MACHINES:
        newest("triton", has=PORTABLE, arch=arch)  # a missing image skips the test before the plan is made
        (tmp_path / arch).mkdir()
    plan = tmp_path / "plan"
    plan.mkdir()
    plan_for(GPU, place, source, modules, plan)
    kernels: dict[str, list[Rule]] = defaultdict(list)
    for rule in read_plan(plan, source, build=str(plan), source=str(source)).rules:
        kernels[rule.kernel].append(rule)
    draw, count = random.Random(1), int(os.environ.get("TOOLCHAIN_TEST_EMULATED", "10"))
    # Each function gets a rule in turn, so that none is missing.
    rules = [draw.choice(kernels[name]) for name in islice(cycle(sorted(kernels)), count)]
    plain, emulated = (compile_with(arch, rules, place, source, tmp_path / arch) for arch in MACHINES)
    for rule in rules:
        one, other = plain[rule.id], emulated[rule.id]
        took = f"{one['seconds']:.1f} and {other['seconds']:.0f} s"
        print(f"  {rule.kernel:24} {one['size']:>8,} bytes {one['sha256'][:16]} {took}")
        assert (one["sha256"], one["size"]) == (other["sha256"], other["size"]), rule.id
    assert {rule.kernel for rule in rules} == set(kernels)
