"""Cases of Triton's language: a kernel, its compilation, its arguments, and the reference of its results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lab.tests.language_cases.number_formats import Array, decode

KERNELS = Path(__file__).parents[1] / "emulated" / "language"


@dataclass(frozen=True)
class Close:
    """A result that may differ from the reference by `absolute + relative * |reference|`."""

    values: Any
    relative: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True)
class LanguageProblem:
    """Arguments of a launch, and its results by the name of the buffer; the kernel must not change other buffers."""

    values: Mapping[str, Any]
    results: Mapping[str, Close]


Make = Callable[[np.random.Generator], LanguageProblem]


@dataclass(frozen=True)
class LanguageCase:
    """A kernel of `emulated/language` with its types.

    Attributes:
        types: Triton's type of each argument, in the kernel's order.
        make: returns arguments and results that a random generator draws.
    """

    name: str
    file: str
    kernel: str
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    make: Make
    grid: tuple[int, int, int] = (1, 1, 1)
    warps: int = 4
    stages: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def rule(self, folder: Path, gpu: str) -> dict[str, Any]:
        """Return the rule for the kernel worker."""
        return {
            "id": f"{gpu}-{self.name}",
            "root": str(KERNELS),
            "source": str(KERNELS / f"{self.file}.py"),
            "kernel": self.kernel,
            "signature": {
                **{name: f"{kind}:16" if kind.startswith("*") else kind for name, kind in self.types.items()},
                **dict.fromkeys(self.constants, "constexpr"),
            },
            "constexprs": dict(self.constants),
            "target": gpu,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "waves_per_eu": 0,
            "options": dict(self.options),
            "out": str(folder / gpu / f"{self.name}.hsaco"),
        }

    def problem(self, number: int = 0) -> LanguageProblem:
        """Return arguments and results, which depend on nothing but the case's name and the number."""
        return self.make(np.random.default_rng([zlib.crc32(self.name.encode()), number]))

    def difference(self, problem: LanguageProblem, buffers: Mapping[str, Array]) -> str:
        """Return the first difference between buffers and results; an empty text if there is no difference."""
        for name, kind in self.types.items():
            if not kind.startswith("*"):
                continue
            given, found, close = problem.values[name], buffers[name], problem.results.get(name)
            if close is None:
                if found.tobytes() != given.tobytes():
                    return f"{name} was changed"
                continue
            element = kind.removeprefix("*")
            got = decode(found.reshape(-1), element)
            wanted = np.asarray(close.values).reshape(-1)
            if len(got) != len(wanted):
                return f"{name} has {len(got)} elements, not {len(wanted)}"
            bad = np.flatnonzero(~_near(got, wanted, close))
            if len(bad):
                first = int(bad[0])
                return f"{name}[{first}] is {got[first]!r}, not {wanted[first]!r}; {len(bad)} of {len(got)} are wrong"
        return ""


def _near(got: Array, wanted: Array, close: Close) -> Array:
    if got.dtype.kind in "iu":
        return np.array([int(a) == int(b) for a, b in zip(got, wanted, strict=True)], bool)
    exact = wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(got - exact) <= close.absolute + close.relative * np.abs(exact)
    result: Array = near | (got == exact) | (np.isnan(got) & np.isnan(exact))
    return result
