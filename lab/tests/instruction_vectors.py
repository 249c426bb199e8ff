"""Vectors: the registers before and after one instruction, and their check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.tests.emulator_fixtures import bits, double, get, put, run, wave_of

INF, NAN = float("inf"), float("nan")
TINY = bits(2.0**-140)  # a denormal


@dataclass(frozen=True)
class Vector:
    """Registers before and after an instruction. A list has a number for each lane, and may be shorter than a wave."""

    rule: str
    text: str
    before: dict[str, Any]
    after: dict[str, Any]
    gpu: str = "gfx942"
    word: int = 0


def v(
    rule: str, text: str, before: dict[str, Any], after: dict[str, Any], gpu: str = "gfx942", word: int = 0
) -> Vector:
    return Vector(rule, text, before, after, gpu, word)


def d(rule: str, text: str, *numbers: float, bits_of: int | None = None) -> Vector:
    """Return a vector on float64: the last number is the result in v[0:1], the others are sources from v[2:3] on."""
    *sources, result = numbers
    before = {f"v[{2 * k + 2}:{2 * k + 3}]": double(value) for k, value in enumerate(sources)}
    return v(rule, text, before, {"v[0:1]": double(result) if bits_of is None else bits_of})


def check(vector: Vector) -> None:
    """Run an instruction, and compare the registers that the vector names."""
    wave = wave_of(vector.gpu)
    for name, value in vector.before.items():
        if name != "exec":
            put(wave, name, value)
    if "exec" in vector.before:
        put(wave, "exec", vector.before["exec"])

    run(wave, vector.text, word=vector.word)

    for name, wanted in vector.after.items():
        got = get(wave, name)
        if isinstance(wanted, list):
            assert got[: len(wanted)] == wanted, name
        elif isinstance(got, list):
            active = [value for lane, value in enumerate(got) if wave.exec_bits >> lane & 1]
            assert set(active) == {wanted}, name
        else:
            assert got == wanted, name
