"""Tests of a user's list of calls for a Triton cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.cli.cached_cmd import _variables
from toolchain.kernels.calls import Call, calls_of, listed, with_calls
from toolchain.request import option_values

OWN = """
[[call]]
direction = "forward"
dtype = ["bf16"]
head = [96]
heads = [[16, 4]]
batch = [2]
seq = [512, 2048, 512]
causal = true
"""


def of_user(text: str, folder: Path, *gpus: str) -> list[Call]:
    """Return the calls in a user's file."""
    (folder / "own.toml").write_text(text)
    given = option_values.calls(os.fspath(folder / "own.toml"))
    assert option_values.calls(given) == given, "a record holds it, and `reproduce` gives it"
    return listed(with_calls(calls_of("flash-attn"), given, gpus), gpus)


def test_calls_of_the_user_replace_the_list(tmp_path: Path) -> None:
    made_ = of_user(OWN, tmp_path, "gfx90a")
    shape = "direction=forward,dtype=bf16,head=96,heads=16x4,batch=2,seq={},causal=true"
    assert [call_.name for call_ in made_] == [f"gfx90a/{shape.format(seq)}" for seq in (512, 2048)]
    assert {call_.gpu for call_ in of_user(OWN, tmp_path)} == {"gfx942", "gfx1100", "gfx1151"}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('direction = "forward"\n', "", "calls-invalid"),
        ('"forward"', '"sideways"', "calls-invalid"),
        ("[96]", "[9.5]", "calls-invalid"),
        ("[512, 2048, 512]", "[" * 5000, "calls-unreadable"),
        ("[[16, 4]]", "[[16, -4]]", "calls-invalid"),
        ("batch = [2]", "batch = [2]\nlength = 3", "calls-invalid"),
        ("[2]", "[2025-01-01]", "calls-invalid"),
        ("batch = [2]", "batch = [2]\ngpus = []", "calls-invalid"),
        ("[[call]]", "[[call", "calls-unreadable"),
        ("[[call]]", f"a{'.a' * 5000} = 1\n[[call]]", "calls-unreadable"),
        ("[512, 2048, 512]", str(list(range(1, 10002))), "calls-invalid"),
    ],
)
def test_invalid_calls_are_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    with refused(what) as raised:
        of_user(OWN.replace(old, new), tmp_path, "gfx942")
    assert raised.value.fix


def test_gpu_with_an_unknown_number_of_compute_units_is_refused() -> None:
    own = json.dumps({"function": "softmax", "dtype": "bf16", "rows": 16, "columns": 4096})
    table = with_calls(calls_of("aiter"), f"[{own}]", ())
    assert [call_.rows[0]["units"] for call_ in listed(table, ["gfx942", "gfx1151"])] == [40, 304]
    with refused("gpu-without-calls"):
        listed(table, ["gfx90a"])


def test_list_is_read_through_a_link_but_not_from_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "link.toml").symlink_to("own.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    assert option_values.calls(os.fspath(tmp_path / "link.toml")) == option_values.calls(
        os.fspath(tmp_path / "own.toml")
    )
    with refused("calls-unreadable"):
        option_values.calls(os.fspath(tmp_path / "pipe.toml"))


def test_variable_that_is_given_twice_is_refused() -> None:
    with refused("option-twice"):
        _variables(["A=1", "A=2"])
