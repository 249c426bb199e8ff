"""Waves and small programs for tests, which need neither a file nor a disassembler."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolchain_lab.emulator.codeobject import CodeObject, Descriptor
from toolchain_lab.emulator.decode import decode
from toolchain_lab.emulator.disassembly import Line
from toolchain_lab.emulator.memory import Memory
from toolchain_lab.emulator.operands import Operands
from toolchain_lab.emulator.placement import ACROSS, Placement
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.syntax import parse
from toolchain_lab.emulator.wave import Target, Wave
from toolchain_lab.emulator.workgroup import Workgroup

FLOAT_MODE = 0xF0 << 12
LDS, SCRATCH = 256, 64


def bits(value: float) -> int:
    """Return the bits of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def double(value: float) -> int:
    """Return the bits of a float64."""
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def half(value: float) -> int:
    """Return the bits of a float16."""
    return int(np.float16(value).view(np.uint16))


def pair(low: float, high: float) -> int:
    """Return the bits of two float16 in one register."""
    return half(low) | half(high) << 16


def code_object(gpu: str, **changes: Any) -> CodeObject:
    """Return a code object without instructions; its kernel requests arguments, LDS, scratch and two workgroup IDs."""
    wave32 = not gpu.startswith("gfx9")
    descriptor = Descriptor(
        lds=LDS,
        scratch=SCRATCH,
        kernarg=64,
        rsrc1=FLOAT_MODE,
        rsrc2=2 << 1 | 1 << 7 | 1 << 8,
        rsrc3=0,
        properties=1 << 3 | (1 << 10 if wave32 else 0),
        preload_length=0,
        preload_offset=0,
    )
    values = {
        "path": Path("kernel.hsaco"), "gpu": gpu, "kernel": "kernel", "entry": 0, "image": b"",
        "descriptor": descriptor, "arguments": (), "workgroup_size": 64,
    }  # fmt: skip
    return CodeObject(**{**values, **changes})


def program(gpu: str, texts: Sequence[str], words: Mapping[int, int] | None = None) -> Program:
    """Return a program of instructions with 4 bytes each, from address 0.

    Args:
        words: encodings by place, for instructions that the emulator reads by their encoding.
    """
    given = words or {}
    lines = [Line(4 * place, text, (given.get(place, 0),)) for place, text in enumerate(texts)]
    return Program(code_object(gpu), lines)


def workgroup(
    made: Program, buffers: Sequence[Any] = (), *, waves: int = 1, seed: int = 0, placement: Placement = ACROSS
) -> Workgroup:
    """Return a workgroup with buffers; s[4:5] holds the address of the first buffer, s[6:7] that of the second."""
    random = np.random.default_rng(seed)
    memory = Memory(list(buffers), random=random, placement=placement)
    group = Workgroup(
        made, memory, arguments=bytes(64), argument_address=0, waves=waves, lds=LDS, place=(3, 5, 0), random=random
    )
    for wave in group.waves:
        for place, address in enumerate(memory.addresses):
            wave.s[4 + 2 * place], wave.s[5 + 2 * place] = address & 0xFFFFFFFF, address >> 32
    return group


def wave_of(gpu: str, buffers: Sequence[Any] = ()) -> Wave:
    """Return a wave whose lanes are all active."""
    return workgroup(program(gpu, ["s_endpgm"]), buffers).waves[0]


def run(wave: Wave, *texts: str, word: int = 0) -> None:
    """Run instructions on a wave, one after the other."""
    with np.errstate(all="ignore"):
        for text in texts:
            operation = decode(Line(0, text, (word,)), wave.target)
            if operation.run is not None:
                operation.run(wave)


def put(wave: Wave, name: str, value: Any) -> None:
    """Set a register to one number for all lanes, or to a number for each of the first lanes."""
    if name == "exec":
        wave.set_exec(int(value))
    elif name == "scc":
        wave.scc = int(value)
    else:
        register = _register(wave.target, name)
        for k in range(register.count):
            if register.vector:
                row = wave.u[register.index + k]
                part = np.array([int(v) >> 32 * k & 0xFFFFFFFF for v in np.ravel(np.array(value, object))], np.uint32)
                row[: len(part) if len(part) > 1 else None] = part
            else:
                wave.s[register.index + k] = int(value) >> 32 * k & 0xFFFFFFFF


def get(wave: Wave, name: str) -> Any:
    """Return the value of a register: a number, or a list with the number of each lane."""
    if name == "scc":
        return wave.scc
    if name == "exec":
        return wave.exec_bits
    register = _register(wave.target, name)
    if register.vector:
        words = [wave.u[register.index + k].astype(object) << 32 * k for k in range(register.count)]
        return [int(value) for value in np.sum(words, axis=0)]
    return sum(int(wave.s[register.index + k]) << 32 * k for k in range(register.count))


def _register(target: Target, name: str) -> Any:
    register = Operands(target, parse(Line(0, "s_nop 0", (0,)))).register(name)
    assert register is not None, name
    return register
