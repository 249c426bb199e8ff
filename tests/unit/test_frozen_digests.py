"""Tests that fixed requests have the recorded input digests, because a change makes every cache build LLVM again.

A change of a recipe, or of the set of inputs, changes the digests on purpose. Then record the digests again, and
mention the change in the changelog. A change that only moves code must not change the digests.
`TOOLCHAIN_RECORD_DIGESTS=1 pytest tests/unit/test_frozen_digests.py` records them.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.request_fixtures import request_of
from toolchain.catalog.base_ref import parse_base
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.pipeline.plan import plan
from toolchain.request.model import Request
from toolchain.stages.base import recipe_digest, write_packages
from toolchain.stages.unpacked import pythons_of, sysroot_of

RECORDED = Path(__file__).parents[1] / "recorded" / "input-digests.json"
DISTRO = {"llvm": "distro:llvm-toolchain-22"}
WHEEL = {"triton": "pypi:triton==3.7.1"}
COMMIT = {"triton": "https://github.com/triton-lang/triton@d8da7c998c75c88691e0ec157fcfd92b49d7060a"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llvm at the default pin": ("llvm", {"base": "debian13"}),
    "llvm at a pin": ("llvm", {"base": "debian13", "triton": "3.6.0"}),
    "llvm of the distribution": ("llvm", {"base": "debian13", "sources": DISTRO}),
    "llvm on debian12": ("llvm", {"base": "debian12", "sources": DISTRO}),
    "table generators": ("llvm", {"base": "debian13", "sources": DISTRO, "only": "tablegen"}),
    "support": ("llvm", {"base": "debian13", "sources": DISTRO, "only": "support"}),
    "llvm for two machines": ("llvm", {"base": "debian13", "sources": DISTRO, "arch": ("amd64", "arm64")}),
    "support for s390x": ("llvm", {"base": "debian13", "sources": DISTRO, "arch": ("s390x",), "only": "support"}),
    "quickstart": (
        "all",
        {"base": "debian13", "sources": {**DISTRO, **WHEEL}, "only": "tablegen", "gpus": ("gfx1100", "gfx942")},
    ),
    "kernels with the wheel": ("kernels", {"base": "debian13", "sources": WHEEL, "gpus": ("gfx90a",)}),
    "triton of a commit": ("triton", {"base": "debian13", "sources": {**DISTRO, **COMMIT}}),
    "aotriton": ("aotriton", {"base": "debian13", "glibc": "2.31", "aotriton": "0.13b", "gpus": ("gfx942",)}),
    "a part of aotriton": (
        "aotriton",
        {
            "base": "debian13",
            "glibc": "2.31",
            "aotriton": "0.13b",
            "gpus": ("gfx942",),
            "limit": 320,
            "select": "attn*",
        },
    ),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Return a cache in which every base is resolved to two made-up packages, and make the machine an x86_64."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    cache = Cache(tmp_path / "cache")
    rows = [
        {"name": name, "version": "1", "architecture": "amd64", "sha256": digit * 64}
        for name, digit in (("clang", "a"), ("libc6", "b"))
    ]
    for name, arch in (("debian13", "amd64"), ("debian12", "amd64"), ("debian13", "arm64"), ("debian13", "s390x")):
        recipe = base_recipe(name, arch)
        for stage, digest in (
            ("base", recipe_digest(recipe)),
            ("sysroot", sysroot_of(Request(cache=cache, base=parse_base(name), arch=(arch,))).digest),
        ):
            write_packages(cache.package_list(stage, name, arch), {"recipe": digest, "packages": rows})
    portable = request_of(cache=cache, base="debian13", glibc="2.31")
    for stage, content in (("sysroot", sysroot_of(portable)), ("python", pythons_of(portable))):
        lock = {"recipe": content.digest, "packages": rows}
        write_packages(cache.package_list(stage, content.name, "amd64"), lock)
    return cache


@pytest.mark.parametrize("name", REQUESTS)
def test_input_digests_equal_the_recorded_digests(cache: Cache, name: str) -> None:
    stage, options = REQUESTS[name]
    rows = [
        [row.planned.name, row.planned.image, row.planned.input_digest]
        for row in plan(request_of(cache=cache, **options), stage)
    ]
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    if os.environ.get("TOOLCHAIN_RECORD_DIGESTS"):
        kept = {key: rows if key == name else recorded.get(key) for key in REQUESTS}
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        recorded = kept
    assert rows == recorded[name]


@pytest.mark.parametrize("target", ["kernels", "flash-attn", "triton-cache", "aotriton"])
def test_input_digest_of_triton_does_not_depend_on_the_target(cache: Cache, target: str) -> None:
    sources = {**DISTRO, **COMMIT, "aotriton": "https://github.com/ROCm/aotriton@" + "a" * 40}
    floor = "2.31" if target == "aotriton" else ""

    def triton(of: str) -> Any:
        rows = plan(request_of(cache=cache, base="debian13", glibc=floor, sources=sources, gpus=("gfx942",)), of)
        return next(row.planned.input_digest for row in rows if row.planned.name == "triton")

    assert triton("triton") is not None
    assert triton(target) == triton("triton")


def test_recorded_digests_are_those_of_these_requests() -> None:
    assert json.loads(RECORDED.read_text(encoding="utf-8")).keys() == REQUESTS.keys()


def test_input_digests_do_not_depend_on_the_host(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def digests() -> list[str | None]:
        rows = [plan(request_of(cache=cache, **options), stage) for stage, options in REQUESTS.values()]
        return [row.planned.input_digest for plan_ in rows for row in plan_]

    before = digests()
    monkeypatch.setattr(zlib, "ZLIB_RUNTIME_VERSION", "9.9.9")
    monkeypatch.setattr(sys, "version", "9.9.9")
    monkeypatch.setattr(sys, "version_info", (9, 9, 9, "final", 0))
    monkeypatch.setattr(os, "cpu_count", lambda: 333)
    monkeypatch.setenv("PATH", "/nowhere")  # without buildah, mmdebstrap and zstd
    assert digests() == before
