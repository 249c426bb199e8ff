"""Conversions from and to 8-bit floats, whose types are the FNUZ types on CDNA 3 and the OCP types on other GPUs."""

from __future__ import annotations

import re

import numpy as np

from toolchain_lab.emulator import float8
from toolchain_lab.emulator.bits import Array, round_bf16, widen_bf16
from toolchain_lab.emulator.lanewise import Handler, refuse_overflow
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.wave import Target, Wave

_UNPACK = re.compile(r"v_cvt_(scalef32_)?pk_(f32|f16|bf16)_(fp8|bf8)$")
_PACK = re.compile(r"v_cvt_(scalef32_)?pk_(fp8|bf8)_(f32|f16|bf16)$")
_SINGLE = re.compile(r"v_cvt_f32_(fp8|bf8)$")
_NAMES = {("fp8", True): "fp8e4b8", ("bf8", True): "fp8e5b16", ("fp8", False): "fp8e4nv", ("bf8", False): "fp8e5"}


def format_of(target: Target, name: str) -> float8.Float8:
    """Return the 8-bit type that the instructions of a GPU call `fp8` or `bf8`."""
    return float8.TYPES[_NAMES[name, target.cdna3]]


def _scale(operands: Operands, text: str | None) -> Get:
    """Return the function that reads a scale: the power of two in a float32's exponent, or 1 if `text` is None."""
    if text is None:
        return lambda _: np.asarray(1.0)
    bits = operands.u32(text)

    def get(wave: Wave) -> Array:
        power = (bits(wave) >> np.uint32(23) & np.uint32(255)).astype(np.int32)
        if np.count_nonzero(((power == 0) | (power == 255)) & wave.mask):
            raise operands.instruction.unknown("a scale that is denormal, infinite or NaN")
        return np.ldexp(1.0, power - 127)

    return get


def _selected(operands: Operands, unit: str) -> int:
    """Return the number of the word or the byte that SDWA selects on gfx9; 0 without SDWA."""
    choice = operands.instruction.modifiers.text("src0_sel", f"{unit}_0")
    if not choice.startswith(unit):
        raise operands.instruction.unknown(f"src0_sel:{choice}")
    return int(choice[-1])


def _unpack(operands: Operands, kind: str, name: str, *, scaled: bool) -> Run:
    result, source, *rest = operands.instruction.operands
    high = operands.instruction.modifiers.vector("op_sel", [_selected(operands, "WORD")])[0]
    bits, scale = operands.half_bits(source, high), _scale(operands, rest[0] if scaled else None)
    form = format_of(operands.target, name)
    words = 2 if kind == "f32" else 1
    puts = [operands.put_u32(result, word) for word in range(words)]

    def run(wave: Wave) -> None:
        pair, factor = bits(wave), scale(wave)
        values = [form.decode(part) * factor for part in (pair & np.uint16(255), pair >> np.uint16(8))]
        if words == 2:
            for put, value in zip(puts, values, strict=True):
                put(wave, value.astype(np.float32).view(np.uint32))
            return
        low, high = (_short(operands, wave, value, kind) for value in values)
        puts[0](wave, low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))

    return run


def _short(operands: Operands, wave: Wave, values: Array, kind: str) -> Array:
    """Round numbers to bfloat16 or float16, and return their bits as `uint16`."""
    if kind == "bf16":
        return round_bf16(values.astype(np.float32))
    halves: Array = values.astype(np.float16)
    refuse_overflow(wave, operands.instruction, halves)
    return halves.view(np.uint16)


def _pack(operands: Operands, kind: str, name: str, *, scaled: bool) -> Run:
    result, *texts = operands.instruction.operands
    scale = _scale(operands, texts.pop() if scaled else None)
    if len(texts) != (2 if kind == "f32" else 1):
        raise operands.instruction.unknown(f"{len(texts)} sources")
    selected = operands.instruction.modifiers.vector("op_sel", [0] * 4)
    gets = [operands.f32(text) for text in texts] if kind == "f32" else _pair(operands, texts[0], kind)
    put = operands.put_half_bits(result, selected[3 if scaled and kind == "f32" else 2] or None)
    form = format_of(operands.target, name)

    def run(wave: Wave) -> None:
        factor, codes = scale(wave), []
        for get in gets:
            value = np.asarray(get(wave), np.float64) / factor
            if wave.clamps_overflow:
                value = np.nan_to_num(value, nan=np.nan)  # infinity becomes a finite number, which saturates
            codes.append(form.encode(value, saturate=wave.clamps_overflow).astype(np.uint16))
        put(wave, codes[0] | codes[1] << np.uint16(8))

    return run


def _pair(operands: Operands, text: str, kind: str) -> list[Get]:
    """Return the two functions that read the 16-bit floats in the halves of a register."""
    if kind == "f16":
        return [operands.half(text, high, packed=True) for high in (0, 1)]
    low, high = (operands.half_bits(text, high, packed=True) for high in (0, 1))
    return [lambda wave: widen_bf16(low(wave)), lambda wave: widen_bf16(high(wave))]


def _single(name: str) -> Handler:
    def build(operands: Operands) -> Run:
        result, source = operands.instruction.operands
        byte = operands.instruction.modifiers.number("byte_sel", _selected(operands, "BYTE"))
        place = np.uint32(8 * byte)
        bits, put, form = operands.u32(source), operands.put_f32(result), format_of(operands.target, name)
        return lambda wave: put(wave, form.decode(bits(wave) >> place & np.uint32(255)))

    return build


def handler_of(name: str) -> Handler | None:
    """Return the decoder for a conversion instruction; None if this module does not support the instruction."""
    if match := _SINGLE.match(name):
        return _single(match[1])
    for pattern, build, kind, form in ((_UNPACK, _unpack, 2, 3), (_PACK, _pack, 3, 2)):
        if match := pattern.match(name):
            scaled, kinds = match[1] is not None, (match[kind], match[form])
            if scaled or kinds[0] == "f32":
                return lambda operands: build(operands, *kinds, scaled=scaled)
    return None
