"""Cases of atomics, and of programs that communicate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add, and_, or_, xor
from typing import Any

import numpy as np

from lab.tests.language_cases.arithmetic_cases import any_integers, wrapped
from lab.tests.language_cases.language_case import Close, LanguageCase, LanguageProblem, Make
from lab.tests.language_cases.number_formats import NUMPY, decode, encode, storage

N, CELLS = 128, 4


def _integers(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, cells = any_integers(random, element, N), any_integers(random, element, 7 * N)
        cells[6 * N :: 2] = x[::2] & 1  # half of the comparisons succeed
        a, old = [int(v) for v in x], [[int(v) for v in row] for row in cells.reshape(7, N)]
        results = [
            [p + q for p, q in zip(old[0], a, strict=True)],
            [max(p, q) for p, q in zip(old[1], a, strict=True)],
            [min(p, q) for p, q in zip(old[2], a, strict=True)],
            [p & q for p, q in zip(old[3], a, strict=True)],
            [p | q for p, q in zip(old[4], a, strict=True)],
            [p ^ q for p, q in zip(old[5], a, strict=True)],
            [q if p == q & 1 else p for p, q in zip(old[6], a, strict=True)],
        ]
        wanted = np.concatenate([wrapped(row, element) for row in results])
        values = {"x": x, "cells": cells, "old": np.zeros_like(cells)}
        return LanguageProblem(values, {"cells": Close(wanted), "old": Close(cells)})

    return make


def _contended(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, cells = any_integers(random, element, 2 * N), any_integers(random, element, 6 * CELLS)
        start = [[int(v) for v in row] for row in cells.reshape(6, CELLS)]
        wanted = []
        operations: list[Callable[[int, int], int]] = [add, max, min, and_, or_, xor]
        for row, operation in zip(start, operations, strict=True):
            wanted += [reduce(operation, [int(v) for v in x[cell::CELLS]], row[cell]) for cell in range(CELLS)]
        return LanguageProblem({"x": x, "cells": cells}, {"cells": Close(wrapped(wanted, element))})

    return make


def _floats(element: str, error: float) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        n = N - 9
        x, cells = encode(random.standard_normal(N), element), encode(random.standard_normal(N + 2), element)
        cells[2] = encode(np.nan, element)[()]
        a, before = decode(x, element), decode(cells, element)
        wanted = before.copy()
        wanted[:n] += a[:n]
        wanted[N] += a[:n].sum()
        empty = np.zeros(N, storage(element))
        old = np.where(np.arange(N) < n, before[:N], 0)
        values = {"x": x, "cells": cells, "old": empty, "n": n}
        return LanguageProblem(values, {"cells": Close(wanted, absolute=error), "old": Close(old)})

    return make


def _extremes(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x, cells = encode(random.standard_normal(N), element), encode(random.standard_normal(2 * N), element)
        a, before = decode(x, element), decode(cells, element).reshape(2, N)
        wanted = np.concatenate([np.maximum(before[0], a), np.minimum(before[1], a)])
        values = {"x": x, "cells": cells, "old": np.zeros_like(cells)}
        return LanguageProblem(values, {"cells": Close(wanted), "old": Close(before)})

    return make


def _exchanged(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        kind = NUMPY[element]
        x, cells = random.integers(-50, 50, N).astype(kind), random.integers(-50, 50, N).astype(kind)
        index = random.permutation(N).astype(np.int32)
        wanted = cells.copy()
        wanted[index] = 2 * x
        values = {"x": x, "index": index, "cells": cells, "old": np.zeros(2 * N, kind)}
        return LanguageProblem(values, {"cells": Close(wanted), "old": Close(np.concatenate([cells[index], x]))})

    return make


def _scopes(random: np.random.Generator) -> LanguageProblem:
    x, cells = any_integers(random, "i32", N), any_integers(random, "i32", N)
    wanted = wrapped([int(c) + 12 * int(v) for c, v in zip(cells, x, strict=True)], "i32")
    return LanguageProblem({"x": x, "cells": cells}, {"cells": Close(wanted)})


def _scalar(random: np.random.Generator) -> LanguageProblem:
    x = random.integers(0, 1000, 1).astype(np.int32)
    cells = np.array([6, -5, 77], np.int32)
    wanted = [6 + x[0], max(-5, x[0]), 77]
    values = {"x": x, "cells": cells, "old": np.zeros(1, np.int32)}
    return LanguageProblem(values, {"cells": Close(wanted), "old": Close([6])})


def _last(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = random.integers(-9, 9, 3 * N).astype(NUMPY[element])
        parts = x.reshape(3, N).sum(1)
        values = {
            "x": x, "parts": np.zeros(3, x.dtype), "counter": np.zeros(1, np.int32), "out": np.zeros(1, x.dtype),
        }  # fmt: skip
        return LanguageProblem(values, {"parts": Close(parts), "counter": Close([3]), "out": Close([parts.sum()])})

    return make


def _locked(random: np.random.Generator) -> LanguageProblem:
    x, out = any_integers(random, "i32", 3 * N), any_integers(random, "i32", N)
    wanted = wrapped(out.astype(np.int64) + x.astype(np.int64).reshape(3, N).sum(0), "i32")
    return LanguageProblem(
        {"x": x, "lock": np.zeros(1, np.int32), "out": out}, {"out": Close(wanted), "lock": Close([0])}
    )


def _through(random: np.random.Generator) -> LanguageProblem:
    x = random.integers(0, 1000, N).astype(np.int32)
    i, value, scratch = np.arange(N), x, []
    for step in range(3):
        scratch.append((value * 2 + i).astype(np.int32))
        value = scratch[-1][(i * 5 + step) % N]
    values = {"x": x, "scratch": np.zeros(3 * N, np.int32), "out": np.zeros(N, np.int32)}
    return LanguageProblem(values, {"scratch": Close(np.concatenate(scratch)), "out": Close(value)})


def _cached(element: str) -> Make:
    def make(random: np.random.Generator) -> LanguageProblem:
        x = random.integers(-50, 50, 6 * N).astype(NUMPY[element])
        wanted = np.tile(x.reshape(6, N).sum(0), 5)
        return LanguageProblem({"x": x, "out": np.zeros(5 * N, x.dtype)}, {"out": Close(wanted)})

    return make


def _grid(_: np.random.Generator) -> LanguageProblem:
    nx, ny, nz = 2, 3, 2
    wanted = []
    for z in range(nz):
        for y in range(ny):
            for x in range(nx):
                flat = y * nx + x
                group = min(ny - flat // (2 * nx) * 2, 2)
                inner = flat % (2 * nx)
                first, second = flat // (2 * nx) * 2 + inner % group, inner // group
                head = ((x * 16 + y) * 16 + z) * 4096 + nx * 256 + ny * 16 + nz
                wanted += [head + i * (first + 7 * second) for i in range(32)]
    return LanguageProblem({"out": np.zeros(len(wanted), np.int32)}, {"out": Close(wanted)})


def _case(kernel: str, label: str, types: dict[str, str], make: Make, **how: Any) -> LanguageCase:
    constants = how.pop("constants", {"N": N})
    return LanguageCase(
        f"{kernel}-{label}" if label else kernel, "shared_memory", kernel, types, constants, make, **how
    )


def cases() -> Iterator[LanguageCase]:
    """Yield the cases of each kernel in `emulated/language/shared_memory.py`."""
    for element in ("i32", "u32", "i64", "u64"):
        cells = {"x": f"*{element}", "cells": f"*{element}"}
        yield _case("atomic_integers", element, {**cells, "old": f"*{element}"}, _integers(element))
        constants = {"N": N, "CELLS": CELLS}
        yield _case("contended", element, cells, _contended(element), constants=constants, grid=(2, 1, 1))
    for element, error in (("fp32", 2e-5), ("fp64", 1e-13), ("fp16", 0.2), ("bf16", 1.5)):
        types = {"x": f"*{element}", "cells": f"*{element}", "old": f"*{element}", "n": "i32"}
        yield _case("atomic_floats", element, types, _floats(element, error))
    for element in ("fp32", "fp64"):
        types = {"x": f"*{element}", "cells": f"*{element}", "old": f"*{element}"}
        yield _case("atomic_extremes", element, types, _extremes(element))
    for element in ("i32", "i64", "fp32"):
        types = {"x": f"*{element}", "index": "*i32", "cells": f"*{element}", "old": f"*{element}"}
        yield _case("exchanged", element, types, _exchanged(element))
    yield _case("scopes", "", {"x": "*i32", "cells": "*i32"}, _scopes)
    yield _case("scalar_atomics", "", {"x": "*i32", "cells": "*i32", "old": "*i32"}, _scalar, constants={})
    for element in ("fp32", "i32"):
        types = {"x": f"*{element}", "parts": f"*{element}", "counter": "*i32", "out": f"*{element}"}
        yield _case("last_one_sums", element, types, _last(element), grid=(3, 1, 1))
    yield _case("locked", "", {"x": "*i32", "lock": "*i32", "out": "*i32"}, _locked, grid=(3, 1, 1))
    yield _case("through_memory", "", {"x": "*i32", "scratch": "*i32", "out": "*i32"}, _through)
    for element in ("fp32", "i16"):
        yield _case("cached", element, {"x": f"*{element}", "out": f"*{element}"}, _cached(element))
    yield _case("grid", "", {"out": "*i32"}, _grid, constants={"A": 32, "B": 2}, grid=(2, 3, 2), warps=1)
