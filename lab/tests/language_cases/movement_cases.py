"""Cases of reductions, scans, sorts and other movements between lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.tests.language_cases.arithmetic_cases import any_integers, wrapped
from lab.tests.language_cases.language_case import Close, LanguageCase, LanguageProblem, Make
from lab.tests.language_cases.number_formats import NUMPY, Array, decode, encode, storage

M, N = 8, 64


def _values(random: np.random.Generator, element: str, count: int) -> Array:
    if element[0] in "iu":
        return any_integers(random, element, count)
    return encode(random.standard_normal(count), element)


def _reductions(element: str, out: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = _values(random, element, M * N)
        a = decode(x, element).reshape(M, N)
        if element[0] in "iu":
            a = a.astype(object)
        rows = [a.sum(1), a.max(1), a.min(1), a.sum(0), a.max(0), [a.sum()], [a.min()]]
        wanted = np.concatenate([np.asarray(row).reshape(-1) for row in rows])
        if element[0] in "iu":
            wanted = wrapped(wanted, out)
        return LanguageProblem(
            {"x": x, "out": np.zeros(len(wanted), storage(out))}, {"out": Close(wanted, error, error)}
        )

    return make


def _places(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = random.integers(-6, 6, (M, N)).astype(NUMPY[element])
        empty = np.zeros(M, np.int32)
        values = {"x": x, "largest": empty, "smallest": np.zeros(N, np.int32), "value": np.zeros(M, np.float32)}
        results = {
            "largest": Close(x.argmax(1)), "smallest": Close(x.argmin(0)), "value": Close(x.max(1) + x.argmax(1)),
        }  # fmt: skip
        return LanguageProblem(values, results)

    return make


def _parity(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = any_integers(random, element, 4 * N)
        wanted = [np.bitwise_xor.reduce(x), np.bitwise_or.reduce(x)]
        return LanguageProblem({"x": x, "out": np.zeros(2, x.dtype)}, {"out": Close(wanted)})

    return make


def _moments(random: np.random.Generator) -> LanguageProblem:
    x = (random.standard_normal((M, N)) * 3 + 10).astype(np.float32)
    a = x.astype(np.float64)
    values = {"x": x, "mean": np.zeros(M, np.float32), "variance": np.zeros(M, np.float32)}
    return LanguageProblem(values, {"mean": Close(a.mean(1), 1e-6), "variance": Close(a.var(1), 1e-5)})


def _sums(element: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = _values(random, element, M * N)
        a = decode(x, element).reshape(M, N)
        if element[0] in "iu":
            a = a.astype(object)
        rows = [a.cumsum(1), a.cumsum(0), a[:, ::-1].cumsum(1)[:, ::-1]]
        wanted = np.concatenate([row.reshape(-1) for row in rows])
        if element[0] in "iu":
            wanted = wrapped(wanted, element)
        values = {"x": x, "out": np.zeros(3 * M * N, storage(element))}
        return LanguageProblem(values, {"out": Close(wanted, error, error)})

    return make


def _products(random: np.random.Generator) -> LanguageProblem:
    x = np.exp(random.standard_normal(4 * N) * 0.2).astype(np.float32)
    wanted = x.astype(np.float64).cumprod()
    return LanguageProblem({"x": x, "out": np.zeros_like(x)}, {"out": Close(wanted, 3e-5)})


def _recurrence(random: np.random.Generator) -> LanguageProblem:
    x, y = random.uniform(0, 1, 4 * N).astype(np.float32), random.standard_normal(4 * N).astype(np.float32)
    wanted, state = [], 0.0
    for a, b in zip(x.astype(np.float64), y.astype(np.float64), strict=True):
        state = a * state + b
        wanted.append(state)
    top = np.maximum.accumulate(y[::-1])[::-1]
    values = {"x": x, "y": y, "out": np.zeros_like(x), "top": np.zeros_like(x)}
    return LanguageProblem(values, {"out": Close(wanted, 1e-5, 1e-5), "top": Close(top)})


def _sorted(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = _values(random, element, M * N).reshape(M, N)
        a = np.sort(decode(x, element), axis=1)
        values = {"x": x, "up": np.zeros_like(x), "down": np.zeros_like(x)}
        return LanguageProblem(values, {"up": Close(a), "down": Close(a[:, ::-1])})

    return make


def _largest(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = _values(random, element, M * N).reshape(M, N)
        wanted = np.sort(decode(x, element), axis=1)[:, ::-1][:, :8]
        return LanguageProblem({"x": x, "out": np.zeros((M, 8), x.dtype)}, {"out": Close(wanted)})

    return make


def _counts(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = random.integers(0, 32, 4 * N).astype(NUMPY[element])
        values = {"x": x, "out": np.zeros(32, np.int32), "masked": np.zeros(32, np.int32), "n": 200}
        results = {"out": np.bincount(x, minlength=32), "masked": np.bincount(x[:200], minlength=32)}
        return LanguageProblem(values, {name: Close(array) for name, array in results.items()})

    return make


def _gathered(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = _values(random, element, M * N).reshape(M, N)
        index = random.integers(0, N, (M, N)).astype(np.int32)
        a = decode(x, element)
        wanted = np.stack([np.take_along_axis(a, index % M, 0), np.take_along_axis(a, index, 1)])
        values = {"x": x, "index": index, "out": np.zeros((2, M, N), x.dtype)}
        return LanguageProblem(values, {"out": Close(wanted)})

    return make


def _indirect(random: np.random.Generator) -> LanguageProblem:
    n = 200
    x, index = any_integers(random, "i32", n), random.permutation(n).astype(np.int64)
    out = np.full(n, 5, np.int32)
    wanted = out.copy()
    wanted[index] = wrapped(x[index].astype(np.int64) + np.arange(n), "i32")
    return LanguageProblem({"x": x, "index": index, "out": out, "n": n}, {"out": Close(wanted)})


def _shapes(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        a, b = (random.integers(-50, 50, N).astype(NUMPY[element]) for _ in range(2))
        mixed = np.stack([a, b], 1).reshape(-1)
        rows = [
            mixed, a - b, a[::-1], mixed.reshape(4, N // 4, 2).transpose(2, 0, 1), np.full(2 * N, 3),
            np.repeat(a.reshape(N // 4, 1, 4), 2, axis=1), b.reshape(N // 8, 8).T,
        ]  # fmt: skip
        wanted = np.concatenate([row.reshape(-1) for row in rows])
        return LanguageProblem({"x": a, "y": b, "out": np.zeros(len(wanted), a.dtype)}, {"out": Close(wanted)})

    return make


def _blocks(random: np.random.Generator) -> LanguageProblem:
    x = random.standard_normal((21, 45)).astype(np.float32)
    values = {"x": x, "out": np.zeros((45, 21), np.float32), "m": 21, "n": 45}
    return LanguageProblem(values, {"out": Close(x.T + np.float32(1))})


def _described(random: np.random.Generator) -> LanguageProblem:
    x, total = random.standard_normal((21, 48)).astype(np.float32), random.standard_normal((21, 48)).astype(np.float32)
    values = {"x": x, "out": np.zeros_like(x), "total": total, "m": 21, "n": 48}
    return LanguageProblem(values, {"out": Close(x * 2), "total": Close(total + x)})


def _case(kernel: str, label: str, types: dict[str, str], make: Make, **how: Any) -> LanguageCase:
    constants = how.pop("constants", {"M": M, "N": N})
    return LanguageCase(f"{kernel}-{label}" if label else kernel, "rearranged", kernel, types, constants, make, **how)


def cases() -> Iterator[LanguageCase]:
    """Yield the cases of each kernel in `emulated/language/rearranged.py`."""
    for element, out, error in (
        ("i32", "i32", 0), ("i64", "i64", 0), ("i8", "i32", 0), ("fp16", "fp16", 5e-3), ("bf16", "fp32", 0.1),
        ("fp32", "fp32", 1e-5), ("fp64", "fp64", 1e-13),
    ):  # fmt: skip
        yield _case("reductions", element, {"x": f"*{element}", "out": f"*{out}"}, _reductions(element, out, error))
    for element in ("fp32", "i32", "fp16"):
        types = {"x": f"*{element}", "largest": "*i32", "smallest": "*i32", "value": "*fp32"}
        yield _case("places", element, types, _places(element))
    for element in ("i32", "i64"):
        types = {"x": f"*{element}", "out": f"*{element}"}
        yield _case("parity", element, types, _parity(element), constants={"N": 4 * N})
    yield _case("moments", "", {"x": "*fp32", "mean": "*fp32", "variance": "*fp32"}, _moments)
    for element, error in (("i32", 0), ("i64", 0), ("fp32", 1e-5), ("fp64", 1e-13)):
        yield _case("sums", element, {"x": f"*{element}", "out": f"*{element}"}, _sums(element, error))
    yield _case("products", "", {"x": "*fp32", "out": "*fp32"}, _products, constants={"N": 4 * N})
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "top": "*fp32"}
    yield _case("recurrence", "", types, _recurrence, constants={"N": 4 * N})
    for element in ("i32", "fp32", "i16", "u8"):
        types = {"x": f"*{element}", "up": f"*{element}", "down": f"*{element}"}
        yield _case("sorted_rows", element, types, _sorted(element))
    for element in ("fp32", "i32"):
        types = {"x": f"*{element}", "out": f"*{element}"}
        yield _case("largest", element, types, _largest(element), constants={"M": M, "N": N, "K": 8})
    types = {"x": "*i32", "out": "*i32", "masked": "*i32", "n": "i32"}
    yield _case("counts", "i32", types, _counts("i32"), constants={"N": 4 * N, "BINS": 32})
    for element in ("fp32", "i64", "i8"):
        types = {"x": f"*{element}", "index": "*i32", "out": f"*{element}"}
        yield _case("gathered", element, types, _gathered(element))
    types = {"x": "*i32", "index": "*i64", "out": "*i32", "n": "i32"}
    yield _case("indirect", "", types, _indirect, constants={"N": 128}, grid=(2, 1, 1))
    for element in ("i32", "fp16", "i8"):
        types = {"x": f"*{element}", "y": f"*{element}", "out": f"*{element}"}
        yield _case("shapes", element, types, _shapes(element), constants={"N": N})
    types = {"x": "*fp32", "out": "*fp32", "m": "i32", "n": "i32"}
    yield _case("blocks", "", types, _blocks, constants={"M": 16, "N": 16}, grid=(2, 1, 1))
    types = {"x": "*fp32", "out": "*fp32", "total": "*fp32", "m": "i32", "n": "i32"}
    yield _case("described_blocks", "", types, _described, constants={"M": 16, "N": 32}, grid=(2, 2, 1))
