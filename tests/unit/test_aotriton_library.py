"""AOTriton's library: its name, its inputs, and the inputs of its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.core.cache import Cache
from toolchain.request.model import Request
from toolchain.sources.tree import FetchedSource
from toolchain.stages.aotriton import _objects
from toolchain.stages.aotriton_library import AotritonDetails, Library, library_in, library_of, name_of
from toolchain.stages.stage import Built, Planned

SHA1 = "30ae96716b3e7a1bf0d7892ce3b8288244f8ebec"
SOURCE = FetchedSource(
    name="aotriton", kind="git", where="https://example.org/a", version=SHA1, digest="sha256:1", path=Path("/a"),
    locked=True,
)  # fmt: skip


def dependencies(name: str, *, layer: str = "sha256:aa", inputs: str = "") -> Built:
    planned = Planned(name=name, image=name, inputs={"stage": name, "more": inputs})
    return Built(planned=planned, input_digest=str(planned.input_digest), manifest="m", layers=({"digest": layer},))


def request(tmp_path: Path, *gpus: str) -> Request:
    return Request(cache=Cache(tmp_path), gpus=gpus)


def library(under: Mapping[str, Built], asked: Request) -> Library:
    details = AotritonDetails.of(asked)
    planned = Planned(name="aotriton", image="a", inputs={}, sources=(SOURCE,), details=details)
    return library_of(planned, under, asked, SOURCE, (), generation=generation_of("0.13b"))


@pytest.mark.parametrize(
    ("gpus", "name"),
    [(("gfx942",), "30ae9671-gfx942"), ((), "30ae9671-gfx942"), (("gfx1100", "gfx942"), "30ae9671-gfx1100-gfx942")],
)
def test_a_library_is_named_by_its_gpus(tmp_path: Path, gpus: tuple[str, ...], name: str) -> None:
    assert name_of(SOURCE, AotritonDetails.of(request(tmp_path, *gpus)).gpus) == name


def test_objects_depend_on_layer_of_triton_and_not_on_gpus(tmp_path: Path) -> None:
    under = {"base": dependencies("base"), "triton": dependencies("triton")}
    one_gpu, two_gpus = request(tmp_path, "gfx942"), request(tmp_path, "gfx942", "gfx950")
    one, two = library(under, one_gpu), library(under, two_gpus)
    assert one.key != two.key, "the library serves other GPUs"
    assert _objects(under, one_gpu, one) == _objects(under, two_gpus, two)
    renamed = {**under, "triton": dependencies("triton", inputs="another recipe")}
    assert _objects(renamed, one_gpu, one) == _objects(under, one_gpu, one)
    changed = {**under, "triton": dependencies("triton", layer="sha256:bb")}
    assert _objects(changed, one_gpu, one) != _objects(under, one_gpu, one)
    assert _objects(under, one_gpu, replace(one, dropped=("a.co",))) != _objects(under, one_gpu, one)


def test_key_of_portable_library_depends_on_rocm_headers_and_sysroot(tmp_path: Path) -> None:
    under = {name: dependencies(name) for name in ("base", "sysroot", "hip", "triton")}
    portable = replace(request(tmp_path), glibc="2.31")
    both = library(under, portable)
    assert both.rocm == ("6", "7")
    assert both.key != library(under, request(tmp_path)).key
    assert both.key != library(under, replace(portable, rocm=("7",))).key
    for name in ("sysroot", "hip"):
        changed = {**under, name: dependencies(name, inputs="other packages")}
        assert library(changed, portable).key != both.key
        assert _objects(changed, portable, both) == _objects(under, portable, both), "kernels know no HIP"


@pytest.mark.parametrize(("major", "other"), [("6", "7"), ("7", "6")])
def test_library_of_each_rocm_must_exist(tmp_path: Path, major: str, other: str) -> None:
    def add(rocm: str) -> Path:
        folder = tmp_path / f"rocm{rocm}" / "lib"
        folder.mkdir(parents=True)
        (folder / "libaotriton_v2.so.0.13.0").write_text("")
        (folder / "libaotriton_v2.so").symlink_to("libaotriton_v2.so.0.13.0")
        return folder / "libaotriton_v2.so.0.13.0"

    add(other)
    with refused("library-missing", f"ROCm {major}"):
        library_in(tmp_path, major)
    library = add(major)
    assert library_in(tmp_path, major) == library
    library.with_name("libaotriton_v2.so.0.14.0").write_text("")
    with refused("library-missing", f"ROCm {major}"):
        library_in(tmp_path, major)
