"""Tests of the inputs, the allocator and the facts of the kernels stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.kernel_fixtures import make_rule
from toolchain.catalog.base_ref import parse_base
from toolchain.catalog.bases import load_bases
from toolchain.core.cache import Cache
from toolchain.kernels.ledger import DONE, Entry, of_worker
from toolchain.pipeline.plan import plan
from toolchain.request.model import Request
from toolchain.stages.kernel_workers import allocator, stored_kernels
from toolchain.stages.kernels import KernelsStage
from toolchain.stages.stage import Planned


def test_kernel_timeout_is_an_input_only_with_keep_going(tmp_path: Path) -> None:
    request = Request(cache=Cache(tmp_path), allow_binary=("triton-wheel",))
    dependencies = {
        "triton": Planned(name="triton", image="t", inputs={"x": 1}),
        "base": plan(request, "base")[0].planned,
    }

    def digest(**changes: object) -> str | None:
        return KernelsStage().plan(replace(request, **changes), dependencies).input_digest  # type: ignore[arg-type]

    assert digest() == digest(kernel_timeout=60.0), "what takes too long fails the build then, and leaves nothing"
    assert digest(keep_going=True) != digest(keep_going=True, kernel_timeout=60.0)
    assert digest(keep_going=True, kernel_timeout=60.0) != digest(keep_going=True, kernel_timeout=90.0)


def test_compile_processes_preload_the_allocator_of_the_base(tmp_path: Path) -> None:
    def given(base: str) -> dict[str, str]:
        return allocator(Request(cache=Cache(tmp_path), base=parse_base(base)))

    for name, base in load_bases().items():
        assert bool(base.allocator) == ("libjemalloc2" in base.packages), name
    assert given("debian12") == given("debian13") == {"LD_PRELOAD": "libjemalloc.so.2"}
    assert given("almalinux8") == given(f"oci:{tmp_path}:mine") == {}


def test_stored_kernels_are_counted_by_signer() -> None:
    def entry(origin: str, signer: str = "") -> Entry:
        return Entry.of(make_rule("k"), DONE, origin=origin, signer=signer)

    entries = [entry(""), entry(of_worker("there")), entry("/a", "sha256:1"), entry("/b", "sha256:1"), entry("/a")]
    assert stored_kernels(entries) == {
        "stored_kernels": [
            {"store": "folder", "signer": "", "kernels": 1},
            {"store": "folder", "signer": "sha256:1", "kernels": 2},
        ]
    }
    assert stored_kernels(entries[:2]) == {}
