"""Global, flat and scalar instructions that load from memory or store to it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from toolchain_lab.emulator.bits import QUAD, Array
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.wave import Wave

# For each size in a mnemonic, this is the number of bytes, and whether a load sign-extends the value.
SIZES = {
    "ubyte": (1, False), "u8": (1, False), "sbyte": (1, True), "i8": (1, True), "byte": (1, False), "b8": (1, False),
    "ushort": (2, False), "u16": (2, False), "sshort": (2, True), "i16": (2, True), "short": (2, False),
    "b16": (2, False),
    "dword": (4, False), "b32": (4, False), "dwordx2": (8, False), "b64": (8, False), "dwordx3": (12, False),
    "b96": (12, False), "dwordx4": (16, False), "b128": (16, False), "dwordx8": (32, False), "b256": (32, False),
    "dwordx16": (64, False), "b512": (64, False),
}  # fmt: skip
_KIND = re.compile(
    r"(?:global|flat|buffer|scratch|ds)_(?P<action>load|store|read|write)(?P<early>_d16(?:_hi)?)?"
    r"_(?P<size>[a-z]+\d*)(?P<late>_d16(?:_hi)?)?$"
)


class Access:
    """The properties of a load or a store that follow from its mnemonic.

    Attributes:
        known: whether the mnemonic has a known form; if not, the other attributes are not set.
        size: the number of bytes that each lane accesses.
        sign: whether a loaded value of less than 32 bits is sign-extended.
        half: 0 or 1 for a D16 instruction, which accesses only the lower or only the upper half of a register;
            otherwise None.
    """

    def __init__(self, name: str) -> None:
        match = _KIND.match(name)
        self.known = match is not None and match["size"] in SIZES
        if match is None or not self.known:
            return
        self.size, self.sign = SIZES[match["size"]]
        self.load = match["action"] in {"load", "read"}
        short = match["early"] or match["late"] or ""
        self.half: int | None = int(short.endswith("_hi")) if short else None


def active(wave: Wave, values: Array) -> Array:
    """Return the values of the active lanes only."""
    if not values.ndim:
        values = np.broadcast_to(values, (wave.lanes,))
    return values if wave.all_lanes else values[wave.mask]


def spread(wave: Wave, values: Array, lanes: Array | None = None) -> Array:
    """Expand the values of n lanes, `uint32[words, n]`, to an array for all lanes, with 0 in the other lanes.

    Args:
        lanes: a mask of the n lanes; the active lanes by default.
    """
    if lanes is None:
        if wave.all_lanes:
            return values
        lanes = wave.mask
    wide: Array = np.zeros((len(values), wave.lanes), np.uint32)
    wide[:, lanes] = values
    return wide


def writer(operands: Operands, text: str, access: Access) -> Callable[[Wave, Array], None]:
    """Return the function that writes loaded values, `uint32[words, lanes]`, to the registers of an operand."""
    if access.size >= 4:
        words = access.size // 4
        first = operands.write(operands.vector(text), words).index

        def put_words(wave: Wave, values: Array) -> None:
            if wave.all_lanes:
                wave.vectors[first : first + words] = values
            else:
                np.copyto(wave.vectors[first : first + words], values, where=wave.mask)

        return put_words
    bits, sign = 8 * access.size, access.sign
    register = operands.vector(text)
    half = access.half if access.half is not None else register.half

    def extended(value: Array) -> Array:
        shift = np.int32(32 - bits)
        return ((value.view(np.int32) << shift) >> shift).view(np.uint32) if sign else value

    if half is None:
        put_word = operands.put_u32(text)
        return lambda wave, values: put_word(wave, extended(values[0]))
    if operands.target.generation == 9:
        # CDNA's manuals say that with ECC, which its GPUs have, a load of 16 bits sets the other half to 0.
        put_word, low, place = operands.put_u32(text), np.uint32(0xFFFF), np.uint32(16 * half)
        return lambda wave, values: put_word(wave, (extended(values[0]) & low) << place)
    put_half = operands.put_half_bits(text, half)
    return lambda wave, values: put_half(wave, extended(values[0]).astype(np.uint16))


def reader(operands: Operands, text: str, access: Access) -> Callable[[Wave], Array]:
    """Return the function that reads the values to store, `uint32[words, lanes]`, from the registers of an operand."""
    if access.size >= 4:
        words = access.size // 4
        first = operands.read(operands.vector(operands.plain(text)), words).index
        return lambda wave: wave.vectors[first : first + words]
    register = operands.vector(text)
    half = access.half if access.half is not None else register.half
    if half is None and operands.target.generation > 9:
        half = 0
    if half is None:
        get_word = operands.u32(text)
        return lambda wave: get_word(wave)[None]
    get_half = operands.half_bits(text, half)
    return lambda wave: get_half(wave).astype(np.uint32)[None]


def gather(wave: Wave, addresses: Array, size: int, what: str, pc: int, *, lanes: Array | None = None) -> Array:
    """Load values from memory for n lanes, and return them as `uint32[words, n]`.

    Args:
        addresses: the address for each of the n lanes, `uint64[n]`.
        size: the number of bytes that each lane loads.
        what, pc: the kind of access and the address of the instruction, for error messages.
        lanes: a mask of the n lanes; the active lanes by default.
    """
    memory, accesses = wave.group.memory, wave.group.accesses
    place = memory.places(addresses, size, what, pc)
    if accesses is not None:
        accesses.memory.load(place, size, wave.owners(lanes))
    return memory.views.load(place, size)


def scatter(
    wave: Wave, addresses: Array, size: int, what: str, pc: int, *, values: Array, lanes: Array | None = None
) -> None:
    """Store values to memory for n lanes; the arguments other than `values` are as in `gather`.

    Args:
        values: the values of all lanes, `uint32[words, lanes]`, of which those of the n lanes are stored.
    """
    memory, accesses = wave.group.memory, wave.group.accesses
    place = memory.places(addresses, size, what, pc, write=True)
    if lanes is not None:
        values = values[:, lanes]
    elif not wave.all_lanes:
        values = values[:, wave.mask]
    if accesses is not None:
        accesses.memory.store(place, size, wave.owners(lanes), values)
    memory.views.store(place, size, values)


def global_address(operands: Operands, vector: str, scalar: str | None) -> Get:
    """Return the function that computes the addresses of all lanes, `uint64[lanes]`.

    Args:
        vector: two registers with a 64-bit address, or one register with a 32-bit offset from `scalar`.
        scalar: two scalar registers with the base address; None, `off` or `null` if there are none.
    """
    offset = np.uint64(operands.instruction.modifiers.number("offset") & QUAD)
    if scalar is None or scalar in {"off", "null"}:
        address = operands.u64(vector)
        return lambda wave: address(wave) + offset
    base, index = operands.quad(scalar), operands.u32(vector)
    return lambda wave: index(wave).astype(np.uint64) + (np.uint64(base(wave)) + offset)


def _global(access: Access, *, flat: bool) -> Handler:
    what = "a flat access" if flat else "a global access"

    def build(operands: Operands) -> Run:
        texts, pc, size = operands.instruction.operands, operands.instruction.address, access.size
        if operands.instruction.modifiers.flag("lds"):
            raise operands.instruction.unknown("a load to LDS")
        if len(texts) != (2 if flat else 3):
            raise operands.instruction.unknown(f"{len(texts)} operands")
        scalar = None if flat else texts[2]
        if access.load:
            address, write = global_address(operands, texts[1], scalar), writer(operands, texts[0], access)

            def load(wave: Wave) -> None:
                write(wave, spread(wave, gather(wave, active(wave, address(wave)), size, what, pc)))

            return load
        address, read = global_address(operands, texts[0], scalar), reader(operands, texts[1], access)

        def store(wave: Wave) -> None:
            scatter(wave, active(wave, address(wave)), size, what, pc, values=read(wave))

        return store

    return build


def _scalar_load(size: int, *, sign: bool) -> Handler:
    def build(operands: Operands) -> Run:
        result, base, offset = operands.instruction.operands
        pc = operands.instruction.address
        register = operands.register(result)
        # The register `null`, into which gfx12 can load to prefetch data, must keep its value 0.
        if result == "null" or register is None or register.vector or register.count != max(size // 4, 1):
            raise operands.instruction.unknown(f"the destination {result}")
        first = operands.write(register).index
        address, more = operands.quad(base), operands.instruction.modifiers.number("offset")
        index = operands.number(offset) if operands.register(offset) is not None else None
        fixed = more + (int(offset, 0) if index is None else 0)

        def run(wave: Wave) -> None:
            start = address(wave)
            moved = index(wave) if index is not None else 0
            at = start + fixed + moved & QUAD
            if (start | fixed | moved) % min(size, 4):  # the hardware ignores the lowest bits of each part
                raise operands.instruction.unknown("an address that is not aligned")
            group = wave.group
            # The code object itself can also be read, because it may contain constant tables.
            offset, image = at - group.code_address, group.code.image
            if 0 <= offset <= len(image) - size:
                data = image[offset : offset + size]
            else:
                place = group.memory.place(at, size, pc)
                data = group.memory.views.bytes[place : place + size].tobytes()
                if group.accesses is not None:
                    group.accesses.memory.load_for_all(place, size, wave.members)
            if size < 4:
                wave.s[first] = int.from_bytes(data, "little", signed=sign) & 0xFFFFFFFF
            else:
                wave.s[first : first + size // 4] = np.frombuffer(data, np.uint32)

        return run

    return build


HANDLERS: dict[str, Handler] = {f"s_load_{name}": _scalar_load(size, sign=sign) for name, (size, sign) in SIZES.items()}


def handler_of(name: str) -> Handler | None:
    """Return the decoder for a global or flat load or store; None for any other name."""
    access = Access(name)
    if not access.known:
        return None
    if name.startswith(("global_", "flat_")):
        return _global(access, flat=name.startswith("flat_"))
    return None
