"""A reader for AMD code objects."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from toolchain_lab.emulator.errors import CodeObjectError, NotEmulatedError
from toolchain_lab.emulator.messagepack import unpack

_NOTE_METADATA = 32  # the note type NT_AMDGPU_METADATA
_MACH_MASK = 0xFF
_LARGEST_IMAGE = 32 << 20  # bytes; the limit for the loaded segments
_DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")


@dataclass(frozen=True)
class Descriptor:
    """A kernel descriptor of the AMDGPU ABI, for code object version 3 and later.

    Args:
        lds, scratch, kernarg: the sizes in bytes of a workgroup's LDS, a lane's scratch memory and the argument block.
        rsrc1, rsrc2, rsrc3: the values of the registers COMPUTE_PGM_RSRC1 to COMPUTE_PGM_RSRC3.
        properties: the field `kernel_code_properties`.
        preload_length: the number of 32-bit words of the arguments that are loaded into SGPRs before the kernel starts.
        preload_offset: the index of the first word that is loaded into SGPRs.
    """

    lds: int
    scratch: int
    kernarg: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload_length: int
    preload_offset: int

    @property
    def user_sgprs(self) -> int:
        """The number of user SGPRs."""
        return (self.rsrc2 >> 1) & 31

    @property
    def float_mode(self) -> int:
        """The rounding and denormal modes, encoded as in the MODE register."""
        return (self.rsrc1 >> 12) & 0xFF

    @property
    def workgroup_ids(self) -> tuple[bool, bool, bool]:
        """Whether the kernel needs each of the workgroup's ids x, y and z."""
        return bool(self.rsrc2 >> 7 & 1), bool(self.rsrc2 >> 8 & 1), bool(self.rsrc2 >> 9 & 1)

    @property
    def wave32(self) -> bool:
        return bool(self.properties >> 10 & 1)

    @property
    def dynamic_stack(self) -> bool:
        return bool(self.properties >> 11 & 1)


@dataclass(frozen=True)
class Argument:
    """An argument in the metadata of a code object.

    Args:
        offset, size: the offset in the argument block, and the size, in bytes.
        kind: the metadata's `.value_kind`, such as `by_value`, `global_buffer` or `hidden_group_size_x`.
        name: the argument's name; empty if the metadata gives none.
    """

    offset: int
    size: int
    kind: str
    name: str = ""


@dataclass(frozen=True)
class CodeObject:
    """A kernel in a code object.

    Args:
        gpu: LLVM's name for the GPU, such as `gfx942`.
        entry: the address of the first instruction.
        image: the contents of memory from address 0, after the segments are loaded.
        arguments: all arguments, in order, including hidden ones.
        workgroup_size: the largest number of threads in a workgroup.
        descriptors: the descriptors of all kernels in the file, by the address of their first instruction.
        target: the GPU with its features, such as `gfx942:xnack+`.
    """

    path: Path
    gpu: str
    kernel: str
    entry: int
    image: bytes
    descriptor: Descriptor
    arguments: tuple[Argument, ...]
    workgroup_size: int
    descriptors: Mapping[int, Descriptor] = field(default_factory=dict)
    target: str = ""

    def not_emulated(self, why: str) -> NotEmulatedError:
        """Return the error for a kernel that the emulator cannot run; `why` names the missing feature."""
        what = f"the emulator does not support {self.kernel}"
        return NotEmulatedError("kernel-not-emulated", what, why=why, fix="report it with the code object")


def load(
    path: Path,
    gpu_of_flag: Callable[[int], str | None],
    kernel: str | None = None,
    *,
    first: bool = False,
    opened: Callable[[Path], AbstractContextManager[BinaryIO]] = lambda path: path.open("rb"),
) -> CodeObject:
    """Read a code object, and return one of its kernels.

    Args:
        gpu_of_flag: a function that returns LLVM's name for the GPU with an EF_AMDGPU_MACH value, or None if the value
            is unknown.
        kernel: the kernel's name; it can be omitted if the object contains only one kernel.
        first: whether to return the first kernel if `kernel` is omitted and the object contains several.
        opened: a function that returns a context manager for the open file. Reading from the file may raise ValueError.
    """
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - most verbs read no code object
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    try:
        with opened(path) as stream:
            if stream.read(4) != b"\x7fELF":
                raise ValueError("it is not an ELF file")
            elf = ELFFile(stream)
            if elf.elfclass != 64 or elf["e_machine"] not in (224, "EM_AMDGPU"):
                raise ValueError(
                    f"it is an ELF{elf.elfclass} file for machine {elf['e_machine']}, not an AMDGPU ELF64 file"
                )
            mach = int(elf["e_flags"]) & _MACH_MASK
            gpu = gpu_of_flag(mach)
            if gpu is None:
                raise NotEmulatedError(
                    "object-gpu-unknown",
                    f"{path.name} is for an unknown GPU",
                    why=f"EF_AMDGPU_MACH is {mach:#x}",
                    fix="compile it for a known GPU",
                )
            _require_segments(elf, stream.seek(0, 2))
            image = _image(elf)
            symbols = {str(symbol.name): int(symbol["st_value"]) for symbol in _symbols(elf)}
            metadata = _metadata(elf)
            names = sorted(name[:-3] for name in symbols if name.endswith(".kd"))
            name = _choose(path, names[:1] if first and kernel is None else names, kernel)
            about = next((row for row in metadata["amdhsa.kernels"] if row[".name"] == name), None)
            if about is None:
                raise ValueError(f"its metadata does not describe the kernel {name}")
            place = symbols[f"{name}.kd"]
            descriptor, entry = _descriptor(image, place)
            # An assembler leaves the size out of the descriptor unless the source states it, as in AITER's objects.
            kernarg = max(descriptor.kernarg, operator.index(about.get(".kernarg_segment_size", 0)))
            target = str(metadata.get("amdhsa.target", "")).rpartition("--")[2]
            return CodeObject(
                path=path,
                gpu=gpu,
                target=target if target.partition(":")[0] == gpu else gpu,
                kernel=name,
                entry=place + entry,
                image=image,
                descriptor=replace(descriptor, kernarg=kernarg),
                arguments=tuple(
                    Argument(
                        operator.index(row[".offset"]),
                        operator.index(row[".size"]),
                        str(row[".value_kind"]),
                        str(row.get(".name", "")),
                    )
                    for row in about[".args"]
                ),
                workgroup_size=operator.index(about[".max_flat_workgroup_size"]),
                descriptors=_descriptors(image, [at for name, at in symbols.items() if name.endswith(".kd")]),
            )
    except OSError as error:
        raise CodeObjectError(
            "object-unreadable", f"{path} cannot be read", why=str(error.strerror), fix="check the path"
        ) from error
    except (
        ELFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        ArithmeticError,
        struct.error,
    ) as error:
        why = str(error) if type(error) is ValueError else "one of its tables or its metadata is damaged"
        raise CodeObjectError(
            "object-damaged",
            f"{path} is not a complete code object",
            why=why,
            fix="name a code object for an AMD GPU, or compile it again",
        ) from error


