"""GPU names."""

from __future__ import annotations

import re

import pytest

from toolchain.catalog import gpus as table
from toolchain.catalog.aotriton_generations import pack
from toolchain.catalog.gpus import known_gpus, parse_gpus, short_list
from toolchain.core.errors import UnsupportedError


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", ""),
        (" ;, ", ""),
        ("gfx942", "gfx942"),
        ("GFX90A", "gfx90a"),
        ("gfx942,gfx1100;gfx90a gfx950", "gfx1100 gfx90a gfx942 gfx950"),
        ("gfx942;MI300X,mi300a gfx942", "gfx942"),
        ("MI200 MI210 MI250", "gfx90a"),
        ("MI350,MI355X", "gfx950"),
        ("Navi31;Navi32;Navi33", "gfx1100 gfx1101 gfx1102"),
        ("RX7900XTX", "gfx1100"),
        ("rx 7900 xtx", "gfx1100"),
        ("RX 7900 XTX gfx942", "gfx1100 gfx942"),
        ("rx-7900-xtx,RX_7900_XTX", "gfx1100"),
        ("Strix Point", "gfx1150"),
        ("strix-halo", "gfx1151"),
        ("gfx942 Strix Halo MI250 Strix Point", "gfx1150 gfx1151 gfx90a gfx942"),
        ("RX9070XT;RX9060XT", "gfx1200 gfx1201"),
        ("gfx942;", "gfx942"),
    ],
)
def test_parse(text: str, gpus: str) -> None:
    assert parse_gpus(text) == tuple(gpus.split())


@pytest.mark.parametrize("gpu", known_gpus())
def test_every_name_of_every_gpu(gpu: str) -> None:
    for name in (gpu, *table._GPUS[gpu].market):
        assert parse_gpus(name) == (gpu,)
        assert parse_gpus(f"{name.upper()} {name.lower()}") == (gpu,)


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("gfx943", "gfx942"),
        ("gfx94", "gfx942"),
        ("MI30X", "MI300X"),
        ("strix hallo", "Strix Halo"),
        ("navi3", "Navi31"),
    ],
)
def test_unknown_suggests(text: str, suggestion: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_gpus(f"gfx942;{text}")
    assert suggestion in caught.value.fix
    assert "gfx1250" in caught.value.why


@pytest.mark.parametrize("text", ["sm_90", "x", "gfx", "gfx9421", "gfx942/gfx950", "$(id)", "gfx90a gfx000"])
def test_unknown(text: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown GPU"):
        parse_gpus(text)


def test_a_gpu_without_kernels_is_no_typing_error() -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_gpus("gfx1030")
    assert "did you mean" not in caught.value.fix
    assert "gfx1100" in caught.value.why


def test_target_features_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_gpus("gfx942:sramecc+:xnack-")
    assert caught.value.fix == "give gfx942"


def test_packs_of_the_newest_release() -> None:
    # An x stands for the last digit.
    assert [gpu for gpu in known_gpus() if pack(gpu) not in {gpu, f"{gpu[:-1]}x"}] == []
    assert [pack(gpu) for gpu in ("gfx1103", "gfx1150", "gfx1201")] == ["gfx110x", "gfx115x", "gfx120x"]


def test_what_tells_images_for_different_gpus_apart() -> None:
    assert short_list(["gfx942"]) == "gfx942"
    assert short_list(["gfx942", "gfx1100"]) == short_list(["gfx1100", "gfx942"]) == "gfx1100-gfx942"
    many = ["gfx1100", "gfx1101", "gfx1102", "gfx1103"]
    assert re.fullmatch("4gpus[0-9a-f]{6}", short_list(many))
    assert short_list(many) != short_list([*many[:3], "gfx942"])
    assert short_list(known_gpus()) == short_list([*known_gpus(), "gfx942"]) != ""
