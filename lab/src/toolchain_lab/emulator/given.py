"""Parsing of a kernel's arguments, such as `n=300`, `X=x.npy` or `O=zeros:4096`, and comparison of its results."""

from __future__ import annotations

import re
import struct
import tokenize
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toolchain_lab.emulator import float8
from toolchain_lab.emulator.bits import Array, round_bf16, widen_bf16
from toolchain_lab.emulator.errors import LaunchError
from toolchain_lab.emulator.launch import Parameter, Value

# These are the numpy types of arrays, by Triton's name for the element type. Numbers of type bf16 and 8-bit floats are
# stored as their bits.
ELEMENTS: dict[str, type[np.generic]] = {
    "i1": np.uint8, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "fp16": np.float16, "bf16": np.uint16, "fp32": np.float32,
    "fp64": np.float64, **dict.fromkeys(float8.TYPES, np.uint8),
}  # fmt: skip
_AS_BITS = {"bf16", *float8.TYPES}
_FLOATS = {"fp16", "fp32", "fp64", *_AS_BITS}
_MOST = 1 << 28
_FORMS = "a number, null, FILE.npy, zeros:COUNT[:TYPE] or normal:COUNT[:TYPE]"
_MADE = re.compile(r"(zeros|normal):([0-9]{1,9})(?::(\w+))?")


def parse_argument(parameter: Parameter, text: str, *, seed: int) -> tuple[Parameter, Value]:
    """Return the parameter, with its element type if `text` determines it, and the value that `text` gives.

    Args:
        seed: the seed for `normal:`; it is combined with the parameter's name, so that buffers differ.
    """
    if not parameter.pointer:
        return parameter, _number(parameter, text)
    if text == "null":
        return parameter, None
    made = _MADE.fullmatch(text)
    if made is None:
        if text.startswith(("zeros:", "normal:")):
            raise _wrong(parameter, text, f"COUNT is a number from 1 to {_MOST}")
        return _file(parameter, text)
    if made[3]:
        if parameter.element not in {"", made[3]}:
            raise _wrong(parameter, text, "the value names a different type")
        parameter = replace(parameter, type=f"*{made[3]}")
    kind = _storage(parameter, text)
    count = int(made[2])
    if not 0 < count <= _MOST:
        raise _wrong(parameter, text, f"COUNT is a number from 1 to {_MOST}")
    if made[1] == "zeros":
        return parameter, np.zeros(count, kind)
    if parameter.element not in _FLOATS:
        raise _wrong(parameter, text, "normal numbers need a floating-point type")
    name_seed = int.from_bytes(parameter.name.encode(), "little") % (1 << 63)
    return parameter, _encoded(parameter.element, np.random.default_rng([seed, name_seed]).standard_normal(count))


def _number(parameter: Parameter, text: str) -> float:
    """Return the number that `text` gives for a parameter.

    If the parameter's type is unknown and `text` is not an integer, the number is converted to a float of the
    parameter's size, whose bits are returned as an integer.
    """
    try:
        if parameter.format in "efd" or parameter.type == "bf16":
            return float(text)
        if parameter.untyped and not re.fullmatch(r"\s*[-+]?(0[xX][0-9a-fA-F]+|\d+)\s*", text):
            form = {"H": "e", "I": "f", "Q": "d"}[parameter.format]
            return int.from_bytes(struct.pack(f"<{form}", float(text)), "little")
        return int(text, 0)
    except (ValueError, KeyError, OverflowError) as error:
        raise _wrong(parameter, text, "the parameter takes a number in the range of its type") from error


def _storage(parameter: Parameter, text: str) -> type[np.generic]:
    if not parameter.element:
        raise _wrong(parameter, text, "the code object contains no type for the elements: add :TYPE, such as :fp16")
    kind = ELEMENTS.get(parameter.element)
    if kind is None:
        raise _wrong(parameter, text, f"the element type {parameter.element} is unknown")
    return kind


def _encoded(element: str, values: Array) -> Array:
    if element in float8.TYPES:
        return float8.TYPES[element].encode(values, saturate=True)
    return round_bf16(values.astype(np.float32)) if element == "bf16" else values.astype(ELEMENTS[element])


def _load(parameter: Parameter, text: str, option: str = "--arg") -> Array:
    try:
        with Path(text).open("rb") as stream:  # numpy does not close a damaged zip file
            loaded: Any = np.load(stream, allow_pickle=False)
    except OSError as error:
        raise _wrong(
            parameter, text, f"the file cannot be read: {error.strerror or 'it is truncated'}", option
        ) from error
    except (ValueError, EOFError, MemoryError, OverflowError, tokenize.TokenError, zipfile.BadZipFile) as error:
        raise _wrong(parameter, text, "the file is not an array that numpy.save wrote", option) from error
    if not isinstance(loaded, np.ndarray):
        raise _wrong(parameter, text, "the file contains several arrays", option)
    return loaded.astype(loaded.dtype.newbyteorder("="), copy=False)  # the file may be big-endian


