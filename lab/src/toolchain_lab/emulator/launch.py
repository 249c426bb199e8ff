"""The launch of a kernel, with its arguments, the workgroups that run, and the resulting buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain_lab.emulator.bits import Array, round_bf16
from toolchain_lab.emulator.codeobject import CodeObject
from toolchain_lab.emulator.errors import LaunchError, NotEmulatedError
from toolchain_lab.emulator.memory import Memory
from toolchain_lab.emulator.placement import ACROSS, Placement
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.workgroup import MOST_INSTRUCTIONS, Place, Workgroup

# These are the `struct` formats of arguments, by the name of the type (see `Parameter.type`). `_packed` makes negative
# integers unsigned.
_FORMATS = {
    **{f"{letter}{8 * size}": form for letter in "iub" for size, form in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))},
    "i1": "B", "bf16": "H", "fp16": "e", "fp32": "f", "fp64": "d",
}  # fmt: skip
POINTER = "*"
HIDDEN = "hidden_"
MOST_WORKGROUPS = 65536
Value = Array | int | float | None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A run-time parameter of a kernel.

    Args:
        type: Triton's name for the type, such as `*fp16` or `i32`. If the type is unknown, `*` stands for a pointer,
            and `bN` for a value of N bits.
        optional: whether the argument may be omitted, as for the pointers that Triton appends.
        offset: the offset in the argument block, from the object's metadata; by default, the argument follows the one
            before it.
    """

    name: str
    type: str
    optional: bool = False
    offset: int | None = None

    @property
    def pointer(self) -> bool:
        return self.type.startswith(POINTER)

    @property
    def element(self) -> str:
        """The element type of a pointer, or an empty string if the type is unknown."""
        return self.type.removeprefix(POINTER)

    @property
    def untyped(self) -> bool:
        return self.type.removeprefix("b").isdigit()

    def place(self, end: int) -> int:
        """Return the offset in the argument block; `end` is the end of the argument before."""
        return end + -end % struct.calcsize("<" + self.format) if self.offset is None else max(end, self.offset)

    @property
    def format(self) -> str:
        """The `struct` format of the argument; NotEmulatedError is raised for an unsupported type."""
        if self.pointer:
            return "Q"
        if self.type not in _FORMATS:
            raise NotEmulatedError(
                "argument-type-unknown",
                f"the type {self.type} of argument {self.name} is not supported",
                fix="report it with the code object",
            )
        return _FORMATS[self.type]


@dataclass(frozen=True)
class Launched:
    """The result of a launch.

    Args:
        buffers: the contents of the buffers after the launch, by parameter name.
        instructions: the number of instructions that all waves executed.
    """

    buffers: Mapping[str, Array]
    instructions: int

    def changed(self, name: str, before: Value) -> int:
        """Return how many elements of a buffer have changed. Bits are compared, so that NaN is equal to itself."""
        buffer = self.buffers[name]
        bits = f"u{buffer.itemsize}"
        return int((buffer.view(bits) != np.ascontiguousarray(before).view(bits)).sum())


@dataclass(frozen=True)
class Launch:
    """The parameters of a launch.

    Args:
        values: the argument for each parameter, by name: an array for a pointer, None for a null pointer, or a number.
        grid: the number of workgroups along x, y and z.
        waves: the number of waves in a workgroup.
        lds: the minimum size of each workgroup's LDS in bytes; the code object may require more.
        only: the ids of the workgroups that run; by default, all workgroups of the grid run.
    """

    parameters: Sequence[Parameter]
    values: Mapping[str, Value]
    grid: Place
    waves: int
    lds: int
    only: Sequence[Place] | None = None

    def places(self) -> Iterable[Place]:
        """Return the ids of the workgroups that run; raise LaunchError if the grid or one of the ids is invalid."""
        x, y, z = self.grid
        if min(self.grid) < 1:
            raise LaunchError(
                "grid-invalid", f"a grid of {x} x {y} x {z} has no workgroup", fix="give numbers that are at least 1"
            )
        if self.only is not None:
            for place in self.only:
                if any(not 0 <= number < size for number, size in zip(place, self.grid, strict=True)):
                    raise LaunchError(
                        "workgroup-outside-grid",
                        f"workgroup {place} is outside of the grid",
                        why=f"the grid has {x} x {y} x {z} workgroups, numbered from 0",
                        fix="give the number of a workgroup in the grid",
                    )
            return self.only
        if x * y * z > MOST_WORKGROUPS:
            raise LaunchError(
                "grid-invalid",
                f"a grid of {x} x {y} x {z} is too large",
                why=f"one launch runs at most {MOST_WORKGROUPS} workgroups",
                fix="select the workgroups that should run: --workgroup X,Y,Z",
            )
        return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def argument_block(parameters: Sequence[Parameter], values: Mapping[str, float], size: int) -> bytes:
    """Return the argument block that the AMDGPU ABI defines, in which each argument is aligned to its size.

    An argument with a known offset is at this offset.

    Args:
        values: the number for each parameter; for a pointer, its address.
        size: the size of the block in bytes; unused bytes are 0.
    """
    block = bytearray()
    for parameter in parameters:
        if parameter.name not in values:
            raise LaunchError(
                "arguments-missing", f"argument {parameter.name} has no value", fix="give a value for each argument"
            )
        block += b"\0" * (parameter.place(len(block)) - len(block))
        value = values[parameter.name]
        try:
            block += _packed(parameter, value)
        except (struct.error, OverflowError, ValueError) as error:
            raise LaunchError(
                "argument-invalid",
                f"argument {parameter.name} cannot be {value}",
                why=f"the type of the argument is {parameter.type}",
                fix="give a value in the range of that type",
            ) from error
    if len(block) > size:
        raise NotEmulatedError(
            "arguments-unfit",
            "the arguments do not fit the kernel",
            why=f"they need {len(block)} bytes, and the kernel has {size} bytes of arguments",
            fix="check the types of the arguments: --signature",
        )
    return bytes(block) + b"\0" * (size - len(block))


