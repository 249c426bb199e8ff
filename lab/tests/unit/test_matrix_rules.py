"""The rules of matrix instructions, checked by vectors that an independent implementation confirmed bit by bit.

`lab/scripts/compare_matrix_rules.py` made that comparison, with the inputs of `matrix_inputs` and many more.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lab.tests.emulator_fixtures import run, wave_of
from lab.tests.matrix_inputs import SHAPES, Array, by_rule, instruction, products, sides, values
from toolchain_lab.emulator.exactness import bound
from toolchain_lab.emulator.matrix import handler_of
from toolchain_lab.emulator.wave import Target

INF = float("inf")
BOTH = ("gfx908", "gfx90a", "gfx942")
# The label, the type, a, b and c, and the bits of a*b+c on each GPU; None stands for NaN.
VECTORS = [
    ("products far apart", "f16", [1, 2**-12], [1, 2**-13], -1.0, (0x33000000, 0, 0)),
    ("the last bit", "f16", [1, 2**-12, 2**-24], [1, 2**-12, 2**-24], 0.0, (0x3F800001, 0x3F800000, 0x3F800000)),
    ("a small negative addend", "f16", [1], [1], -(2.0**-26), (0x3F800000, 0x3F800000, 0x3F7FFFFF)),
    ("a denormal factor", "f16", [2**-15], [1], 0.0, (0x38000000, 0, 0x38000000)),
    ("a denormal addend", "f16", [0], [0], 2.0**-130, (0x00080000, 0, 0x00080000)),
    ("cancellation", "f16", [1, -1, 2**-24], [1, 1, 2**-24], 0.0, (0x27800000, 0, 0)),
    ("pairs of products", "bf16", [1, 1, -1], [1, 2**-24, 1], 0.0, (0, 0, 0x33800000)),
    ("a product beyond float32", "bf16", [2.0**127, -(2.0**127)], [2, 2], 0.0, (0, None, None)),
    ("a sum beyond float32", "bf16", [2.0**127, 2.0**127], [1, 1], -(2.0**127), (0x7F000000, 0x7F800000, 0x7F000000)),
    ("an infinity", "f16", [INF], [1], 1.0, (0x7F800000, 0x7F800000, 0x7F800000)),
    ("two infinities", "f16", [INF], [1], -INF, (None, None, None)),
    ("infinity times 0", "f16", [INF], [0], 1.0, (None, None, None)),
    ("negative zeros", "f16", [-0.0], [1], -0.0, (0, 0, 0)),
    ("a product that float32 cannot hold", "f32", [1 + 2**-23], [1 - 2**-23], -1.0, (0xA8800000,) * 3),
    ("halfway between denormals", "f32", [2**-75 * (1 + 2**-20)], [2**-75 * (1 + 2**-22)], 2.0**-130, (0x80001,) * 3),
]  # fmt: skip
# The first 16 digits of the SHA-256 of the results for the products of seed 0.
DIGESTS = {
    ("gfx908", "32x32x2f32"): "0ef62e44cae4bcbe",
    ("gfx908", "16x16x4f32"): "907e846011f9ccb6",
    ("gfx908", "32x32x8f16"): "63b4baee631c248a",
    ("gfx908", "16x16x16f16"): "7f91ed777a6987aa",
    ("gfx908", "32x32x4bf16"): "49aa65ec0a3f834e",
    ("gfx908", "16x16x8bf16"): "0a7e095d5e30433f",
    ("gfx90a", "32x32x2f32"): "0ef62e44cae4bcbe",
    ("gfx90a", "16x16x4f32"): "907e846011f9ccb6",
    ("gfx90a", "32x32x8f16"): "d5e21de43a1b9d7e",
    ("gfx90a", "16x16x16f16"): "d4e56459fbcf979a",
    ("gfx90a", "32x32x4bf16"): "3405b0a855649354",
    ("gfx90a", "16x16x8bf16"): "d5f7e42a2d843257",
    ("gfx90a", "32x32x8bf16_1k"): "6825fef5fbb4dbb8",
    ("gfx90a", "16x16x16bf16_1k"): "d6f37262c21b95fd",
    ("gfx942", "32x32x2_f32"): "0ef62e44cae4bcbe",
    ("gfx942", "16x16x4_f32"): "907e846011f9ccb6",
    ("gfx942", "32x32x4_xf32"): "65fb2958daf0a15c",
    ("gfx942", "16x16x8_xf32"): "9dda90731672f094",
    ("gfx942", "32x32x8_f16"): "30d85163a6cb29d6",
    ("gfx942", "16x16x16_f16"): "1aea68a8fe3e6e0f",
    ("gfx942", "32x32x8_bf16"): "ca95c8805d5da92b",
    ("gfx942", "16x16x16_bf16"): "c0a8764493e5477f",
    ("gfx942", "32x32x16_fp8_fp8"): "b10b9e278d769929",
    ("gfx942", "32x32x16_fp8_bf8"): "a21d2926ec6cbfd0",
    ("gfx942", "32x32x16_bf8_fp8"): "5a08284b8d6426bc",
    ("gfx942", "32x32x16_bf8_bf8"): "56e2fb5d883724ea",
    ("gfx942", "16x16x32_fp8_fp8"): "79d53fc16484823f",
    ("gfx942", "16x16x32_fp8_bf8"): "f786510dadf78969",
    ("gfx942", "16x16x32_bf8_fp8"): "69ea10d9a2262c31",
    ("gfx942", "16x16x32_bf8_bf8"): "04ff116a48ee7156",
}


@pytest.mark.parametrize(
    ("gpu", "kind", "a", "b", "c", "expected"),
    [
        pytest.param(gpu, kind, a, b, c, bits, id=f"{label}, {gpu}")
        for label, kind, a, b, c, row in VECTORS
        for gpu, bits in zip(BOTH, row, strict=True)
    ],
)
def test_result_has_the_bits_of_its_rule(
    gpu: str, kind: str, a: list[float], b: list[float], c: float, expected: int | None
) -> None:
    left, right = (np.array([each + [0] * (4 - len(each))], np.float64) for each in (a, b))
    result = by_rule(gpu, kind, left, right, np.array([[c]], np.float32))
    assert np.isnan(result[0, 0]) if expected is None else result.view(np.uint32)[0, 0] == expected


@pytest.mark.parametrize(
    ("name", "known"), [("32x32x4bf16", True), ("32x32x4bf16_1k", False), ("16x16x8bf16_1k", False)]
)
def test_instruction_with_several_blocks_has_no_handler(name: str, known: bool) -> None:
    assert (handler_of(f"v_mfma_f32_{name}") is not None) == known


@pytest.mark.parametrize(("gpu", "shape"), DIGESTS)
def test_results_of_each_instruction_have_the_confirmed_digest(gpu: str, shape: str) -> None:
    _, depth, kind, suffix = instruction(shape)
    digest = hashlib.sha256()
    for a, b, c in products("0", kind, depth):
        left, right = sides(kind)
        result = by_rule(gpu, kind + suffix, values(left, a), values(right, b), c)
        # No rule is published for bf8 products with infinity or NaN.
        unknown = ~np.isfinite(result) if kind == "bf8_bf8" else np.isnan(result)
        digest.update(np.where(unknown, np.uint32(0x7FC00000), result.view(np.uint32)).astype("<u4").tobytes())
    assert digest.hexdigest()[:16] == DIGESTS[gpu, shape]


@pytest.mark.parametrize(("gpu", "shape"), [(gpu, shape) for gpu in ("gfx90a", "gfx942") for shape in SHAPES[gpu]])
def test_instruction_takes_rows_columns_and_groups_of_k_from_its_lanes(gpu: str, shape: str) -> None:
    size, depth, kind, suffix = instruction(shape)
    a, b, _ = next(iter(products("lanes", kind, depth)))
    a, b = np.resize(a, (size, depth)), np.resize(b[::-1], (size, depth))
    wave, parts, registers = wave_of(gpu), 64 // size, size * size // 64

    def lanes(matrix: Array) -> Array:
        each = depth // parts
        rows = np.concatenate([matrix[:, part * each : (part + 1) * each] for part in range(parts)])
        return np.ascontiguousarray(rows).view(np.uint32).T

    factors = lanes(a), lanes(b)
    count = len(factors[0])
    wave.vectors[:count], wave.vectors[8 : 8 + count] = factors
    texts = [f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}" for first in (0, 8)]
    run(wave, f"v_mfma_f32_{shape} v[20:{19 + registers}], {texts[0]}, {texts[1]}, 1.0")
    ones = np.ones((size, size), np.float32)
    left, right = sides(kind)
    expected = by_rule(gpu, kind + suffix, values(left, a), values(right, b), ones).view(np.uint32)
    lane = np.arange(64)
    for register in range(registers):
        row = 8 * (register // 4) + 4 * (lane // 32) + register % 4 if size == 32 else 4 * (lane // 16) + register
        result = expected[row, lane % size]
        nan = np.isnan(result.view(np.float32))
        assert (wave.u[20 + register][~nan] == result[~nan]).all()
    unruled = kind == "bf8_bf8" and not np.isfinite(expected.view(np.float32)).all()
    assert bool(wave.group.magnitudes) == unruled
    assert bool(bound(f"v_mfma_f32_{shape}", wave.target, np.inf if unruled else None)) == unruled


def test_approximate_product_is_within_its_stated_bound() -> None:
    """The test compares the exact rule with a sum that is rounded once, because the two differ."""
    random = np.random.default_rng(5)
    a, b = (random.normal(size=(16, 16)).astype(np.float16).astype(np.float64) for _ in range(2))
    c = random.normal(size=(16, 16)).astype(np.float32)
    once = (a @ b.T + c).astype(np.float32)
    error = np.abs(by_rule("gfx942", "f16", a, b, c).astype(np.float64) - once)
    magnitude = (np.abs(a) @ np.abs(b).T + np.abs(c)).max()
    text = bound("v_mfma_f32_16x16x16_f16", Target("gfx950", 64), magnitude)
    assert 0 < error.max() <= float(text.rpartition(" ")[2])
    assert not bound("v_mfma_f32_16x16x16_f16", Target("gfx942", 64))
    assert bound("v_mfma_f32_16x16x16_f16", Target("gfx942", 64, exact=False))


@pytest.mark.parametrize(
    ("name", "known"),
    [("v_exp_f32", True), ("v_s_log_f32", True), ("v_sqrt_f16", True), ("v_rcp_f64", True), ("v_rcp_iflag_f32", False),
     ("v_sin_f32", False), ("v_cos_f32", False), ("v_tanh_f32", False), ("v_exp_bf16", False)],
)  # fmt: skip
def test_bound_is_documented_by_amd_or_unknown(name: str, known: bool) -> None:
    text = bound(name, Target("gfx942", 64))
    assert ("CDNA4" in text) == known
    assert text.startswith("unknown") != known


def test_dot_product_has_the_same_bound_under_each_name() -> None:
    """VOPD instructions have their own names for the operations of other encodings."""
    target = Target("gfx1100", 32)
    assert bound("v_dot2acc_f32_f16", target)
    assert bound("v_dot2acc_f32_f16", target) == bound("v_dot2c_f32_f16", target)
