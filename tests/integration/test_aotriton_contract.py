"""Test of aotriton/contract in the base, with a stand-in for AOTriton, because a build of AOTriton takes an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cached_images import laid, the_record
from tests.integration.conftest import toolchain
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import ContractError
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah
from toolchain.stages.aotriton import consumed
from toolchain.stages.hip import PLACE

PREFIX = "/opt/standin"
CONFIG = """
#define AOTRITON_VERSION_MAJOR 1
#define AOTRITON_VERSION_MINOR 2
#define AOTRITON_VERSION_PATCH 3
"""
FLASH = """
#pragma once
#include <hip/hip_runtime.h>
#include <array>
#include <cstdint>
namespace aotriton {
enum class DType { kFloat16 };
template <int Rank> struct TensorView {
  TensorView() = default;
  TensorView(std::intptr_t, std::array<std::uint64_t, Rank>, std::array<std::uint64_t, Rank>, DType) {}
};
}
namespace aotriton::v3::flash {
struct attn_fwd_params {
  static constexpr int kVersion = 1;
  attn_fwd_params();
  int Max_seqlen_q;
  TensorView<4> Q, K, V, Out;
};
hipError_t attn_fwd(const attn_fwd_params &, int, hipStream_t, const void *);
}
"""
LIBRARY = """
#include <aotriton/flash.h>
namespace aotriton::v3::flash {
attn_fwd_params::attn_fwd_params() : Max_seqlen_q(0) {}
hipError_t attn_fwd(const attn_fwd_params &, int, hipStream_t, const void *) { return hipErrorNoBinaryForGpu; }
}
"""
PACKAGE = """
add_library(aotriton_v2 SHARED IMPORTED)
set_target_properties(aotriton_v2 PROPERTIES IMPORTED_LOCATION PLACE/lib/libaotriton_v2.so
  INTERFACE_INCLUDE_DIRECTORIES PLACE/include INTERFACE_LINK_LIBRARIES hip::host)
"""
MOVABLE = PACKAGE.replace("PLACE", "${CMAKE_CURRENT_LIST_DIR}/../../..")


def test_contract_requires_the_library_its_symbols_and_a_movable_package(
    base: tuple[Buildah, str], tmp_path: Path
) -> None:
    engine, image = base
    # Debian 13's HIP is 5.7.1, so its package with the headers is on the mirrors of the base.
    said = toolchain("build", "hip", "--rocm", "5")
    assert said.code == 0, said.err
    cache = Cache(default_cache())
    hip = Mount(laid(cache, the_record(cache, "toolchain-hip-5"), tmp_path / "hip") / PLACE[1:], PLACE)
    prefix = f"{PLACE}/rocm5"
    folder = tmp_path / "in"
    for name, text in (
        ("include/aotriton/config.h", CONFIG),
        ("include/aotriton/flash.h", FLASH),
        ("lib/cmake/aotriton/aotriton-config.cmake", MOVABLE),
        ("library.cpp", LIBRARY),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    here, log = [Mount(folder, PREFIX), hip], tmp_path / "log"
    compiled = [
        "clang++",
        "-shared",
        "-fPIC",
        "-D__HIP_PLATFORM_AMD__=1",
        f"-I{PREFIX}/include",
        f"-I{prefix}/include",
        f"{PREFIX}/library.cpp",
    ]
    compiled += ["-o", f"{PREFIX}/lib/libaotriton_v2.so"]
    engine.run(image, compiled, mounts=[Mount(folder, PREFIX, read_only=False), hip])
    assert consumed(engine, image, PREFIX, log=log, mounts=here, hip=prefix) == "1.2.3"
    (folder / "library.cpp").write_text("void nothing() {}\n", encoding="utf-8")
    engine.run(image, compiled, mounts=[Mount(folder, PREFIX, read_only=False), hip])
    with pytest.raises(ContractError) as caught:
        consumed(engine, image, PREFIX, log=log, mounts=here, hip=prefix)
    assert "attn_fwd_params" in caught.value.why, "the library lacks what the program calls"
    config = folder / "lib/cmake/aotriton/aotriton-config.cmake"
    config.write_text(PACKAGE.replace("PLACE", PREFIX), encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        consumed(engine, image, PREFIX, log=log, mounts=here, hip=prefix)
    assert f"{PREFIX}/lib/libaotriton_v2.so" in caught.value.why, "the package names the prefix that it was built for"
    config.unlink()
    with pytest.raises(ContractError) as caught:
        consumed(engine, image, PREFIX, log=log, mounts=here, hip=prefix)
    assert "Could not find a package configuration file" in caught.value.why
