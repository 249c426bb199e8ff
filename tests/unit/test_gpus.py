"""Tests of the names of GPUs."""

from __future__ import annotations

import re

import pytest

from tests.refusals import refused
from toolchain.catalog import gpus as table
from toolchain.catalog.gpus import any_gpu_of_flag, check_gpu, known_gpus, parse_gpus, short_list
from toolchain.core.errors import UnsupportedError


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", ""),
        ("gfx942", "gfx942"),
        ("GFX90A", "gfx90a"),
        ("gfx942,gfx1100;gfx90a gfx950", "gfx1100 gfx90a gfx942 gfx950"),
        ("Navi31;Navi32;Navi33", "gfx1100 gfx1101 gfx1102"),
        ("rx 7900 xtx", "gfx1100"),
        ("rx-7900-xtx,RX_7900_XTX", "gfx1100"),
        ("gfx942 Strix Halo MI250 Strix Point", "gfx1150 gfx1151 gfx90a gfx942"),
        ("gfx942;", "gfx942"),
    ],
)
def test_gpu_names_are_parsed(text: str, gpus: str) -> None:
    assert parse_gpus(text) == tuple(gpus.split())


@pytest.mark.parametrize("gpu", known_gpus())
def test_every_name_of_every_gpu_is_parsed(gpu: str) -> None:
    for name in (gpu, *table._GPUS[gpu].market):
        assert parse_gpus(name) == (gpu,)
        assert parse_gpus(f"{name.upper()} {name.lower()}") == (gpu,)


@pytest.mark.parametrize(("text", "suggestion"), [("gfx943", "gfx942"), ("MI30X", "MI300X")])
def test_misspelt_gpu_is_refused_with_a_suggestion(text: str, suggestion: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_gpus(f"gfx942;{text}")
    assert suggestion in caught.value.fix


@pytest.mark.parametrize("name", ["Navi31", "navi 31", "Navi13"])
def test_market_name_where_only_llvms_name_is_accepted_is_refused_with_the_latter(name: str) -> None:
    """A plan of AOTriton and a file of rules must have LLVM's names."""
    with refused("unknown-gpu", name) as caught:
        check_gpu(name)
    assert "gfx1100" in caught.value.fix
    assert "Navi" not in f"{caught.value.fix} {caught.value.why}"


@pytest.mark.parametrize("text", ["sm_90", "x", "gfx", "gfx9421", "gfx942/gfx950", "$(id)", "gfx90a gfx000"])
def test_unknown_gpu_is_refused(text: str) -> None:
    with refused("unknown-gpu"):
        parse_gpus(text)


@pytest.mark.parametrize("gpu", ["gfx1030", "gfx803", "gfx90c"])
def test_gpu_without_kernels_is_refused_without_a_suggestion(gpu: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_gpus(gpu)
    assert "did you mean" not in caught.value.fix
    assert "gfx1100" in caught.value.why


def test_target_features_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_gpus("gfx942:sramecc+:xnack-")
    assert caught.value.fix == "use gfx942"


def test_short_list_distinguishes_sets_of_gpus() -> None:
    assert short_list(["gfx942"]) == "gfx942"
    assert short_list(["gfx942", "gfx1100"]) == short_list(["gfx1100", "gfx942"]) == "gfx1100-gfx942"
    many = ["gfx1100", "gfx1101", "gfx1102", "gfx1103"]
    assert re.fullmatch("4gpus[0-9a-f]{6}", short_list(many))
    assert short_list(many) != short_list([*many[:3], "gfx942"])
    assert short_list(known_gpus()) == short_list([*known_gpus(), "gfx942"]) != ""


def test_each_machine_flag_up_to_gfx950_has_one_name() -> None:
    names = [any_gpu_of_flag(flag) for flag in range(0x20, 0x50)]
    assert [0x20 + at for at, name in enumerate(names) if name is None] == [0x27, 0x4D], "LLVM reserves these two"
    assert len(set(names)) == len(names) - 1
