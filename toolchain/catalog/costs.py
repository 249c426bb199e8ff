"""Estimated costs of stages: measurements and guesses from data/costs.toml, scaled to a number of cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from toolchain.data import FOLDER, load, typed_row


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A row of data/costs.toml, which documents the fields."""

    stage: str
    part: str = ""
    minutes: tuple[int, int]
    cores: int
    kernel: float = 0.0
    step: float = 0.0
    job: Literal["", "compile", "link", "kernel"] = ""
    output: tuple[int, int] | None = None
    source: str

    def on(self, cores: int) -> tuple[float, float]:
        """Return the minimum and maximum minutes on a number of cores, without the time for kernels."""
        share = self.cores / cores if self.cores else 1.0
        least, most = self.minutes
        return least * share, most * share

    def time_for(self, cores: int, left: float = 1.0) -> str:
        """Return text such as `2 to 5 h` or `12 to 30 min + 1.1 s a kernel` for the fraction `left` of the stage."""
        least, most = (_duration(minutes * left) for minutes in self.on(cores))
        same_unit = least.split()[-1] == most.split()[-1]
        time = least if least == most else f"{least.split()[0] if same_unit else least} to {most}"
        return f"{time} + {self.kernel / cores:.2g} s a kernel" if self.kernel else time

    def all_kernels(self, cores: int, kernels: int | None) -> str:
        """Return text with the number and the compile time of the kernels, or the reason why the number is unknown."""
        if kernels is None:
            return "number of kernels: unknown, because upstream's generator was not counted for this release and GPU"
        return f"{kernels:,} kernels: {_duration(kernels * self.kernel / cores / 60)}"

    def as_json(self, cores: int, left: float = 1.0) -> dict[str, Any]:
        """Return the estimate for the fraction `left` of the stage, as `plan --json` prints it."""
        least, most = (minutes * left for minutes in self.on(cores))
        return {
            "cores": cores,
            "minutes": [round(least, 1), round(most, 1)],
            **({"seconds_per_kernel": round(self.kernel / cores, 2)} if self.kernel else {}),
        }


def costs() -> tuple[Cost, ...]:
    """Return all rows of data/costs.toml, in file order."""
    return tuple(typed_row(Cost, row, row["stage"], FOLDER / "costs.toml") for row in load("costs")["cost"])


def cost_of(stage: str, part: str = "") -> Cost | None:
    """Return the cost of a stage or of a part of it; None if data/costs.toml contains no row for it."""
    return next((cost for cost in costs() if (cost.stage, cost.part) == (stage, part)), None)


def ninja_of(stage: str, part: str = "") -> dict[str, float]:
    """Return the value of `Recipe.ninja` for a stage; an empty dict if the cost of a step is unknown."""
    row = cost_of(stage, part)
    return {"compile": row.step} if row is not None and row.step else {}


def _duration(minutes: float) -> str:
    if minutes < 1.5:
        return "1 min"
    if minutes < 100:
        return f"{round(minutes)} min"
    return f"{math.floor(minutes / 30 + 0.5) / 2:g} h"