def _packed(parameter: Parameter, value: float) -> bytes:
    form = "<" + parameter.format
    if parameter.type == "bf16":
        return round_bf16(np.asarray(value, np.float32)).tobytes()
    if form[1] in "efd":
        return struct.pack(form, float(value))
    number, bits = int(value), 8 * struct.calcsize(form)
    return struct.pack(form, number + (1 << bits) if -(1 << bits - 1) <= number < 0 else number)


def check_parameters(code: CodeObject, parameters: Sequence[Parameter]) -> None:
    """Raise NotEmulatedError if a type is unsupported, or the parameters do not match the kernel's metadata."""
    place, expected = 0, []
    for parameter in parameters:
        size = struct.calcsize("<" + parameter.format)
        place = parameter.place(place)
        expected.append((place, size, "global_buffer" if parameter.pointer else "by_value"))
        place += size
    # Triton appends arguments that point to its scratch memory; the signature does not list them.
    arguments = [(a.offset, a.size, a.kind) for a in code.arguments if not a.kind.startswith(HIDDEN)]
    extra = arguments[len(expected) :]
    if arguments[: len(expected)] != expected or any(size != 8 for _, size, _ in extra):
        odd = next((k for k, (a, b) in enumerate(zip(arguments, expected, strict=False)) if a != b), len(arguments))
        name = parameters[odd].name if odd < len(parameters) else "its end"
        raise NotEmulatedError(
            "kernel-signature-mismatch",
            f"the signature does not match {code.kernel}",
            why=f"it has {len(expected)} arguments, and the object has {len(arguments)}; they differ at {name}",
            fix="use the JSON file that was written with the object",
        )


def _with_hidden(code: CodeObject, launch: Launch, block: bytes, random: np.random.Generator) -> bytes:
    """Return the argument block with its hidden arguments; those whose value is unknown get random bytes."""
    known = {
        **{f"block_count_{axis}": count for axis, count in zip("xyz", launch.grid, strict=True)},
        "group_size_x": code.workgroup_size, "group_size_y": 1, "group_size_z": 1, "grid_dims": 3,
        **{f"{name}_{axis}": 0 for name in ("remainder", "global_offset") for axis in "xyz"},
    }  # fmt: skip
    filled = bytearray(block)
    for argument in code.arguments:
        if argument.kind.startswith(HIDDEN):
            value = known.get(argument.kind.removeprefix(HIDDEN))
            size = argument.size
            filled[argument.offset : argument.offset + size] = (
                random.bytes(size) if value is None else value.to_bytes(max(size, 8), "little")[:size]
            )
    return bytes(filled)


def run(
    program: Program,
    launch: Launch,
    *,
    reverse: bool = False,
    seed: int = 0,
    limit: int = MOST_INSTRUCTIONS,
    placement: Placement = ACROSS,
) -> Launched:
    """Launch a kernel, and return the contents of its buffers and the number of executed instructions.

    Args:
        reverse: whether waves that run one after the other do so in descending order; data races in LDS are then not
            detected.
        seed: the seed for the initial contents of registers, LDS, scratch memory and the gaps between buffers, and for
            hidden arguments whose value is unknown.
        limit: the number of instructions that the waves of a workgroup may execute before FaultyKernelError is raised.
    """
    random = np.random.default_rng(seed)
    code = program.code
    size = code.descriptor.kernarg
    given = [p.name for p in launch.parameters if p.pointer and isinstance(launch.values.get(p.name), np.ndarray)]
    names = list(dict.fromkeys(given))
    arrays = [np.ascontiguousarray(launch.values[name]) for name in names]
    writable = [True] * len(arrays) + [False]
    held = [*arrays, np.zeros(size + 64, np.uint8)]
    memory = Memory(held, random=random, writable=writable, names=names, placement=placement)
    addresses = dict(zip(names, memory.addresses, strict=False))
    numbers: dict[str, float] = {}
    for parameter in launch.parameters:
        value = launch.values.get(parameter.name)
        if parameter.name in addresses:
            numbers[parameter.name] = addresses[parameter.name]
        elif parameter.pointer and value is None:
            numbers[parameter.name] = 0
        elif isinstance(value, (int, float, np.integer, np.floating)):
            numbers[parameter.name] = value.item() if isinstance(value, np.generic) else value
    block = argument_block(launch.parameters, numbers, size)
    block = _with_hidden(code, launch, block, random)
    memory.write(len(arrays), block)
    count = 0
    for place in launch.places():
        group = Workgroup(
            program,
            memory,
            arguments=block,
            argument_address=memory.addresses[-1],
            waves=launch.waves,
            lds=max(launch.lds, code.descriptor.lds),
            place=place,
            random=random,
            watch=not reverse,
            code_address=placement.code_address(code.entry),
            cleared=placement.cleared,
        )
        count += group.run(reverse=reverse, limit=limit)
    buffers = {
        name: np.frombuffer(memory.content(number), array.dtype).reshape(array.shape)
        for number, (name, array) in enumerate(zip(names, arrays, strict=True))
    }
    return Launched(buffers, count)
