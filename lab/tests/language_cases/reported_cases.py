"""Cases of public reports of wrong AMD code: the versions of Triton with wrong and right code, and the sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.tests.language_cases.language_case import Close, LanguageCase, LanguageProblem, Make
from lab.tests.language_cases.number_formats import FORMATS, decode, encode, storage


@dataclass(frozen=True)
class Report:
    """A public report, and a kernel that shows its fault.

    Args:
        wrong, right: the versions of Triton whose code is wrong or right.
        told: a part of the check's message about wrong code.
        code: an instruction that wrong code has and right code has not; with `!` in front, the reverse.
        only: the program that runs; by default, all programs run.
    """

    name: str
    gpu: str
    case: LanguageCase
    wrong: tuple[str, ...]
    right: tuple[str, ...]
    told: str
    code: str = ""
    only: tuple[int, int, int] | None = None


def _occupied(random: np.random.Generator) -> LanguageProblem:
    x = random.choice([1, 3, 4, 17, 30], 256).astype(np.int32)
    counts = np.bincount(x, minlength=32)
    return LanguageProblem({"x": x, "out": np.full(32, -1, np.int32)}, {"out": Close(np.where(counts, counts, -1))})


def _product(random: np.random.Generator) -> LanguageProblem:
    x, y = (encode(random.standard_normal(256), "bf16") for _ in range(2))
    rounded = decode(encode(decode(x, "bf16") * decode(y, "bf16"), "bf16"), "bf16")
    return LanguageProblem({"x": x, "y": y, "out": np.zeros(256, np.uint16)}, {"out": Close(rounded)})


def _all_codes(element: str, out: str) -> Make:
    """Return a function whose problem widens every code of an 8-bit float."""

    def make(_: np.random.Generator) -> LanguageProblem:
        values = {"x": np.arange(256, dtype=np.uint8), "out": np.zeros(256, storage(out))}
        return LanguageProblem(values, {"out": Close(FORMATS[element].values())})

    return make


def _nearest(element: str, out: str, beyond: tuple[float, ...] = ()) -> Make:
    """Return a function whose problem rounds to 8-bit floats: numbers, ties, neighbours of ties, and `beyond`."""

    def make(_: np.random.Generator) -> LanguageProblem:
        numbers = FORMATS[out].values()[:128]
        numbers = numbers[np.isfinite(numbers)]
        halfway = (numbers[1:] + numbers[:-1]) / 2
        some = np.concatenate([numbers, halfway, halfway * (1 + 2**-9), halfway * (1 - 2**-9)])
        x = encode(np.resize(np.concatenate([some, -some, beyond]), 1024), element)
        wanted = np.clip(decode(x, element), -numbers[-1], numbers[-1])
        values = {"x": x, "out": np.zeros(1024, np.uint8)}
        return LanguageProblem(values, {"out": Close(FORMATS[out].values()[FORMATS[out].encode(wanted)])})

    return make


def _added(steps: int, k: int) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        a, b = (random.integers(100, 127, shape).astype(np.int8) for shape in ((16, k * steps), (k * steps, 16)))
        values = {"a": a, "b": b, "out": np.zeros((16, 16), np.int32), "steps": steps}
        return LanguageProblem(values, {"out": Close(a.astype(np.int64) @ b.astype(np.int64))})

    return make


def _numbered(_: np.random.Generator) -> LanguageProblem:
    before = np.arange(64, dtype=np.int32)
    values = {"counters": before, "out": np.full((64, 16), -1, np.int32)}
    return LanguageProblem(values, {"counters": Close(before + 1), "out": Close(np.repeat(before, 16))})


def _one(number: int) -> Make:
    return lambda _: LanguageProblem({"out": np.zeros(1, np.int32)}, {"out": Close([number])})


def _case(kernel: str, types: str, constants: Mapping[str, Any], make: Make, **more: Any) -> LanguageCase:
    """Return a case whose types are given as in a signature: `x=*i32, n=i32`."""
    pairs = dict(part.split("=") for part in types.split(", "))
    name = "-".join([kernel, *(kind.strip("*") for kind in pairs.values())])
    return LanguageCase(name, "reported", kernel, pairs, constants, make, **more)


def _converted(element: str, out: str, make: Make) -> LanguageCase:
    count = 256 if element in FORMATS else 1024
    return _case("converted", f"x=*{element}, out=*{out}", {"N": count}, make)


_DOT = "a=*i8, b=*i8, out=*i32, steps=i32"
REPORTS = (
    Report(
        "triton#11246", "gfx942",
        _case("occupied", "x=*i32, out=*i32", {"N": 256, "BINS": 32}, _occupied),
        ("3.8.0",), ("3.7.1", "3.9.0"), "5 of 32 are wrong", "!v_cmp_lt_i32",
    ),
    Report(
        "triton#11313", "gfx942",
        _case("counted", "out=*i32", {"N": 8, "LEAST": 20}, _one(28), warps=1),
        ("3.8.0",), ("3.7.1", "3.9.0"), "is np.int32(0), not np.int64(28)", "!_store_",
    ),
    Report(
        "triton#11217", "gfx1201",
        _case("product", "x=*bf16, y=*bf16, out=*bf16", {"N": 256}, _product),
        ("3.7.1", "3.8.0"), ("3.9.0",), "of 256 are wrong", "v_dot2_bf16_bf16",
    ),
    Report(
        "triton#10745", "gfx1100",
        _converted("fp8e4b8", "fp16", _all_codes("fp8e4b8", "fp16")),
        ("3.7.1", "3.8.0"), ("3.9.0",), "out[128] is np.float64(-0.0), not np.float64(nan); 1 of 256",
    ),
    Report(
        "triton#11784", "gfx942",
        _converted("fp8e5", "bf16", _all_codes("fp8e5", "bf16")),
        ("3.7.1", "3.9.0"), (), "out[124] is np.float64(65536.0), not np.float64(inf); 8 of 256",
    ),
    Report(
        "ROCm/triton#958", "gfx950",
        _case("added_products", _DOT, {"M": 16, "K": 2}, _added(1040, 2)),
        ("3.7.1",), ("3.8.0", "3.9.0"), "not np.int64(26", "v_cvt_i32_f32",
    ),
    Report(
        "triton#9875", "gfx1201",
        _case("added_products", _DOT, {"M": 16, "K": 4}, _added(4, 4)),
        ("3.7.1",), ("3.8.0", "3.9.0"), "256 of 256 are wrong",
    ),
    Report(
        "triton#9605", "gfx942",
        _case("numbered", "counters=*i32, out=*i32", {"N": 64, "M": 16}, _numbered),
        ("3.7.1",), ("3.8.0", "3.9.0"), "is a data race",
    ),
    Report(
        "triton#7361", "gfx942",
        _converted("bf16", "fp8e5", _nearest("bf16", "fp8e5")),
        ("3.4.0",), ("3.5.1", "3.7.1"), "out[1] is np.float64(0.0), not np.float64(1.52587890625e-05)",
    ),
    Report(
        "triton#7337", "gfx950",
        _converted("fp32", "fp8e4nv", _nearest("fp32", "fp8e4nv", (500.0, -1000.0))),
        ("3.4.0",), ("3.5.1", "3.7.1"), "is np.float64(nan), not np.float64(448.0)", "!s_setreg",
    ),
    Report(
        "triton#7793", "gfx942",
        _case("far", "out=*i32", {}, _one(2), warps=1, grid=(70001, 1, 1)),
        ("3.4.0",), ("3.5.1", "3.7.1"), "is np.int32(1), not np.int64(2)", "!s_cmp", only=(70000, 0, 0),
    ),
)  # fmt: skip
