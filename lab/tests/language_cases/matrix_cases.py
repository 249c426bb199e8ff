"""Cases of matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lab.tests.language_cases.language_case import Close, LanguageCase, LanguageProblem, Make
from lab.tests.language_cases.number_formats import FORMATS, Array, decode, encode, storage

# The largest absolute error of sums of 32 to 128 products, by the type that limits their precision.
ERRORS = {"fp32": 2e-5, "tf32": 3e-2, "fp16": 3e-2, "bf16": 0.25, "fp64": 1e-13, "i32": 0.0}


def numbers(random: np.random.Generator, shape: Sequence[int], element: str) -> Array:
    """Return normal numbers, codes of 8-bit floats, or integers of the whole range."""
    if element == "i8":
        return random.integers(-128, 127, shape, np.int8, endpoint=True)
    if element in FORMATS:
        # Half of the codes are below the normal numbers; the others are at most 3.5, so that sums are small.
        size = np.abs(FORMATS[element].values())
        low = 2.0 ** (1 - FORMATS[element].bias)
        choices = [
            random.choice(np.flatnonzero(chosen), shape) for chosen in (size < low, (size >= low) & (size <= 3.5))
        ]
        return np.where(random.random(shape) < 0.5, *choices).astype(np.uint8)
    values = np.clip(random.standard_normal(shape), -3.5, 3.5)
    return encode(values, element).reshape(shape)


def exact(buffer: Array, element: str) -> Array:
    """Return the numbers in a buffer, for exact sums."""
    return decode(buffer, element).astype(np.int64 if element.startswith(("i", "u")) else np.float64)


def _error(element: str, out: str) -> float:
    """Return the absolute error; Triton multiplies float32 as TF32 by default, on a GPU that can."""
    return ERRORS["tf32" if element == "fp32" else out]


def _product(element: str, out: str, m: int, n: int, k: int, error: float | None = None, start: bool = False) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        a, b = numbers(random, (m, k), element), numbers(random, (k, n), element)
        if element == "fp32":
            # The bits of this NaN overflow in code that rounds them to bf16 like the bits of a number.
            odd = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
            a[:3][random.random((3, k)) < 0.5] = odd
            b[:, :3][random.random((k, 3)) < 0.5] = odd
        c = numbers(random, (m, n), out) if start else np.zeros((m, n), storage(out))
        wanted = exact(a, element) @ exact(b, element) + (exact(c, out) if start else 0)
        absolute = _error(element, out) if error is None else error
        return LanguageProblem({"a": a, "b": b, "c": c}, {"c": Close(wanted, absolute=absolute)})

    return make


def _transposed(element: str, m: int, n: int, k: int) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        a, b = numbers(random, (k, m), element), numbers(random, (n, k), element)
        wanted = exact(b, element) @ exact(a, element)
        values = {"a": a, "b": b, "c": np.zeros((n, m), np.float32)}
        return LanguageProblem(values, {"c": Close(wanted, absolute=_error(element, "fp32"))})

    return make


def _batched(element: str, out: str, shape: tuple[int, int, int, int]) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        batch, m, n, k = shape
        a, b = numbers(random, (batch, m, k), element), numbers(random, (batch, k, n), element)
        values = {"a": a, "b": b, "c": np.zeros((batch, m, n), storage(out))}
        return LanguageProblem(values, {"c": Close(exact(a, element) @ exact(b, element), absolute=ERRORS[out])})

    return make


def _looped(element: str, m: int, n: int, k: int) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        rows, columns, inner = (size - int(random.integers(0, 6)) for size in (m, n, k))
        a, b = numbers(random, (rows, inner), element), numbers(random, (inner, columns), element)
        a[rows - 1, 0] = encode(np.nan, element)[()]
        c = encode(np.full((rows, columns), 9.0), element)
        wanted = exact(a, element) @ exact(b, element)
        values = {"a": a, "b": b, "c": c, "m": rows, "n": columns, "k": inner}
        return LanguageProblem(values, {"c": Close(wanted, absolute=2 * _error(element, element))})

    return make


def _dequantized(random: np.random.Generator) -> LanguageProblem:
    a, b = numbers(random, (32, 64), "fp16"), numbers(random, (64, 32), "i8")
    scale = random.uniform(0.001, 0.01, 32).astype(np.float32)
    wanted = a.astype(np.float64) @ b.astype(np.float64) * scale
    values = {"a": a, "b": b, "scale": scale, "c": np.zeros((32, 32), np.float32)}
    return LanguageProblem(values, {"c": Close(wanted, absolute=2e-5)})


def _unpacked(random: np.random.Generator) -> LanguageProblem:
    a = numbers(random, (32, 64), "fp16")
    packed = random.integers(0, 256, (32, 32)).astype(np.uint8)
    b = np.stack([packed & 15, packed >> 4], 1).reshape(64, 32).astype(np.float64) - 8
    values = {"a": a, "b": packed, "c": np.zeros((32, 32), np.float32)}
    return LanguageProblem(values, {"c": Close(a.astype(np.float64) @ b, absolute=1e-4)})


def _scaled(form: str, m: int, n: int, k: int) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        if form == "e2m1":
            codes = random.integers(0, 16, (m + n, k))
            values = FORMATS["e2m1"].values()[codes]
            bytes_ = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        else:
            bytes_ = numbers(random, (m + n, k), {"e4m3": "fp8e4nv", "e5m2": "fp8e5"}[form])
            values = decode(bytes_, {"e4m3": "fp8e4nv", "e5m2": "fp8e5"}[form])
        scale = random.integers(124, 130, (m + n, k // 32)).astype(np.uint8)
        whole = values * np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, axis=1)
        given = {
            "a": bytes_[:m], "a_scale": scale[:m], "b": np.ascontiguousarray(bytes_[m:].T), "b_scale": scale[m:],
            "c": np.zeros((m, n), np.float32),
        }  # fmt: skip
        return LanguageProblem(given, {"c": Close(whole[:m] @ whole[m:].T, 1e-5, 1e-3)})

    return make


def _chained(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        a, b, d = (numbers(random, (32, 32), element) for _ in range(3))
        a[1, 0] = encode(np.nan, element)[()]
        first = decode(encode(exact(a, element) @ exact(b, element), element), element).reshape(32, 32)
        values = {"a": a, "b": b, "d": d, "c": np.zeros((32, 32), np.float32)}
        return LanguageProblem(
            values, {"c": Close(first @ exact(d, element), absolute=0.15 if element == "fp16" else 1.2)}
        )

    return make


def _case(
    kernel: str, label: str, types: dict[str, str], sizes: dict[str, Any], make: Make, **how: Any
) -> LanguageCase:
    return LanguageCase(f"{kernel}-{label}" if label else kernel, "matrices", kernel, types, sizes, make, **how)


def _abc(element: str, out: str) -> dict[str, str]:
    return {"a": f"*{element}", "b": f"*{element}", "c": f"*{out}"}


def cases() -> Iterator[LanguageCase]:
    """Yield the cases of each kernel in `emulated/language/matrices.py`."""
    for element, out, m, n, k, warps in (
        ("fp16", "fp32", 32, 32, 32, 4), ("fp16", "fp32", 64, 16, 64, 2), ("fp16", "fp16", 32, 32, 32, 1),
        ("bf16", "fp32", 32, 32, 32, 4), ("bf16", "fp32", 16, 64, 32, 1), ("fp32", "fp32", 32, 32, 32, 4),
        ("fp64", "fp64", 16, 16, 16, 4), ("i8", "i32", 32, 32, 64, 4), ("i8", "i32", 16, 16, 32, 1),
        ("fp8e4nv", "fp32", 32, 32, 64, 4), ("fp8e5", "fp32", 32, 32, 64, 4), ("fp8e4b8", "fp32", 32, 32, 64, 4),
        ("fp8e5b16", "fp32", 32, 32, 64, 4), ("fp8e4nv", "fp32", 16, 16, 128, 1), ("fp8e5", "fp32", 64, 64, 128, 4),
    ):  # fmt: skip
        sizes = {"M": m, "N": n, "K": k}
        yield _case(
            "product",
            f"{element}-{out}-{m}x{n}x{k}",
            _abc(element, out),
            sizes,
            _product(element, out, m, n, k),
            warps=warps,
        )
    for precision, error in (("ieee", 2e-5), ("tf32", 4e-2), ("bf16x3", 2e-3), ("bf16x6", 2e-4)):
        constants: dict[str, Any] = {"M": 32, "N": 32, "K": 32, "PRECISION": precision}
        yield _case(
            "product_by", precision, _abc("fp32", "fp32"), constants, _product("fp32", "fp32", 32, 32, 32, error)
        )
    for element in ("fp16", "bf16", "fp32"):
        make = _product(element, "fp32", 32, 32, 32, start=True)
        yield _case("accumulated", element, _abc(element, "fp32"), {"M": 32, "N": 32, "K": 32}, make)
    for element in ("fp16", "bf16", "fp32"):
        sizes = {"M": 32, "N": 16, "K": 64}
        yield _case("transposed", element, _abc(element, "fp32"), sizes, _transposed(element, 32, 16, 64))
    for element, out in (("fp16", "fp32"), ("i8", "i32")):
        sizes = {"B": 4, "M": 16, "N": 16, "K": 32}
        yield _case("batched", element, _abc(element, out), sizes, _batched(element, out, (4, 16, 16, 32)))
    for element, stages in (("fp16", 1), ("fp16", 2), ("bf16", 3), ("fp32", 2)):
        types = {**_abc(element, element), "m": "i32", "n": "i32", "k": "i32"}
        sizes = {"BM": 32, "BN": 32, "BK": 32}
        make = _looped(element, 45, 39, 75)
        yield _case("looped", f"{element}-{stages}", types, sizes, make, grid=(2, 2, 1), stages=stages)
    sizes = {"M": 32, "N": 32, "K": 64}
    yield _case("dequantized", "", {"a": "*fp16", "b": "*i8", "scale": "*fp32", "c": "*fp32"}, sizes, _dequantized)
    yield _case("unpacked", "", {"a": "*fp16", "b": "*u8", "c": "*fp32"}, sizes, _unpacked)
    for form, element, m, n, k in (
        ("e4m3", "fp8e4nv", 32, 32, 128), ("e5m2", "fp8e5", 32, 32, 128), ("e2m1", "u8", 32, 32, 128),
    ):  # fmt: skip
        types = {"a": f"*{element}", "a_scale": "*u8", "b": f"*{element}", "b_scale": "*u8", "c": "*fp32"}
        constants = {"M": m, "N": n, "K": k, "FORMAT": form, "PACKED": 2 if form == "e2m1" else 1}
        yield _case("scaled", form, types, constants, _scaled(form, m, n, k))
    for out in ("fp32", "fp16"):
        sizes = {"M": 32, "N": 32, "K": 96, "PART": 32}
        make = _product("fp16", out, 32, 32, 96, 6e-2 if out == "fp16" else 3e-5)
        yield _case("split", out, _abc("fp16", out), sizes, make, grid=(3, 1, 1))
    make = _product("fp16", "fp32", 32, 32, 32)
    yield _case("described", "", _abc("fp16", "fp32"), {"M": 32, "N": 32, "K": 32}, make)
    for element in ("fp16", "bf16"):
        types = {"a": f"*{element}", "b": f"*{element}", "d": f"*{element}", "c": "*fp32"}
        yield _case("chained", element, types, {"M": 32, "N": 32, "K": 32}, _chained(element))
