"""One launch that is checked: what it is given, which workgroups run, and what they must have written."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain_lab.emulator.launch import Value
from toolchain_lab.emulator.metadata import Metadata
from toolchain_lab.emulator.workgroup import Place
from toolchain_lab.numbers.elements import Element, Tensor

Array = NDArray[Any]


class NotCheckedError(Exception):
    """A kernel that no case here fits; its text says why."""


@dataclass(frozen=True)
class Expected:
    """The expected values of a part of a buffer after a launch.

    Args:
        argument: the buffer's.
        label: for display: `dQ`.
        places: elements of the buffer, of any shape.
        exact: `float64`, of the same shape.
        plain: the same by a plain implementation in the kernel's type.
        stored: the type of what is in the buffer, where its error is judged as that of a coarser one.
        summed: the first dimension of `places` is parts that the launch leaves for a later sum.
    """

    argument: str
    label: str
    element: Element
    places: Array
    exact: Array
    plain: Array
    summed: bool = False
    stored: Element | None = None

    @property
    def bound(self) -> float:
        """The largest error that passes: twice the plain one, and a unit of the type at the largest value."""
        finite = np.isfinite(self.exact)
        if not finite.any():
            return 0.0
        error = float(np.abs(self.plain[finite] - self.exact[finite]).max())
        return 2 * error + self.element.precision * float(np.abs(self.exact[finite]).max())

    def error(self, data: Array) -> float:
        """The largest error of what is in the buffer; infinite if one is NaN or infinite and the other is not."""
        values = (self.stored or self.element).decode(data[self.places])
        if self.summed:
            values = values.sum(0)
        finite = np.isfinite(self.exact)
        if not np.array_equal(values[~finite], self.exact[~finite], equal_nan=True):
            return float("inf")
        difference = np.abs(values[finite] - self.exact[finite])
        return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))


@dataclass(frozen=True)
class Case:
    """One launch.

    Args:
        label: for display.
        values: by argument.
        only: workgroups that run.
        free: by argument elements that may be written, and that mean nothing.
    """

    label: str
    values: Mapping[str, Value]
    grid: Place
    only: Sequence[Place]
    expected: Sequence[Expected]
    free: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class Arguments:
    """Gives a kernel's arguments their values, by name."""

    metadata: Metadata
    values: dict[str, Value] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether an argument is given at run time."""
        return any(parameter.name == name for parameter in self.metadata.parameters)

    def constant(self, name: str, default: Any = None) -> Any:
        """The value of an argument that is compiled in."""
        return self.metadata.constants.get(name, default)

    def tensors(self, **given: Tensor | Array | None) -> None:
        """Buffers by argument; those that the kernel does not take are left out."""
        for name, value in given.items():
            if self.has(name):
                self.values[name] = value.data if isinstance(value, Tensor) else value

    def numbers(self, **given: float) -> None:
        """Numbers by argument. A number that is compiled in must be the same.

        Raises:
            NotCheckedError: it differs.
        """
        for name, value in given.items():
            if self.has(name):
                self.values[name] = value
            elif name in self.metadata.constants and self.metadata.constants[name] not in (value, None):
                raise NotCheckedError(
                    "no-case", f"{name} is compiled in as {self.metadata.constants[name]}, not {value}"
                )

    def strides(self, **given: Sequence[int]) -> None:
        """Strides by tensor: the arguments `stride_NAME…` in the function's order.

        Raises:
            NotCheckedError: one is compiled in with another value.
        """
        for name, strides in given.items():
            names = [
                argument
                for argument in self.metadata.names
                if argument.startswith(f"stride_{name}")
                and len(argument.removeprefix(f"stride_{name}").strip("_")) == 1
            ]
            if names and len(names) != len(strides):
                raise NotCheckedError("no-case", f"{len(names)} strides of {name}: {', '.join(names)}")
            self.numbers(**dict(zip(names, strides, strict=False)))

    def zero(self, *patterns: str) -> None:
        """Give 0 to arguments that no value depends on, by name or glob."""
        for parameter in self.metadata.parameters:
            if parameter.name not in self.values and any(fnmatch.fnmatchcase(parameter.name, p) for p in patterns):
                self.values[parameter.name] = None if parameter.pointer else 0

    def done(self) -> dict[str, Value]:
        """All values.

        Raises:
            NotCheckedError: an argument has none.
        """
        lacking = [parameter.name for parameter in self.metadata.parameters if parameter.name not in self.values]
        if lacking:
            raise NotCheckedError("no-case", f"no value is known for {', '.join(lacking)}")
        return self.values
