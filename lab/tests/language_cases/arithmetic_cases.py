"""Cases of elementwise arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.tests.language_cases.language_case import Close, LanguageCase, LanguageProblem, Make
from lab.tests.language_cases.number_formats import FORMATS, NUMPY, Array, decode, encode, storage

N = 128
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
SPECIAL = (np.nan, np.inf, -np.inf, np.nan)
# The relative error that one rounding may cause, with a margin.
STEP = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-22, "fp64": 2.0**-50}


def wrapped(values: Any, element: str) -> Array:
    """Return Python's integers, cut to the width of a type."""
    kind = np.dtype(NUMPY[element])
    width = 8 * kind.itemsize
    mask = (1 << width) - 1
    sign = 1 << (width - 1) if kind.kind == "i" else 0
    return np.array([((int(v) & mask) ^ sign) - sign for v in values], kind)


def any_integers(random: np.random.Generator, element: str, count: int) -> Array:
    """Return random integers of the whole range, with small integers among them."""
    kind = np.dtype(NUMPY[element])
    limits = np.iinfo(kind)
    wide = random.integers(limits.min, limits.max, count, kind, endpoint=True)
    small = random.integers(0, 50, count).astype(kind)
    return np.where(random.random(count) < 0.6, wide, small).astype(kind)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _integers(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, y = any_integers(random, element, N), any_integers(random, element, N)
        y[y == 0] = 3
        if element.startswith("i"):
            y[y == -1] = 5
        a, b = [int(v) for v in x], [int(v) for v in y]
        pairs = list(zip(a, b, strict=True))
        rows = [
            [p + q for p, q in pairs],
            [p - q for p, q in pairs],
            [p * q for p, q in pairs],
            [_quotient(p, q) for p, q in pairs],
            [p - _quotient(p, q) * q for p, q in pairs],
            [p & q for p, q in pairs],
            [p | q for p, q in pairs],
            [p ^ q for p, q in pairs],
            [~p for p in a],
            [p << (q & 7) for p, q in pairs],
            [p >> (q & 7) for p, q in pairs],
            [min(p, q) for p, q in pairs],
            [max(p, q) for p, q in pairs],
            [p if p < q else p + q for p, q in pairs],
            [(p <= q) + 2 * (p == q) for p, q in pairs],
        ]
        wanted = np.concatenate([wrapped(row, element) for row in rows])
        return LanguageProblem({"x": x, "y": y, "out": np.zeros_like(wanted)}, {"out": Close(wanted)})

    return make


def _high(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, y = any_integers(random, element, 2 * N), any_integers(random, element, 2 * N)
        width = 8 * x.dtype.itemsize
        wanted = [int(p) * int(q) >> width for p, q in zip(x, y, strict=True)]
        return LanguageProblem({"x": x, "y": y, "out": np.zeros_like(x)}, {"out": Close(wrapped(wanted, element))})

    return make


def _scalar_division(element: str, divisor: int) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = any_integers(random, element, N)
        x[0] = np.iinfo(x.dtype).max - int(random.integers(0, 1 << 40))
        by = int(random.choice([divisor, (1 << 62) - 5, (1 << 33) + 1, 255]))
        numbers = [int(v) for v in x] + [int(x[0])]
        quotients = [_quotient(v, by) for v in numbers]
        rests = [v - by * q for v, q in zip(numbers, quotients, strict=True)]
        empty = np.zeros(N + 1, x.dtype)
        return LanguageProblem(
            {"x": x, "quotient": empty, "rest": empty.copy(), "divisor": by},
            {"quotient": Close(wrapped(quotients, element)), "rest": Close(wrapped(rests, element))},
        )

    return make


def _floats(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, y = (encode(random.standard_normal(N) * 2, element) for _ in range(2))
        y[decode(y, element) == 0] = y[0]
        x[:5], y[3:7] = encode([*SPECIAL, 6e-8], element), encode(SPECIAL, element)  # 6e-8 is a denormal of fp16
        a, b = decode(x, element), decode(y, element)
        with np.errstate(all="ignore"):
            rows = [
                a + b, a - b, a * b, a / b, np.fmin(a, b), np.fmax(a, b), np.abs(a), -a, np.where(a < b, a, b),
                a.astype(np.longdouble) * b + a, np.fmin(np.fmax(a, -0.5), 0.75),
            ]  # fmt: skip
        step = STEP[element]
        wanted = np.concatenate(rows)
        out = np.zeros(len(wanted), storage(element))
        return LanguageProblem({"x": x, "y": y, "out": out}, {"out": Close(wanted, step, step / 16)})

    return make


def _functions(element: str, most: float, relative: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = encode(most ** random.uniform(-1, 1, N), element)
        x[:3] = 0, np.inf, np.nan
        a = x.astype(np.float64)
        with np.errstate(all="ignore"):
            rows = [
                np.exp(a), np.exp2(a), np.log(a), np.log2(a), np.sin(a), np.cos(a), np.sqrt(a), 1 / np.sqrt(a),
                np.array([math.erf(v) for v in a]), np.floor(a), np.ceil(a),
            ]  # fmt: skip
        out = np.zeros(len(rows) * N, x.dtype)
        return LanguageProblem({"x": x, "out": out}, {"out": Close(np.concatenate(rows), relative, relative / 2)})

    return make


def _rounded_well(random: np.random.Generator) -> LanguageProblem:
    x = (np.abs(random.standard_normal(N)) * 2.0 ** random.integers(-60, 60, N)).astype(np.float32)
    y = (random.standard_normal(N) * 2.0 ** random.integers(-60, 60, N)).astype(np.float32)
    x[:3], y[:3] = (1e-39, 3e38, 1.0), (3.0, 1.5, 1e-39)
    with np.errstate(all="ignore"):
        quotient = x / y
    wanted = np.concatenate([quotient, np.sqrt(x), quotient])
    return LanguageProblem({"x": x, "y": y, "out": np.zeros_like(wanted)}, {"out": Close(wanted)})


def _device_library(element: str, relative: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = encode(4.0 ** random.uniform(-1, 1, N), element)
        y = encode(random.standard_normal(N) * 3, element)
        y[:5], x[4:6] = (0, np.inf, -np.inf, np.nan, -100), (0, np.inf)
        a, b = x.astype(np.float64), y.astype(np.float64)
        with np.errstate(all="ignore"):
            rows = [
                np.tanh(b), a**b, np.log1p(a), np.expm1(b), np.arctan2(b, a), np.rint(b), np.trunc(b), np.fmod(b, a),
                np.copysign(a, b), np.hypot(a, b),
            ]  # fmt: skip
        out = np.zeros(len(rows) * N, x.dtype)
        return LanguageProblem({"x": x, "y": y, "out": out}, {"out": Close(np.concatenate(rows), relative, relative)})

    return make


def _not_numbers(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 2.0]
        x, y = (encode(random.choice(special, N), element) for _ in range(2))
        a, b = decode(x, element), decode(y, element)
        with np.errstate(invalid="ignore"):
            rows = [
                np.minimum(a, b), np.maximum(a, b), np.fmin(a, b), np.fmax(a, b),
                np.where(np.isnan(a), a, np.clip(a, -1, 1)),
            ]  # fmt: skip
            flags = np.concatenate([a < b, a <= b, a == b, a != b, (a > b) | ~(a >= b)])
        values = {
            "x": x, "y": y, "out": np.zeros(5 * N, storage(element)), "flags": np.full(5 * N, 7, np.uint8),
        }  # fmt: skip
        return LanguageProblem(values, {"out": Close(np.concatenate(rows)), "flags": Close(flags.astype(np.uint8))})

    return make


def _from_integers(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        kind = np.dtype(NUMPY[element])
        limits = np.iinfo(kind)
        low = 0 if limits.min == 0 else max(limits.min, -2048)
        x = random.integers(low, min(limits.max, 2048), N).astype(kind)
        if limits.max > 1 << 20:
            large = random.integers(limits.min, limits.max, N, kind, endpoint=True)
            far = np.array([abs(int(v)) > 70000 for v in large])
            x = np.where((random.random(N) < 0.7) & far, large, x).astype(kind)
        with np.errstate(over="ignore"):
            half, single, double = x.astype(np.float16), x.astype(np.float32), x.astype(np.float64)
        brain = encode(single, "bf16")
        values = {
            "x": x, "half": np.zeros_like(half), "brain": np.zeros_like(brain), "single": np.zeros_like(single),
            "double": np.zeros_like(double),
        }  # fmt: skip
        return LanguageProblem(
            values,
            {
                "half": Close(half),
                "brain": Close(decode(brain, "bf16")),
                "single": Close(single),
                "double": Close(double),
            },
        )

    return make


def _to_integers(element: str, sign: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = encode(random.uniform(-126 if sign == "i" else 0, 126, N), element)
        a = np.trunc(decode(x, element)).astype(np.int64)
        names = {"byte": "8", "short": "16", "word": "32", "long": "64"}
        results = {name: a.astype(NUMPY[sign + width]) for name, width in names.items()}
        values = {"x": x, **{name: np.zeros_like(array) for name, array in results.items()}}
        return LanguageProblem(values, {name: Close(array) for name, array in results.items()})

    return make


def _between(random: np.random.Generator) -> LanguageProblem:
    x = random.standard_normal(N) * 2.0 ** random.integers(-20, 14, N)
    single = x.astype(np.float32)
    half = single.astype(np.float16)
    brain = encode(single, "bf16")
    values = {
        "x": x, "half": np.zeros_like(half), "brain": np.zeros_like(brain), "single": np.zeros_like(single),
        "back": np.zeros_like(x),
    }  # fmt: skip
    return LanguageProblem(
        values,
        {"half": Close(half), "brain": Close(decode(brain, "bf16")), "single": Close(single), "back": Close(half)},
    )


def _widths(element: str, targets: dict[str, str]) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = any_integers(random, element, N)
        results = {name: wrapped(x, target) for name, target in targets.items()}
        values = {"x": x, **{name: np.zeros_like(array) for name, array in results.items()}}
        return LanguageProblem(values, {name: Close(array) for name, array in results.items()})

    return make


def _bits(element: str, integer: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = encode(random.standard_normal(N), element)
        b = x.view(NUMPY[integer])
        numbers = [int(v) for v in b]
        wanted = wrapped([v << 1 ^ v >> 3 for v in numbers], integer)
        back = decode((b ^ 1).view(storage(element)), element)
        values = {"x": x, "out": np.zeros_like(wanted), "back": np.zeros_like(x)}
        return LanguageProblem(values, {"out": Close(wanted), "back": Close(back)})

    return make


def _widen(element: str) -> Make:
    def make(_: np.random.Generator) -> LanguageProblem:
        x = np.arange(256, dtype=np.uint8)
        wanted = decode(x, element)
        # NaN and infinity are left out, because Triton's software conversion has its own results for them.
        x = np.where(np.isfinite(wanted), x, 1).astype(np.uint8)
        wanted = decode(x, element)
        values = {
            "x": x, "half": np.zeros(256, np.float16), "brain": np.zeros(256, np.uint16),
            "single": np.zeros(256, np.float32),
        }  # fmt: skip
        return LanguageProblem(values, {name: Close(wanted) for name in ("half", "brain", "single")})

    return make


def _narrow(source: str, target: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        table = FORMATS[target].values()
        finite = np.sort(table[np.isfinite(table)])
        middles = (finite[1:] + finite[:-1]) / 2
        chosen = random.permutation(np.concatenate([finite, middles, random.uniform(-2, 2, 256)]))[:256]
        # The values are rounded to bf16 and fp16 first, so that a conversion in two steps rounds once.
        chosen = decode(encode(chosen, "bf16"), "bf16")
        # A number that is too large becomes the largest number. The bits of NaN, and gfx942's conversion of infinity
        # to formats without infinity, are not documented.
        largest = finite[-1]
        limits = [np.nan, -0.0, min(1.25 * largest, 65504.0), max(-1.25 * largest, -65504.0)]
        limits += [] if FORMATS[target].negative_zero is None else [np.inf, -np.inf]
        chosen[: len(limits)] = limits
        x = encode(chosen.astype(np.float16), source)
        a = decode(x, source)
        wanted = decode(FORMATS[target].encode(np.clip(np.nan_to_num(a), -largest, largest)), target)
        wanted = np.where(np.isnan(a), a, wanted)
        return LanguageProblem({"x": x, "out": np.zeros(256, np.uint8)}, {"out": Close(wanted)})

    return make


def _scalars(_: np.random.Generator) -> LanguageProblem:
    i = np.arange(N)
    values = {
        "out": np.zeros(N, np.int64), "wide": np.zeros(N), "byte": -100, "short": -30000, "word": 1 << 30,
        "long": -(1 << 50), "single": 1.5, "double": 1e100, "flag": 1,
    }  # fmt: skip
    return LanguageProblem(
        values,
        {"out": Close(i + (-100 - 30000 + (1 << 30) - (1 << 50))), "wide": Close(1.5 * 1e100 + i)},
    )


def _booleans(random: np.random.Generator) -> LanguageProblem:
    x, y = random.integers(0, 8, N).astype(np.int32), random.integers(0, 8, N).astype(np.int32)
    p, q = x > 3, y > x
    both, one = p == q, p ^ q
    return LanguageProblem(
        {"x": x, "y": y, "out": np.full(2 * N, 9, np.uint8), "packed": np.zeros(2, np.int32)},
        {"out": Close(np.concatenate([both, one]).astype(np.uint8)), "packed": Close([both.sum(), one.max()])},
    )


def _assembly(random: np.random.Generator) -> LanguageProblem:
    x, y = any_integers(random, "i32", N), any_integers(random, "i32", N)
    wanted = wrapped([(int(p) & 0xFFFFFF) * (int(q) & 0xFFFFFF) for p, q in zip(x, y, strict=True)], "i32")
    return LanguageProblem({"x": x, "y": y, "out": np.zeros_like(x)}, {"out": Close(wanted)})


def _case(kernel: str, label: str, types: dict[str, str], make: Make, size: int = N, **how: Any) -> LanguageCase:
    return LanguageCase(f"{kernel}-{label}" if label else kernel, "arithmetic", kernel, types, {"N": size}, make, **how)


def _xyo(element: str, out: str = "") -> dict[str, str]:
    return {"x": f"*{element}", "y": f"*{element}", "out": f"*{out or element}"}


def cases() -> Iterator[LanguageCase]:
    """Yield the cases of each kernel in `emulated/language/arithmetic.py`."""
    yield from _conversions()
    for element in INTEGERS:
        yield _case("integers", element, _xyo(element), _integers(element))
    for element in ("u32", "u64"):
        yield _case("high_product", element, _xyo(element), _high(element), grid=(2, 1, 1))
    for element, divisor in (("i64", -1234567890123), ("u64", 97), ("i64", 7)):
        types = {"x": f"*{element}", "quotient": f"*{element}", "rest": f"*{element}", "divisor": element}
        yield _case("divide_by_scalar", f"{element}-{divisor}", types, _scalar_division(element, divisor))
    for element in STEP:
        yield _case("floats", element, _xyo(element), _floats(element))
    for element, most, relative in (("fp32", 4, 2e-6), ("fp32", 60, 2e-5), ("fp64", 4, 1e-14)):
        types = {"x": f"*{element}", "out": f"*{element}"}
        yield _case("functions", f"{element}-{most}", types, _functions(element, most, relative))
    yield _case("rounded_well", "", _xyo("fp32"), _rounded_well)
    for element, relative in (("fp32", 4e-6), ("fp64", 1e-13)):
        yield _case("device_library", element, _xyo(element), _device_library(element, relative))
    for element in ("fp32", "fp16", "bf16", "fp64"):
        yield _case("not_numbers", element, {**_xyo(element), "flags": "*i1"}, _not_numbers(element))
    yield _case(
        "scalars",
        "",
        {
            "out": "*i64", "wide": "*fp64", "byte": "i8", "short": "i16", "word": "i32", "long": "i64",
            "single": "fp32", "double": "fp64", "flag": "i1",
        },
        _scalars,
    )  # fmt: skip
    yield _case("booleans", "", {"x": "*i32", "y": "*i32", "out": "*i1", "packed": "*i32"}, _booleans)
    yield _case("assembly", "", _xyo("i32"), _assembly)


def _conversions() -> Iterator[LanguageCase]:
    for element in ("i8", "u16", "i32", "u32", "i64", "u64"):
        types = {"x": f"*{element}", "half": "*fp16", "brain": "*bf16", "single": "*fp32", "double": "*fp64"}
        yield _case("integers_to_floats", element, types, _from_integers(element))
    for element, sign in (("fp16", "i"), ("bf16", "u"), ("fp32", "i"), ("fp32", "u"), ("fp64", "i")):
        types = {
            "x": f"*{element}",
            **{n: f"*{sign}{w}" for n, w in (("byte", 8), ("short", 16), ("word", 32), ("long", 64))},
        }
        yield _case("floats_to_integers", f"{element}-{sign}", types, _to_integers(element, sign))
    yield _case(
        "between_floats",
        "",
        {"x": "*fp64", "half": "*fp16", "brain": "*bf16", "single": "*fp32", "back": "*fp64"},
        _between,
    )
    for element, targets in (
        ("i8", {"byte": "u8", "short": "i16", "word": "i32", "long": "i64"}),
        ("u16", {"byte": "i8", "short": "i16", "word": "u32", "long": "i64"}),
        ("i64", {"byte": "i8", "short": "u16", "word": "i32", "long": "u64"}),
    ):
        types = {"x": f"*{element}", **{name: f"*{target}" for name, target in targets.items()}}
        yield _case("widths", element, types, _widths(element, targets))
    for element, integer in (("fp16", "i16"), ("bf16", "u16"), ("fp32", "u32"), ("fp64", "i64")):
        types = {"x": f"*{element}", "out": f"*{integer}", "back": f"*{element}"}
        yield _case("bits", element, types, _bits(element, integer))
    for element in ("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16"):
        types = {"x": f"*{element}", "half": "*fp16", "brain": "*bf16", "single": "*fp32"}
        yield _case("widen", element, types, _widen(element), 256)
        for source in ("fp32", "fp16", "bf16"):
            types = {"x": f"*{source}", "out": f"*{element}"}
            yield _case("narrow", f"{source}-{element}", types, _narrow(source, element), 256)