def _require_segments(elf: Any, size: int) -> None:
    """Raise ValueError if a segment extends beyond the file, because reading it would allocate its claimed size."""
    for segment in elf.iter_segments():
        if segment["p_offset"] + segment["p_filesz"] > size:
            raise ValueError(f"a segment extends beyond the end of the file, which has {size} bytes")


def _symbols(elf: Any) -> Iterable[Any]:
    symbols: Iterable[Any] = elf.get_section_by_name(".dynsym").iter_symbols()
    return symbols


def _image(elf: Any) -> bytes:
    segments = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
    size = max((int(segment["p_vaddr"]) + int(segment["p_memsz"]) for segment in segments), default=0)
    if size > _LARGEST_IMAGE:
        raise ValueError(f"its segments take {size} bytes, and the limit is {_LARGEST_IMAGE}")
    image = bytearray(size)
    for segment in segments:
        place = int(segment["p_vaddr"])
        image[place : place + int(segment["p_filesz"])] = segment.data()
    return bytes(image)


def _metadata(elf: Any) -> dict[str, Any]:
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_NOTE" and (content := metadata_in(segment.data())) is not None:
            return content
    raise ValueError("it has no AMDGPU metadata note")


def metadata_in(notes: bytes) -> dict[str, Any] | None:
    """Return the AMDGPU metadata in the notes of a segment; None if no note contains a map of metadata.

    An object that was linked from several, as in hipBLASLt, has a note from each of them. The result lists the kernels
    of all, and has the other values of the first. ValueError, TypeError or AttributeError is raised if the metadata is
    damaged.
    """
    place = 0
    found: list[dict[str, Any]] = []
    while place + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, place)
        start = place + 12 + (name_size + 3) // 4 * 4
        if kind == _NOTE_METADATA and notes[place + 12 : place + 12 + name_size].rstrip(b"\0") == b"AMDGPU":
            content = unpack(notes[start : start + size])
            if isinstance(content, dict):
                found.append(content)
        place = start + (size + 3) // 4 * 4
    for other in found[1:]:
        found[0].setdefault("amdhsa.kernels", []).extend(other.get("amdhsa.kernels", []))
    return found[0] if found else None


def _choose(path: Path, names: list[str], kernel: str | None) -> str:
    if kernel is not None and kernel not in names:
        raise CodeObjectError(
            "kernel-not-in-object",
            f"{path.name} has no kernel {kernel}",
            why=f"its kernels: {', '.join(names) or 'none'}",
            fix="choose one of these",
        )
    if kernel is None and len(names) > 1:
        raise NotEmulatedError(
            "several-kernels",
            f"{path.name} has {len(names)} kernels",
            why=f"its kernels: {', '.join(names)}",
            fix="choose one: toolchain emulate --kernel NAME",
        )
    if not names:
        raise ValueError("it has no kernel descriptor")
    return kernel or names[0]


def _descriptors(image: bytes, places: Iterable[int]) -> dict[int, Descriptor]:
    """Return the descriptors at some addresses, by the kernel's entry; those outside of the image are omitted."""
    found = {place: _descriptor(image, place) for place in places if 0 <= place <= len(image) - _DESCRIPTOR.size}
    return {place + entry: descriptor for place, (descriptor, entry) in found.items()}


def _descriptor(image: bytes, place: int) -> tuple[Descriptor, int]:
    lds, scratch, kernarg, entry, rsrc3, rsrc1, rsrc2, properties, preload = _DESCRIPTOR.unpack_from(image, place)
    descriptor = Descriptor(
        lds=lds,
        scratch=scratch,
        kernarg=kernarg,
        rsrc1=rsrc1,
        rsrc2=rsrc2,
        rsrc3=rsrc3,
        properties=properties,
        preload_length=preload & 0x7F,
        preload_offset=preload >> 7,
    )
    return descriptor, entry