def _file(parameter: Parameter, text: str) -> tuple[Parameter, Array]:
    loaded = _load(parameter, text)
    element = parameter.element or next(
        (name for name, kind in ELEMENTS.items() if loaded.dtype == kind and name not in _AS_BITS and name != "i1"), ""
    )
    parameter = replace(parameter, type=f"*{element}")
    kind = np.dtype(_storage(parameter, text))
    integers = loaded.dtype.kind in "iu" and kind.kind in "iu" and element not in _AS_BITS
    # numpy saves arrays with a type from the package ml_dtypes as untyped bytes.
    raw = (element in _AS_BITS and loaded.dtype.kind in "Viu") or (element == "i1" and loaded.dtype.kind in "biu")
    if loaded.dtype != kind and not (loaded.dtype.itemsize == kind.itemsize and (integers or raw)):
        raise _wrong(parameter, text, f"the file contains elements of type {loaded.dtype}, but {kind} is expected")
    return parameter, np.ascontiguousarray(loaded).view(loaded.dtype if integers else kind)


def _wrong(parameter: Parameter, text: str, why: str, option: str = "--arg") -> LaunchError:
    kind = parameter.type if parameter.type != "*" else "a pointer"
    return LaunchError(
        "argument-invalid",
        f"argument {parameter.name} cannot be {text!r}" if option == "--arg" else f"{option} {parameter.name}={text}",
        why=f"type {kind}: {why}",
        fix=f"give {_FORMS}" if option == "--arg" else "name a file with an array that numpy.save wrote",
    )


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a buffer with the expected array.

    Args:
        differing: the number of elements whose difference exceeds the tolerance.
        first: the flat index of the first element that differs; None if none does.
        largest: the largest absolute difference; infinite if an element that differs, or its expected value, is NaN or
            infinite.
    """

    differing: int
    first: int | None
    largest: float

    def __str__(self) -> str:
        return f"{self.differing} elements differ, the first at {self.first}, by at most {self.largest:.2e}"

    def as_json(self) -> dict[str, float | None]:
        """Return the fields as JSON values; an infinite difference is null."""
        largest = self.largest if np.isfinite(self.largest) else None
        return {"differing": self.differing, "first_index": self.first, "largest": largest}


def decoded(element: str, stored: Array) -> Array:
    """Return the numbers that a buffer contains: bf16 and 8-bit floats as `float32`, and other types unchanged."""
    if element in float8.TYPES:
        return float8.TYPES[element].decode(stored)
    return widen_bf16(stored) if element == "bf16" else stored


def read_expected(parameter: Parameter, path: str, buffer: Array) -> Array:
    """Read the expected values of a buffer from a file that `numpy.save` wrote.

    Args:
        buffer: the buffer before or after the launch; only its size and type are used.
    """
    expected = _load(parameter, path, option="--expect")
    if expected.size != buffer.size:
        why = f"the buffer has {buffer.size} numbers, and the file has {expected.size}"
        raise _wrong(parameter, path, why, option="--expect")
    # `--out` writes bf16 numbers and 8-bit floats as integers, and numpy saves arrays with a type from the package
    # ml_dtypes as untyped bytes.
    raw = expected.dtype.kind == "V" or (parameter.element in _AS_BITS and expected.dtype.kind in "iu")
    if expected.dtype.kind not in "biufV" or (raw and expected.dtype.itemsize != buffer.dtype.itemsize):
        why = f"the file contains elements of type {expected.dtype}"
        raise _wrong(parameter, path, why, option="--expect")
    return decoded(parameter.element, np.ascontiguousarray(expected).view(buffer.dtype)) if raw else expected


def compare_with(parameter: Parameter, expected: Array, buffer: Array, *, atol: float, rtol: float) -> Comparison:
    """Compare a buffer with the values from `read_expected`; NaN is equal to NaN.

    An element differs unless |result - expected| <= atol + rtol * |expected|, where the last term is 0 if the expected
    value is infinite. Equal infinities do not differ.
    """
    result, expected = np.ravel(decoded(parameter.element, buffer)), np.ravel(expected)
    if result.dtype.kind in "iu" and expected.dtype.kind in "biu":
        # The differences are computed with Python's integers, because float64 cannot represent all int64 values.
        off = np.array([abs(int(a) - int(b)) for a, b in zip(result, expected, strict=True)], object)
        wide = off.astype(np.float64)
        bad = wide > atol + rtol * np.abs(expected.astype(np.float64))
    else:
        one, other = result.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            wide = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
            bad = ~(wide <= atol + rtol * np.where(np.isfinite(other), np.abs(other), 0.0))
    largest = float(np.where(np.isnan(wide), np.inf, wide).max(initial=0.0))
    return Comparison(int(bad.sum()), int(np.argmax(bad)) if bad.any() else None, largest)
