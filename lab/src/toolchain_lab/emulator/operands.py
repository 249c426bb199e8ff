"""Decoding of operands into functions that read or write them in a wave."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from toolchain_lab.emulator.bits import QUAD, WORD, Array, clamped, join_quads, signed, split_quads
from toolchain_lab.emulator.registers import SCC, VECTOR, Register, Signed, register_of, signs_of
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import EXEC, NULL, Target, Wave

Run = Callable[[Wave], None]
Get = Callable[[Wave], Array]
GetNumber = Callable[[Wave], int]
Put = Callable[[Wave, Array], None]

_NUMBER = re.compile(r"-?(?:0x[0-9a-f]+|\d+)$")
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?$")
_TWO_PI = 0.15915494309189532  # 1/(2*pi) as float64; for narrower types, the disassembler prints fewer digits
_NONE: frozenset[int] = frozenset()


class Operands:
    """A factory for functions that read and write the operands of an instruction. It records the accessed registers.

    The set `masks` contains the scalar registers that are read as lane masks. On gfx11 and later, `half_reads` contains
    the halves of vector registers that are read as 16-bit sources. The set `reads` contains the registers that are read
    in any other way. The sets `half_writes` and `writes` contain the halves and the registers that are written.

    Args:
        raw: functions that replace the sources that DPP or SDWA modifies, by the text of the source; they return
            `uint32`.
    """

    def __init__(self, target: Target, instruction: Instruction, raw: dict[str, Get] | None = None) -> None:
        self.target = target
        self._generation = target.generation
        self.instruction = instruction
        self.raw = raw or {}
        self.reads: set[int] = set()
        self.masks: set[int] = set()
        self.writes: set[int] = set()
        # Half h of register r has the number 2 * r + h.
        self.half_reads: set[int] = set()
        self.half_writes: set[int] = set()

    def register(self, text: str) -> Register | None:
        """Return the register that an operand names; None for other operands, such as constants and `scc`."""
        return register_of(text, self._generation)

    def plain(self, text: str) -> str:
        """Return the text of an operand; raise NotEmulatedError if it has the modifier `neg` or `abs`."""
        operand = signs_of(text)
        if operand.negate or operand.absolute:
            raise self.instruction.unknown(f"a modifier on {text}")
        return text

    def constant(self, text: str, bits: int = 32) -> int:
        """Return the bits of a constant in an operand that has `bits` bits."""
        if text.startswith(("lit(", "lit64(")) and text.endswith(")"):
            text = text[text.index("(") + 1 : -1]
        if _NUMBER.match(text):
            value = int(text, 0)
            if bits == 64 and text.startswith("0x") and value >> 31 == 1:
                raise self.instruction.unknown(f"the literal {text} as 64 bits")
            return value & ((1 << bits) - 1)
        if _FLOAT.match(text):
            value_of = _TWO_PI if text.startswith("0.15915494") else float(text)
            kinds = {16: (np.float16, np.uint16), 32: (np.float32, np.uint32), 64: (np.float64, np.uint64)}
            kind, raw = kinds[bits]
            return int(np.array(value_of, kind).view(raw))
        raise self.instruction.unknown(f"the operand {text}")

    def read(self, register: Register, count: int | None = None) -> Register:
        """Record that a range of registers, or only its first `count` registers, is read, and return the range."""
        names = register.names
        self.reads.update(names if count is None else range(names.start, names.start + count))
        return register

    def write(self, register: Register, count: int | None = None) -> Register:
        """Record that a range of registers, or only its first `count` registers, is written, and return the range."""
        names = register.names
        self.writes.update(names if count is None else range(names.start, names.start + count))
        return register

    @property
    def numbers(self) -> frozenset[int]:
        """The scalar registers, including SCC, that are read as numbers and not as lane masks."""
        return frozenset(register for register in self.reads if register < VECTOR)

    def accesses(self) -> tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int]]:
        """Return which registers, and which halves of registers, the instruction accesses.

        Returns:
            The registers that are read; the registers that are written; the halves of these registers that are neither
            read nor written; and the halves of the written registers that are not written.
        """
        if not self.half_reads and not self.half_writes:
            return frozenset(self.reads | self.masks), frozenset(self.writes), _NONE, _NONE
        halves = self.half_reads | self.half_writes
        whole = self.reads | self.writes
        spared = frozenset(half ^ 1 for half in halves if half >> 1 not in whole) - halves
        kept = frozenset(half ^ 1 for half in self.half_writes if half >> 1 not in self.writes) - self.half_writes
        reads, writes = (half >> 1 for half in self.half_reads), (half >> 1 for half in self.half_writes)
        return frozenset(self.reads.union(self.masks, reads)), frozenset(self.writes.union(writes)), spared, kept

    def vector(self, text: str) -> Register:
        """Return the vector registers that an operand names, without recording an access."""
        register = self.register(text)
        if register is None or not register.vector:
            raise self.instruction.unknown(f"{text} where a vector register is expected")
        return register

    def u32(self, text: str, offset: int = 0) -> Get:
        """Return the function that reads a source as `uint32`; `offset` is added to the number of the register."""
        if text in self.raw:
            return self.raw[text]
        self.plain(text)
        register = self.register(text)
        if register is None:
            if text in {"scc", "src_scc"}:
                self.reads.add(SCC)
                return lambda wave: np.asarray(np.uint32(wave.scc))
            value = np.asarray(np.uint32(self.constant(text)))
            return lambda _: value
        if register.half is not None:
            raise self.instruction.unknown(f"{text} as a 32-bit operand")
        index = register.index + offset
        self.reads.add(register.names.start + offset)
        return (lambda wave: wave.u[index]) if register.vector else (lambda wave: wave.s[index])

    def i32(self, text: str) -> Get:
        """Return the function that reads a source as `int32`."""
        get = self.u32(text)
        register = None if text in self.raw else self.register(text)
        if register is not None and register.vector:
            index = register.index
            return lambda wave: wave.i[index]
        return lambda wave: get(wave).view(np.int32)

    def f32(self, text: str, offset: int = 0) -> Get:
        """Return the function that reads a source as `float32`, with its modifiers applied; `offset` is as in `u32`."""
        operand = signs_of(text)
        register = None if operand.text in self.raw else self.register(operand.text)
        raw = self.u32(operand.text, offset)
        if register is not None and register.vector:
            index = register.index + offset
            return _with_signs(lambda wave: wave.f[index], operand)
        if register is None and operand.text not in self.raw and operand.text not in {"scc", "src_scc"}:
            value = np.asarray(np.uint32(self.constant(operand.text))).view(np.float32)
            return _with_signs(lambda _: value, operand)
        return _with_signs(lambda wave: raw(wave).view(np.float32), operand)

    def half(self, text: str, high: int = 0, *, packed: bool = False) -> Get:
        """Return the function that reads a source as `float16`, with its modifiers applied.

        Args:
            high: 1 to read the upper half of a register, or 0 for the lower half; ignored if `text` names a half.
            packed: whether `high` also selects a half of a constant.
        """
        operand = signs_of(text)
        bits = self.half_bits(operand.text, high, packed=packed, floating=True)
        return _with_signs(lambda wave: bits(wave).view(np.float16), operand)

    def half_bits(self, text: str, high: int = 0, *, packed: bool = False, floating: bool = False) -> Get:
        """Return the function that reads a 16-bit source, which must not have modifiers, as `uint16`.

        Args:
            high, packed: as in `half`.
            floating: whether a constant such as 1.0 means a float16, in the lower half if `packed` is set; otherwise a
                packed one means a float32, and another one is refused.
        """
        if text in self.raw:
            raw, place = self.raw[text], np.uint32(16 * high)
            return lambda wave: (raw(wave) >> place).astype(np.uint16)
        self.plain(text)
        register = self.register(text)
        if register is None:
            decimal = _FLOAT.match(text) is not None
            if decimal and not floating and not packed:
                # AMD's manuals say that integer instructions read a float16; LLVM says that they read half a float32.
                raise self.instruction.unknown(f"the constant {text} as an integer")
            if high and not packed and text != "0":
                raise self.instruction.unknown(f"the upper half of the constant {text}")
            bits = 32 if packed and not (floating and decimal) else 16
            value = np.asarray(np.uint16(self.constant(text, bits) >> (16 * high if packed else 0) & 0xFFFF))
            return lambda _: value
        index, part = register.index, high if register.half is None else register.half
        if register.vector and self.target.generation > 9:
            self.half_reads.add(2 * register.names.start + part)
        else:
            self.read(register, 1)
        if register.vector:
            return lambda wave: wave.half_bits[part][index]
        scalar_half = 2 * index + part
        return lambda wave: np.asarray(wave.sh_bits[scalar_half])

    def u64(self, text: str) -> Get:
        """Return the function that reads a source, which is two registers or a constant, as `uint64`."""
        if text in self.raw:
            raise self.instruction.unknown("a 64-bit source with DPP or SDWA")
        self.plain(text)
        register = self.register(text)
        if register is None:
            value = np.asarray(np.uint64(self.constant(text, 64) & QUAD))
            return lambda _: value
        if not register.vector:
            number = self.quad(text)
            return lambda wave: np.asarray(np.uint64(number(wave)))
        low = self.read(register, 2).index
        return lambda wave: join_quads(wave.u[low], wave.u[low + 1])

    def f64(self, text: str) -> Get:
        """Return the function that reads a source as `float64`, with its modifiers applied.

        A literal of 32 bits gives the upper half of the number; the lower half is 0.
        """
        operand = signs_of(text)
        if operand.text.startswith("0x"):
            value = np.asarray(np.uint64(int(operand.text, 0) << 32)).view(np.float64)
            return _with_signs(lambda _: value, operand)
        if operand.text.startswith("lit("):
            raise self.instruction.unknown(f"the literal {operand.text} as 64 bits")
        bits = self.u64(operand.text)
        return _with_signs(lambda wave: bits(wave).view(np.float64), operand)

    def mask(self, text: str) -> Get:
        """Return the function that reads a lane mask, `bool[lanes]`."""
        register = self.register(text)
        if register is None or register.vector or text == "null":
            raise self.instruction.unknown(f"{text} as a lane mask")
        index = register.index
        self.masks.update(range(index, index + self.target.lanes // 32))
        return lambda wave: wave.lane_mask(index)

    @property
    def vcc(self) -> str:
        """The name of the lane mask VCC, which depends on the number of lanes in a wave."""
        return "vcc" if self.target.lanes == 64 else "vcc_lo"

    @property
    def exec(self) -> str:
        """The name of the lane mask EXEC, which depends on the number of lanes in a wave."""
        return "exec" if self.target.lanes == 64 else "exec_lo"

    def put_u32(self, text: str, offset: int = 0) -> Put:
        """Return the function that writes `uint32` to the active lanes of a register; `offset` is as in `u32`."""
        index = self.vector(text).index + offset
        self.writes.add(VECTOR + index)

        def put(wave: Wave, value: Array) -> None:
            if wave.all_lanes:
                wave.u[index][:] = value
            else:
                np.copyto(wave.u[index], value, where=wave.mask)

        return put

    def put_i32(self, text: str) -> Put:
        """Return the function that writes `int32` to the active lanes of a register."""
        put = self.put_u32(text)
        return lambda wave, value: put(wave, value.view(np.uint32))

    def put_f32(self, text: str, offset: int = 0, *, clamp: bool = False) -> Put:
        """Return the function that writes `float32` to the active lanes of a register; `offset` is as in `u32`.

        Args:
            clamp: whether values are clamped to the range from 0 to 1.
        """
        index = self.vector(text).index + offset
        self.writes.add(VECTOR + index)

        def put(wave: Wave, value: Array) -> None:
            if clamp:
                value = clamped(value)
            if wave.all_lanes:
                wave.f[index][:] = value
            else:
                np.copyto(wave.f[index], value, where=wave.mask)

        return put

    def put_half_bits(self, text: str, high: int | None = None, *, zero: bool = False) -> Put:
        """Return the function that writes `uint16` to one half of a register in the active lanes.

        Args:
            high: 1 for the upper half, 0 for the lower half; by default, the half that the text names, or else the
                lower half.
            zero: whether a write to the lower half sets the upper half to 0.
        """
        register = self.vector(text)
        index, part = register.index, register.half or 0 if high is None else high
        clears = zero and not part
        if self.target.generation > 9 and not zero:
            self.half_writes.add(2 * register.names.start + part)
        else:
            self.write(register, 1)
            # The instruction preserves the other half, so its result depends on the old value of the register.
            if not zero:
                self.read(register, 1)

        def put(wave: Wave, value: Array) -> None:
            if wave.all_lanes:
                wave.half_bits[part][index][:] = value
                if clears:
                    wave.half_bits[1][index][:] = 0
                return
            np.copyto(wave.half_bits[part][index], value, where=wave.mask)
            if clears:
                np.copyto(wave.half_bits[1][index], np.uint16(0), where=wave.mask)

        return put

    def put_u64(self, text: str) -> Put:
        """Return the function that writes `uint64` to the active lanes of two registers."""
        low, high = self.put_u32(text), self.put_u32(text, 1)

        def put(wave: Wave, value: Array) -> None:
            below, above = split_quads(value)
            low(wave, below)
            high(wave, above)

        return put

    def put_mask(self, text: str) -> Put:
        """Return the function that writes a lane mask, `bool[lanes]`, to scalar registers; inactive lanes get 0."""
        if text == "null":
            return lambda _wave, _value: None
        register = self.register(text)
        if register is None or register.vector:
            raise self.instruction.unknown(f"{text} as a lane mask")
        index = self.write(register, self.target.lanes // 32).index

        def put(wave: Wave, value: Array) -> None:
            shape = (wave.lanes,)
            wave.set_lane_mask(index, value if value.shape == shape else np.broadcast_to(value, shape))

        return put

    def number(self, text: str) -> GetNumber:
        """Return the function that reads a 32-bit scalar source as an unsigned number."""
        self.plain(text)
        register = self.register(text)
        if register is None:
            if text in {"scc", "src_scc"}:
                self.reads.add(SCC)
                return lambda wave: wave.scc
            value = self.constant(text)
            return lambda _: value
        if register.vector:
            raise self.instruction.unknown(f"{text} where a scalar is expected")
        index = self.read(register, 1).index
        return lambda wave: wave.s.item(index)

    def signed_number(self, text: str) -> GetNumber:
        """Return the function that reads a 32-bit scalar source as a signed number."""
        get = self.number(text)
        if self.register(text) is None and text not in {"scc", "src_scc"}:
            value = signed(self.constant(text), 32)
            return lambda _: value
        return lambda wave: signed(get(wave), 32)

    def quad(self, text: str) -> GetNumber:
        """Return the function that reads a 64-bit scalar source as an unsigned number."""
        self.plain(text)
        register = self.register(text)
        if register is None:
            value = self.constant(text, 64)
            return lambda _: value
        if register.vector:
            raise self.instruction.unknown(f"{text} where a scalar is expected")
        index = self.read(register, 2).index
        if index == NULL and self.target.generation > 9:
            return lambda _: 0
        return lambda wave: wave.quad(index)

    def put_number(self, text: str, words: int = 1) -> Callable[[Wave, int], None]:
        """Return the function that writes a number to one or two scalar registers, and drops higher bits."""
        if text == "null" and self.target.generation > 9:
            return lambda _wave, _value: None
        register = self.register(text)
        if register is None or register.vector:
            raise self.instruction.unknown(f"{text} as a scalar destination")
        index = self.write(register, words).index
        touches_exec = bool(set(range(index, index + words)) & {EXEC, EXEC + 1})

        def put_one(wave: Wave, value: int) -> None:
            wave.s[index] = value & WORD

        def put(wave: Wave, value: int) -> None:
            wave.s[index] = value & WORD
            if words == 2:
                wave.s[index + 1] = value >> 32 & WORD
            if touches_exec:
                wave.exec_changed()

        return put if words == 2 or touches_exec else put_one


def _with_signs(get: Get, operand: Signed) -> Get:
    if operand.absolute and operand.negate:
        return lambda wave: -np.abs(get(wave))
    if operand.absolute:
        return lambda wave: np.abs(get(wave))
    if operand.negate:
        return lambda wave: -get(wave)
    return get
