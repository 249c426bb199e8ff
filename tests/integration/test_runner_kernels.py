"""Kernels compiled in a docker daemon equal those of buildah's containers. Loading the image takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dockerd_fixture import dockerd
from tests.integration.conftest import toolchain
from toolchain.core.cache import Cache, default_cache
from toolchain.pipeline.records import find_image

pytestmark = [pytest.mark.engine, pytest.mark.full]
WORDS = (
    "--source", "triton=pypi:3.7.1", "--base", "debian13", "--gpu", "gfx942", "--limit", "4", "--allow-binary",
    "triton-wheel", "--json",
)  # fmt: skip


def test_four_kernels_compiled_in_docker_are_the_same(tmp_path: Path) -> None:
    if not find_image(Cache(default_cache()), "triton-wheel-3.7.1-debian13"):
        pytest.skip("NO KERNEL IS COMPILED IN DOCKER: the cache has no image of Triton, run ./quickstart first")
    first = toolchain("kernels", "run", *WORDS, "--offline")
    assert first.code == 0, first.err
    with dockerd(tmp_path) as address:
        again = toolchain(
            "reproduce", *first.json["publish"], "--runner", "docker", "--json", env={"DOCKER_HOST": address}
        )  # fmt: skip
    assert again.code == 0, again.err
    assert "contract checks and kernels run on docker " in again.err
    assert again.json["equal"]
    assert again.json["diff_ids"][1] == first.json["stages"][-1]["facts"]["diff_id"]
