"""Read facts about a compiled kernel from a code object or from PTX: its registers, spills, memory and code."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from toolchain.catalog.gpus import any_gpu_of_flag
from toolchain.core.errors import KernelError
from toolchain_lab.emulator.codeobject import metadata_in
from toolchain_lab.examine.loaded_code import CodeObject
from toolchain_lab.examine.occupancy import Occupancy, allocated, occupancy

_RSRC1 = 48  # bytes; the offset of compute_pgm_rsrc1 in a kernel descriptor

# PTX is read line by line, because a pattern that spans several lines could take hours to match in a malicious file.
_LONGEST_LINE = 1 << 16
_TARGET = re.compile(r"\s*\.target\s+(\w+)")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_FUNCTION = re.compile(r"^(?!\s*\.extern\b).*\.func\b")
_THREADS = re.compile(r"\.(?:max|req)ntid\s+(\d{1,9})\b")
_SPACE = re.compile(r"\.(local|shared)\s")
_SIZE = re.compile(r"\[(\d{1,9})\]")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about a compiled kernel.

    For PTX, the numbers of registers and of spilled registers are None.

    Args:
        gpu: LLVM's name for the GPU; for PTX, the target.
        wave: the number of lanes in a wave; 32 for PTX.
        threads: the largest number of threads in a workgroup; for PTX, that along x, or 0 if it is not stated.
        vgpr: the number of vector registers that a wave uses, including AGPRs.
        lds: the size of a workgroup's LDS in bytes, including the LDS that a launch adds if this is known.
        scratch: the size of a lane's scratch memory in bytes.
        code: the size of the instructions in bytes; for PTX, the number of instructions.
        digest: the SHA-256 of the instructions, in hex.
        two_units: whether the kernel runs in workgroup processor mode.
        allocated: the number of vector registers that the kernel descriptor reserves, which limits the number of waves;
            0 if it is unknown.
        xnack: whether the kernel can only be loaded if XNACK is on, as for the target `gfx90a:xnack+`.
    """

    name: str
    gpu: str
    code: int
    digest: str
    wave: int = 32
    threads: int = 0
    vgpr: int | None = None
    agpr: int | None = None
    sgpr: int | None = None
    vgpr_spills: int | None = None
    sgpr_spills: int | None = None
    lds: int | None = None
    scratch: int | None = None
    two_units: bool = False
    xnack: bool = False
    allocated: int = 0

    @property
    def occupancy(self) -> Occupancy | None:
        """The occupancy of the kernel; None if its registers or its GPU are not known."""
        if self.vgpr is None:
            return None
        return occupancy(
            self.gpu, vgpr=max(self.vgpr, self.allocated), sgpr=self.sgpr or 0, lds=self.lds or 0, wave=self.wave,
            threads=self.threads, two_units=self.two_units,
        )  # fmt: skip

    @property
    def spills(self) -> int:
        return (self.vgpr_spills or 0) + (self.sgpr_spills or 0)

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON values, without `two_units`, `allocated` and `xnack`.

        `waves` is the occupancy, and `waves_by_registers` ignores LDS. Both are None if the occupancy is unknown.
        """
        row = asdict(self)
        del row["two_units"], row["allocated"], row["xnack"]
        there = self.occupancy
        waves = {"waves": there and there.waves, "waves_by_registers": there and there.registers}
        return {**row, **waves}


def read_object(content: bytes, where: str, *, shared: int | None = None) -> tuple[Facts, ...]:
    """Return the facts about each kernel in a code object.

    KernelError is raised if the code object is damaged, is for an unknown GPU, or contains no kernel.

    Args:
        shared: the number of bytes of LDS that a launch adds; None if it is unknown.
    """
    try:
        kernels = tuple(_kernels(CodeObject(content), len(content), shared or 0))
        if not kernels:
            raise ValueError("it has no kernel")
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise KernelError(
            "object-damaged",
            f"{where} is not a complete code object",
            why=str(error) if type(error) is ValueError else "a table or the metadata in it is damaged",
            fix="get it again, or compile it again",
        ) from error
    return kernels


def _kernels(elf: CodeObject, left: int, shared: int) -> Iterator[Facts]:
    gpu = any_gpu_of_flag(elf.mach)
    if gpu is None:
        raise ValueError(f"its GPU is unknown: EF_AMDGPU_MACH {elf.mach:#x}")
    metadata = next((value for note in elf.notes() if (value := metadata_in(note)) is not None), None)
    if metadata is None:
        raise ValueError("it has no metadata")
    names = set[str]()
    for row in metadata["amdhsa.kernels"]:
        name = str(row[".name"])
        place, size = elf.code_range(name)
        left -= size
        if name in names or left < 0:
            raise ValueError("its kernels overlap")  # a malicious file could otherwise list a large kernel many times
        names.add(name)
        code = elf.loaded(place, size)
        descriptor, _ = elf.symbols[str(row.get(".symbol", f"{name}.kd"))]
        (rsrc1,) = struct.unpack("<I", elf.loaded(descriptor + _RSRC1, 4))
        wave = _count(row, ".wavefront_size")
        if wave not in {32, 64}:
            raise ValueError(f"its waves have {wave} lanes")
        yield Facts(
            name=name,
            gpu=gpu,
            xnack=str(metadata.get("amdhsa.target", "")).endswith("xnack+") and not gpu.startswith("gfx125"),
            code=size,
            digest=hashlib.sha256(code).hexdigest(),
            wave=wave,
            threads=_count(row, ".max_flat_workgroup_size"),
            vgpr=_count(row, ".vgpr_count"),
            agpr=_count(row, ".agpr_count", 0),
            sgpr=_count(row, ".sgpr_count"),
            vgpr_spills=_count(row, ".vgpr_spill_count", 0),
            sgpr_spills=_count(row, ".sgpr_spill_count", 0),
            lds=_count(row, ".group_segment_fixed_size") + shared,
            scratch=_count(row, ".private_segment_fixed_size"),
            two_units=bool(row.get(".workgroup_processor_mode", 0)),
            allocated=allocated(gpu, rsrc1, wave),
        )


def _count(row: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = row.get(name, default)
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"its metadata has no valid {name}")
    return int(value)


def read_ptx(text: str, where: str) -> tuple[Facts, ...]:
    """Return the facts about each kernel in a PTX file. Registers are unknown, because the driver allocates them later.

    The result is empty for a file that contains only functions, which is linked with others.

    KernelError is raised if the file names no target, contains neither a kernel nor a function, has no `}` after the
    last one, or contains a line of more than 65,536 characters.
    """
    target, kernels, above = "", list[_Entry](), 0
    functions, inside = 0, False  # the number of functions, and whether the last one still lacks its `}`
    for line in text.splitlines():
        if len(line) > _LONGEST_LINE:
            raise _not_ptx(where, f"a line has {len(line)} characters, and the limit is {_LONGEST_LINE}")
        if not target and (match := _TARGET.match(line)):
            target = match[1]
        if match := _ENTRY.search(line):
            kernels.append(_Entry(match[1]))
        elif _FUNCTION.match(line):
            functions, inside = functions + 1, True
        inside = inside and "}" not in line
        if kernels:
            kernels[-1].take(line)
        elif (space := _space(line)) is not None and space[0] == "shared":
            above += space[1]
    if target and functions and not inside and not kernels:
        return ()
    if not target or not kernels or not kernels[-1].closed:
        why = "it has no complete .entry" if target else "it has no .target"
        raise _not_ptx(where, why)
    return tuple(
        Facts(
            name=kernel.name,
            gpu=target,
            code=kernel.code,
            digest=kernel.digest.hexdigest(),
            threads=kernel.threads,
            lds=kernel.space["shared"] + above,
            scratch=kernel.space["local"],
        )
        for kernel in kernels
    )


def _not_ptx(where: str, why: str) -> KernelError:
    return KernelError("ptx-damaged", f"{where} is not a complete PTX file", why=why, fix="compile it again")


class _Entry:
    """A collector for the facts about a kernel in the lines of a PTX file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.code = 0
        self.digest = hashlib.sha256()
        self.threads = 0
        self.space = {"local": 0, "shared": 0}
        self.closed = False

    def take(self, line: str) -> None:
        """Read the next line of the kernel."""
        self.closed = self.closed or "}" in line
        if not self.threads and (match := _THREADS.search(line)):
            self.threads = int(match[1])
        if (space := _space(line)) is not None:
            self.space[space[0]] += space[1]
        plain = line.partition("//")[0].strip()
        if plain.endswith(";") and not plain.startswith((".loc", ".file", ".reg")):
            self.digest.update(f"\n{plain}".encode() if self.code else plain.encode())
            self.code += 1


def _space(line: str) -> tuple[str, int] | None:
    # The number of elements is the size in bytes, because LLVM declares these arrays with elements of one byte.
    if (match := _SPACE.search(line)) is None or (size := _SIZE.search(line, match.end())) is None:
        return None
    return match[1], int(size[1])
