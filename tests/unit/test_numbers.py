"""The checks of kernels' numbers: references, random numbers, the rule, and samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolchain.errors import ConfigError
from toolchain.numbers.case import Expected
from toolchain.numbers.elements import BF16, FP16, FP32, tensor
from toolchain.numbers.objects import objects_in, sample
from toolchain.numbers.philox import random_words
from toolchain.numbers.problem import Dropout, Problem, Shape
from toolchain.numbers.reference import Inputs, attention, window


def test_philox_gives_the_published_words() -> None:
    # The known answers of Random123 for Philox 4x32-10, with the third and fourth counter 0.
    assert [int(word[0]) for word in random_words(0, np.zeros(1, np.uint64))] == [
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    ]  # fmt: skip


def inputs(**changes: Any) -> Inputs:
    random = np.random.default_rng(5)
    q, k, v, do = (random.standard_normal((rows, 8)) for rows in (6, 9, 9, 6))
    values: dict[str, Any] = {"q": q, "k": k, "v": v, "do": do, "scale": 0.35, "visible": window(np.arange(6), 9, 6, 3)}
    return Inputs(**{**values, **changes})


@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_gradients_are_those_of_differences(name: str) -> None:
    random = np.random.default_rng(6)
    keep = random.random((6, 9)) > 0.3
    given = inputs(bias=random.standard_normal((6, 9)), keep=keep, drop=0.3)
    gradient = getattr(attention(given), {"q": "dq", "k": "dk", "v": "dv", "bias": "db"}[name])
    step = 1e-6
    for place in ((0, 0), (2, 1), (5, 7)):
        values = []
        for sign in (1, -1):
            moved = getattr(given, name).copy()
            moved[place] += sign * step
            changed = Inputs(**{**given.__dict__, name: moved})
            assert given.do is not None
            values.append((attention(changed).o * given.do).sum())
        assert gradient[place] == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-7)


def test_a_row_that_sees_nothing_is_zero() -> None:
    found = attention(inputs(visible=np.zeros((6, 9), np.bool_)))
    assert (found.o == 0).all()
    assert np.isinf(found.lse).all()
    assert (found.dk == 0).all()


@pytest.mark.parametrize("element", [FP16, BF16, FP32])
def test_what_is_stored_is_rounded_to_nearest(element: Any) -> None:
    values = np.array([1.0, 1 + element.precision / 4, -3.0])
    assert np.array_equal(element.rounded(element.rounded(values)), element.rounded(values))
    assert np.abs(element.rounded(values) - values).max() <= element.precision


def test_between_the_rows_of_a_tensor_lies_nan() -> None:
    made = tensor(FP16, (2, 3, 4, 5), np.ones, pitch=8, guard=2)
    assert made.read().shape == (2, 3, 4, 5)
    assert (made.read() == 1).all()
    assert np.isnan(FP16.decode(made.data)).sum() == len(made.data) - 2 * 3 * 4 * 5
    assert made.strides == ((4 + 2) * 3 * 8, 8, 3 * 8, 1)


def test_the_rule_allows_twice_the_plain_error_and_a_unit_of_the_type() -> None:
    places, exact = np.arange(3), np.array([1.0, -4.0, 2.0])
    expected = Expected("o", "O", FP16, places, exact, exact + 0.25)
    assert expected.bound == 0.5 + 2.0**-10 * 4
    assert expected.error(np.array([1, -4, 3], np.float16)) == 1
    assert expected.error(np.array([1, -4, np.nan], np.float16)) == float("inf")


def test_dropout_keeps_about_what_it_should_and_depends_on_the_head() -> None:
    shape = Shape(((64, 70),), heads=2, key_heads=1, head=16, pitch=16)
    problem = Problem(FP16, shape, 0.25, 1, dropout=Dropout(0.4, 7, 9))
    kept = [problem.kept(0, head) for head in (0, 1)]
    assert kept[0] is not None
    assert kept[1] is not None
    assert abs(kept[0].mean() - 0.6) < 0.03
    assert (kept[0] != kept[1]).any()


def test_packed_sequences_lie_one_behind_the_other() -> None:
    shape = Shape(((3, 5), (4, 6)), heads=2, key_heads=1, head=16, pitch=16, packed=True)
    problem = Problem(FP16, shape, 0.25, 1)
    assert problem.starts(keys=False) == [0, 3, 7]
    assert problem.rows(1, keys=True) == slice(5, 11)
    assert problem.inputs(1, 1).k.shape == (6, 16)


def test_a_sample_shows_something_of_every_function(tmp_path: Path) -> None:
    for gpu in ("gfx942", "gfx1100"):
        for kernel in ("a", "b", "c"):
            for form in range(5):
                path = tmp_path / gpu / f"{kernel}{form}.hsaco"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"x")
                about: dict[str, Any] = {
                    "name": kernel,
                    "arch": gpu,
                    "source": "k.py",
                    "signature": [],
                    "constexprs": {},
                    "num_warps": 1,
                    "shared": 0,
                }
                path.with_suffix(".json").write_text(json.dumps(about))
    (tmp_path / "bad.hsaco").write_bytes(b"")  # known bad
    objects = objects_in(tmp_path)
    assert len(objects) == 30
    chosen = sample(objects, 6, 1)
    assert {(each.gpu, each.kernel) for each in chosen} == {
        (g, f"k.py:{k}") for g in ("gfx942", "gfx1100") for k in "abc"
    }
    assert sample(objects, 6, 1) == chosen
    assert sample(objects, 6, 2) != chosen
    assert sample(objects, None, 1) == objects
    assert {each.gpu for each in objects_in(tmp_path, ["gfx942"])} == {"gfx942"}
    with pytest.raises(ConfigError):
        objects_in(tmp_path, ["gfx90a"])
