"""Describe a launch to check: its arguments, the workgroups that run, and the values that they must write."""

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


class NoCaseError(Exception):
    """There is no test case for a kernel; the message is the reason for which the kernel is skipped."""


@dataclass(frozen=True)
class Expected:
    """The expected values in a part of a buffer after a launch.

    Args:
        argument: the name of the kernel's argument for the buffer.
        label: the name of the values for display, such as `dQ`.
        places: the indices of the elements in the buffer, an array of any shape.
        exact: the values computed in float64, an array of the shape of `places`, or of `places[0]` if `summed` is set.
        plain: the values that a plain implementation in the kernel's type computes.
        element: the type whose precision is used for the bound on the error.
        stored: the type of the buffer's elements, if it is not `element`.
        summed: whether the values are sums over the first dimension of `places`.
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
        """The allowed error: twice the plain implementation's error, plus the precision times the largest value."""
        finite = np.isfinite(self.exact)
        if not finite.any():
            return 0.0
        error = float(np.abs(self.plain[finite] - self.exact[finite]).max())
        return 2 * error + self.element.precision * float(np.abs(self.exact[finite]).max())

    def error(self, data: Array) -> float:
        """Return the largest error in a buffer; infinite if a wrong value or its expected value is not finite."""
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
    """A launch and its expected results.

    Args:
        only: the ids of the workgroups that run.
        free: by argument, the indices of elements that a kernel may write but whose values have no meaning.
    """

    label: str
    values: Mapping[str, Value]
    grid: Place
    only: Sequence[Place]
    expected: Sequence[Expected]
    free: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class Arguments:
    """A collector for the values of a kernel's arguments, by name."""

    metadata: Metadata
    values: dict[str, Value] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Return whether an argument is passed at run time."""
        return any(parameter.name == name for parameter in self.metadata.parameters)

    def constant(self, name: str, default: Any = None) -> Any:
        """Return the value of a compile-time argument, or `default` if there is no such argument."""
        return self.metadata.constants.get(name, default)

    def tensors(self, **given: Tensor | Array | None) -> None:
        """Set buffers, by the name of the argument; buffers that the kernel does not take are ignored."""
        for name, value in given.items():
            if self.has(name):
                self.values[name] = value.data if isinstance(value, Tensor) else value

    def numbers(self, **given: float) -> None:
        """Set numbers, by the name of the argument; numbers that the kernel does not take are ignored.

        NoCaseError is raised if a compile-time argument has a different value that is not None.
        """
        for name, value in given.items():
            if self.has(name):
                self.values[name] = value
            elif name in self.metadata.constants and self.metadata.constants[name] not in (value, None):
                raise NoCaseError(f"the compile-time argument {name} is {self.metadata.constants[name]}, not {value}")

    def strides(self, **given: Sequence[int]) -> None:
        """Set the strides of tensors, in the order of the kernel's arguments.

        The arguments are named `stride_NAMEx` or `stride_NAME_x`, where x is one character. NoCaseError is raised
        if a compile-time stride has a different value, or if the number of strides is unexpected.
        """
        for name, strides in given.items():
            names = [
                argument
                for argument in self.metadata.names
                if argument.startswith(f"stride_{name}")
                and len(argument.removeprefix(f"stride_{name}").strip("_")) == 1
            ]
            if names and len(names) != len(strides):
                raise NoCaseError(f"{name} has {len(names)} strides: {', '.join(names)}")
            self.numbers(**dict(zip(names, strides, strict=False)))

    def zero(self, *patterns: str) -> None:
        """Set to 0 or null each argument that has no value yet and a name that matches one of `patterns`.

        No result may depend on these arguments.
        """
        for parameter in self.metadata.parameters:
            if parameter.name not in self.values and any(fnmatch.fnmatchcase(parameter.name, p) for p in patterns):
                self.values[parameter.name] = None if parameter.pointer else 0

    def done(self) -> dict[str, Value]:
        """Return the values of all arguments, by name; raise NoCaseError if an argument has no value."""
        lacking = [parameter.name for parameter in self.metadata.parameters if parameter.name not in self.values]
        if lacking:
            raise NoCaseError(f"no value is known for {', '.join(lacking)}")
        return self.values
