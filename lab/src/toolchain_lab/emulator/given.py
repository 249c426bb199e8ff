"""Arguments of a launch as a user writes them: `n=300`, `X=x.npy`, `O=zeros:4096`, `Q=normal:65536`, `bias=null`."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from toolchain_lab.emulator.bits import Array, round_bf16
from toolchain_lab.emulator.errors import LaunchError
from toolchain_lab.emulator.launch import Parameter, Value

# By Triton's name of what a pointer leads to; bf16 is kept as its bits.
ELEMENTS: dict[str, type[np.generic]] = {
    "i1": np.uint8, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "fp16": np.float16, "bf16": np.uint16, "fp32": np.float32,
    "fp64": np.float64,
}  # fmt: skip
_MOST = 1 << 28
_FORMS = "a number, null, FILE.npy, zeros:COUNT or normal:COUNT"


def parse_argument(parameter: Parameter, text: str, *, seed: int) -> Value:
    """The value of an argument.

    Args:
        seed: of random numbers; each argument's are its own.

    Raises:
        LaunchError: the text has no form that fits the parameter's type.
    """
    if parameter.pointer:
        return _buffer(parameter, text, seed)
    try:
        return float(text) if parameter.format in "fd" else int(text, 0)
    except ValueError as error:
        raise _wrong(parameter, text, "it is a number") from error


def _buffer(parameter: Parameter, text: str, seed: int) -> Array | None:
    if text == "null":
        return None
    element = parameter.type.removeprefix("*")
    kind = ELEMENTS.get(element)
    if kind is None:
        raise _wrong(parameter, text, f"elements of type {element} are unknown")
    form, colon, rest = text.partition(":")
    if colon and form in {"zeros", "normal"}:
        if re.fullmatch("[0-9]{1,9}", rest) is None or not 0 < int(rest) <= _MOST:
            raise _wrong(parameter, text, f"COUNT is a number from 1 to {_MOST}")
        if form == "zeros":
            return np.zeros(int(rest), kind)
        if element not in {"fp16", "bf16", "fp32", "fp64"}:
            raise _wrong(parameter, text, "normal numbers are for floating-point types")
        name_seed = int.from_bytes(parameter.name.encode(), "little") % (1 << 63)
        values = np.random.default_rng([seed, name_seed]).standard_normal(int(rest))
        return round_bf16(values.astype(np.float32)) if element == "bf16" else values.astype(kind)
    return _file(parameter, text, kind)


def _file(parameter: Parameter, text: str, kind: type[np.generic]) -> Array:
    try:
        with Path(text).open("rb") as stream:  # which numpy leaves open after an error
            loaded: Any = np.load(stream, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise _wrong(parameter, text, f"cannot read it: {error}") from error
    if not isinstance(loaded, np.ndarray) or loaded.dtype != kind:
        held = getattr(loaded, "dtype", type(loaded).__name__)
        raise _wrong(parameter, text, f"it holds {held}, {np.dtype(kind)} is expected")
    return np.ascontiguousarray(loaded)


def _wrong(parameter: Parameter, text: str, why: str) -> LaunchError:
    return LaunchError(
        f"argument {parameter.name} cannot be {text!r}", why=f"type {parameter.type}: {why}", fix=f"give {_FORMS}"
    )
