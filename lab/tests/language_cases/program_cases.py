"""Cases of control flow, functions that are not inlined, random numbers, and whole algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.tests.language_cases.arithmetic_cases import wrapped
from lab.tests.language_cases.language_case import Close, LanguageCase, LanguageProblem, Make
from lab.tests.language_cases.number_formats import NUMPY, Array, decode, encode, storage

N = 128
MASK = (1 << 32) - 1


def _called(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, y = (random.integers(-90, 90, 9).astype(NUMPY[element]) for _ in range(2))
        a, b = x.astype(np.int64), y.astype(np.int64)
        high = np.maximum(a, b)
        wanted = np.stack([(a * 3 + b) * a + 1, np.minimum(a, b), (high * 3 + 2) * high + 1], 1)
        values = {"x": x, "y": y, "out": np.zeros((9, 3), x.dtype), "n": 9}
        return LanguageProblem(values, {"out": Close(wanted)})

    return make


def _called_in_a_loop(random: np.random.Generator) -> LanguageProblem:
    x = random.standard_normal((5, N)).astype(np.float32)
    total = 0.0
    for row in x.astype(np.float64):
        total = total * 0.5 + row.sum()
    values = {"x": x, "out": np.zeros(1, np.float32), "rows": 5}
    return LanguageProblem(values, {"out": Close([total], absolute=2e-5)})


def _steps(value: int) -> int:
    count = 0
    while value > 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        count += 1
    return count


def _collatz(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = random.integers(1, 20, N).astype(NUMPY[element])
        wanted = [_steps(int(v)) for v in x] + [_steps(int(x[0]))]
        return LanguageProblem({"x": x, "out": np.zeros(N + 1, x.dtype)}, {"out": Close(wanted)})

    return make


def _branches(random: np.random.Generator) -> LanguageProblem:
    n = int(random.choice([14, 2]))  # with 2 rows, the loop of the last program has no iteration
    x = random.integers(-1000, 1000, (n, N)).astype(np.int32)
    rows, i = [], np.arange(N)
    for p in range(3):
        total = np.zeros(N, np.int64)
        for j in range(p, n, 3):
            if j % 2 == 0:
                total = total + x[j]
            elif j % 5 == 0:
                total = total ^ x[j]
            else:
                for _ in range(j % 3):
                    total = total * 3 - x[j]
        rows.append(total + sum((i >> k) & 1 for k in range(4)))
    values = {"x": x, "out": np.zeros((3, N), np.int32), "n": n}
    return LanguageProblem(values, {"out": Close(wrapped(np.concatenate(rows), "i32"))})


def philox(seed: int, offset: int) -> list[int]:
    """Return the result of ten rounds of Philox 4x32, by the definition in its paper."""
    c, k = [offset, 0, 0, 0], [seed & MASK, seed >> 32]
    for _ in range(10):
        high, low = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [low >> 32 ^ c[1] ^ k[0], low & MASK, high >> 32 ^ c[3] ^ k[1], high & MASK]
        k = [k[0] + 0x9E3779B9 & MASK, k[1] + 0xBB67AE85 & MASK]
    return c


def _random_numbers(_: np.random.Generator) -> LanguageProblem:
    seed, count = 0x123456789ABCDEF, 2 * N
    drawn = np.array([philox(seed, offset) for offset in range(count)], np.uint32)
    signed = drawn.view(np.int32).astype(np.float64)
    uniform = np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10
    normal = np.sqrt(-2 * np.log(np.maximum(uniform[:, 0], 1e-7))) * np.cos(2 * np.pi * uniform[:, 1])
    values = {
        "out": np.zeros((count, 4), np.uint32), "uniform": np.zeros(count, np.float32),
        "normal": np.zeros(count, np.float32), "seed": seed,
    }  # fmt: skip
    results = {"out": Close(drawn), "uniform": Close(uniform[:, 0], 1e-6), "normal": Close(normal, 1e-5, 3e-6)}
    return LanguageProblem(values, results)


def _softmax(element: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        n = 100 - int(random.integers(0, 6))
        numbers = random.standard_normal((3, n)) * 4
        # The exponential of this number is infinite if a kernel does not subtract the maximum of the whole row.
        numbers[1:, random.integers(0, n)] = 300
        x = encode(numbers, element)
        weights = np.exp(decode(x, element) - decode(x, element).max(1, keepdims=True))
        values = {"x": x, "out": np.zeros((3, n), np.float32), "n": n}
        return LanguageProblem(values, {"out": Close(weights / weights.sum(1, keepdims=True), error, error)})

    return make


def _layer_norm(element: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        n = 100 - int(random.integers(0, 6))
        # The variance of the second row is less than epsilon.
        x = encode(random.standard_normal((3, n)) * [[2], [1e-3], [2]] + [[1], [0], [1]], element)
        w, b = encode(random.standard_normal(n), element), encode(random.standard_normal(n), element)
        a = decode(x, element)
        centred = a - a.mean(1, keepdims=True)
        wanted = centred / np.sqrt(a.var(1, keepdims=True) + 1e-5) * decode(w, element) + decode(b, element)
        values = {
            "x": x, "weight": w, "bias": b, "out": np.zeros((3, n), storage(element)), "n": n, "epsilon": 1e-5,
        }  # fmt: skip
        return LanguageProblem(values, {"out": Close(wanted, error, error)})

    return make


def _quantized(random: np.random.Generator) -> LanguageProblem:
    x = random.standard_normal((8, 64)).astype(np.float32)
    s = np.abs(x.astype(np.float64)).max(1) / 127
    q = x / s[:, None]
    # Values near a tie become 0, because one unit of float32 would decide how they are rounded.
    near = np.abs(np.abs(q - np.trunc(q)) - 0.5) < 1e-4
    x[near] = 0
    wanted = np.trunc(x / s[:, None] + np.where(x >= 0, 0.5, -0.5))
    values = {"x": x, "out": np.zeros((8, 64), np.int8), "scale": np.zeros(8, np.float32)}
    return LanguageProblem(values, {"out": Close(wanted.astype(np.int8)), "scale": Close(s, 1e-6)})


def _rotated(element: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        rows, half = 16, 32
        x = encode(random.standard_normal((rows, 2 * half)), element)
        angle = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
        a = decode(x, element).reshape(rows, half, 2)
        t = np.arange(rows)[:, None] * angle.astype(np.float64)
        even, odd = a[..., 0], a[..., 1]
        wanted = np.stack([even * np.cos(t) - odd * np.sin(t), even * np.sin(t) + odd * np.cos(t)], -1)
        values = {"x": x, "angle": angle, "out": np.zeros_like(x)}
        return LanguageProblem(values, {"out": Close(wanted, error, error)})

    return make


def _cross_entropy(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        n, target = 90, np.array([17, -100, 89], np.int64)
        logits = encode(random.standard_normal((3, n)) * 3, element)
        a = decode(logits, element)
        total = np.exp(a - a.max(1, keepdims=True)).sum(1)
        loss, gradient = np.zeros(3), np.zeros((3, n))
        for row, wanted in enumerate(target):
            if wanted >= 0:
                loss[row] = np.log(total[row]) + a[row].max() - a[row, wanted]
                gradient[row] = np.exp(a[row] - a[row].max()) / total[row] - (np.arange(n) == wanted)
        values = {
            "logits": logits, "target": target, "loss": np.full(3, 9, np.float32),
            "gradient": np.full((3, n), 9, np.float32), "n": n,
        }  # fmt: skip
        return LanguageProblem(values, {"loss": Close(loss, 1e-5, 1e-5), "gradient": Close(gradient, 1e-5, 1e-6)})

    return make


def _selective_scan(random: np.random.Generator) -> LanguageProblem:
    steps, channels, states = 5, 32, 16
    x, delta = random.standard_normal((steps, channels)), random.uniform(0.1, 1, (steps, channels))
    a, b, c = -random.uniform(0.1, 2, (channels, states)), *random.standard_normal((2, steps, states))
    given = {name: v.astype(np.float32) for name, v in (("x", x), ("delta", delta), ("a", a), ("b", b), ("c", c))}
    x, delta, a, b, c = (v.astype(np.float64) for v in given.values())
    state: Array = np.zeros((channels, states))
    wanted = []
    for t in range(steps):
        state = np.exp(delta[t][:, None] * a) * state + (delta[t] * x[t])[:, None] * b[t]
        wanted.append((state * c[t]).sum(1))
    values = {**given, "out": np.zeros((steps, channels), np.float32), "steps": steps}
    return LanguageProblem(values, {"out": Close(np.concatenate(wanted), 1e-5, 1e-5)})


def _convolution(element: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        n, taps = 200 - int(random.integers(0, 9)), 4
        x, weight = encode(random.standard_normal(n), element), random.standard_normal(taps).astype(np.float32)
        padded = np.concatenate([np.zeros(taps - 1), decode(x, element)])
        total = sum(padded[k : k + n] * float(weight[k]) for k in range(taps))
        values = {"x": x, "weight": weight, "out": np.zeros(n, storage(element)), "n": n}
        return LanguageProblem(values, {"out": Close(total / (1 + np.exp(-total)), error, error)})

    return make


def _case(kernel: str, label: str, types: dict[str, str], make: Make, **how: Any) -> LanguageCase:
    constants = how.pop("constants", {"N": N})
    return LanguageCase(f"{kernel}-{label}" if label else kernel, "programs", kernel, types, constants, make, **how)


def cases() -> Iterator[LanguageCase]:
    """Yield the cases of each kernel in `emulated/language/programs.py`."""
    for element in ("i32", "fp32", "i64", "fp64"):
        types = {"x": f"*{element}", "y": f"*{element}", "out": f"*{element}", "n": "i32"}
        yield _case("called", element, types, _called(element), constants={})
    yield _case("called_in_a_loop", "", {"x": "*fp32", "out": "*fp32", "rows": "i32"}, _called_in_a_loop)
    for element in ("i32", "i64"):
        yield _case("collatz", element, {"x": f"*{element}", "out": f"*{element}"}, _collatz(element))
    yield _case("branches", "", {"x": "*i32", "out": "*i32", "n": "i32"}, _branches, grid=(3, 1, 1))
    types = {"out": "*u32", "uniform": "*fp32", "normal": "*fp32", "seed": "i64"}
    yield _case("random_numbers", "", types, _random_numbers, grid=(2, 1, 1))
    for element, error in (("fp32", 3e-6), ("fp16", 3e-6), ("bf16", 3e-6)):
        types = {"x": f"*{element}", "out": "*fp32", "n": "i32"}
        yield _case("softmax", element, types, _softmax(element, error), grid=(3, 1, 1))
    for element, error in (("fp16", 2e-3), ("bf16", 1e-2)):
        types = {
            "x": f"*{element}", "weight": f"*{element}", "bias": f"*{element}", "out": f"*{element}", "n": "i32",
            "epsilon": "fp32",
        }  # fmt: skip
        yield _case("layer_norm", element, types, _layer_norm(element, error), grid=(3, 1, 1))
    types = {"x": "*fp32", "out": "*i8", "scale": "*fp32"}
    yield _case("quantized", "", types, _quantized, constants={"M": 8, "N": 64})
    for element, error in (("fp16", 2e-3), ("fp32", 1e-5)):
        types = {"x": f"*{element}", "angle": "*fp32", "out": f"*{element}"}
        yield _case("rotated", element, types, _rotated(element, error), constants={"ROWS": 16, "HALF": 32})
    types = {"logits": "*bf16", "target": "*i64", "loss": "*fp32", "gradient": "*fp32", "n": "i32"}
    yield _case("cross_entropy", "", types, _cross_entropy("bf16"), grid=(3, 1, 1))
    types = {"x": "*fp32", "delta": "*fp32", "a": "*fp32", "b": "*fp32", "c": "*fp32", "out": "*fp32", "steps": "i32"}
    yield _case("selective_scan", "", types, _selective_scan, constants={"CHANNELS": 32, "STATES": 16})
    types = {"x": "*bf16", "weight": "*fp32", "out": "*bf16", "n": "i32"}
    constants = {"TAPS": 4, "N": 128}
    yield _case("convolution", "", types, _convolution("bf16", 1e-2), constants=constants, grid=(2, 1, 1))
