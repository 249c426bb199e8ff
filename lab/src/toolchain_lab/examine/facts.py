"""Facts of a compiled kernel: registers, spills, memory and code, from a code object or from PTX."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from toolchain.catalog.gpus import gpu_of_flag
from toolchain.core.errors import KernelError
from toolchain.kernels.codeobject import EM_AMDGPU
from toolchain_lab.emulator.codeobject import metadata_in
from toolchain_lab.examine.occupancy import Occupancy, allocated, occupancy

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE, _DYNSYM, _LOAD = 4, 11, 1
_RSRC1 = 48  # bytes into a kernel's descriptor
_MOST = 4096  # sections and segments; a code object has some twenty

_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_NUMBER = {
    "threads": re.compile(r"\.(?:max|req)ntid\s+(\d+)"),
    "scratch": re.compile(r"\.local\s+[^;\n]*?\[(\d+)\]"),
    "lds": re.compile(r"\.shared\s+[^;\n]*?\[(\d+)\]"),
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A kernel. A value is None if its form does not have it: PTX has no registers yet.

    Args:
        gpu: LLVM's name; for PTX its target.
        wave: lanes.
        threads: most of a workgroup.
        vgpr: vector registers of a wave, accumulation registers included.
        vgpr_spills, sgpr_spills: registers that were spilled.
        lds: bytes of a workgroup, including those of the launch if known.
        scratch: bytes of a lane.
        code: bytes of instructions; of PTX its instructions.
        digest: of the instructions.
        two_units: whether it runs in workgroup processor mode.
        allocated: vector registers that its descriptor asks for, which bound the waves.
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
    allocated: int = 0

    @property
    def occupancy(self) -> Occupancy | None:
        """None if the registers or the GPU are not known."""
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
        """For `--json`; `waves` is the occupancy, `waves_by_registers` without LDS."""
        row = asdict(self)
        del row["two_units"], row["allocated"]
        there = self.occupancy
        waves = {"waves": there and there.waves, "waves_by_registers": there and there.registers}
        return {**row, **waves}


def read_object(content: bytes, where: str, *, shared: int | None = None) -> tuple[Facts, ...]:
    """The kernels of a code object.

    Args:
        where: for messages.
        shared: bytes of LDS that a launch adds.

    Raises:
        KernelError: it is damaged, for an unknown GPU, or has no kernel.
    """
    try:
        if content[:4] != b"\x7fELF" or content[18:20] != EM_AMDGPU.to_bytes(2, "little"):
            raise ValueError("it is not an ELF file for AMDGPU")
        kernels = tuple(_kernels(content, shared or 0))
        if not kernels:
            raise ValueError("it holds no kernel")
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise KernelError(
            f"{where} is not a complete code object",
            why=str(error) or type(error).__name__,
            fix="get it again, or compile it again",
        ) from error
    return kernels


def _kernels(content: bytes, shared: int) -> Iterator[Facts]:
    head = _HEADER.unpack_from(content)
    segments, sections, flags = head[5], head[6], head[7]
    gpu = gpu_of_flag(flags & 0xFF)
    if gpu is None:
        raise ValueError(f"its GPU is unknown: EF_AMDGPU_MACH {flags & 0xFF:#x}")
    if max(head[10], head[12]) > _MOST:
        raise ValueError("it has too many sections")
    loads = [_SEGMENT.unpack_from(content, segments + at * _SEGMENT.size) for at in range(head[10])]
    tables = [_SECTION.unpack_from(content, sections + at * _SECTION.size) for at in range(head[12])]
    symbols = _symbols(content, tables)
    for row in _metadata(content, loads)["amdhsa.kernels"]:
        name = str(row[".name"])
        place, size = symbols[name]
        code = _loaded(content, loads, place, size)
        descriptor, _ = symbols[str(row.get(".symbol", f"{name}.kd"))]
        (rsrc1,) = struct.unpack("<I", _loaded(content, loads, descriptor + _RSRC1, 4))
        wave = int(row[".wavefront_size"])
        yield Facts(
            name=name,
            gpu=gpu,
            code=size,
            digest=hashlib.sha256(code).hexdigest(),
            wave=wave,
            threads=int(row[".max_flat_workgroup_size"]),
            vgpr=int(row[".vgpr_count"]),
            agpr=int(row.get(".agpr_count", 0)),
            sgpr=int(row[".sgpr_count"]),
            vgpr_spills=int(row.get(".vgpr_spill_count", 0)),
            sgpr_spills=int(row.get(".sgpr_spill_count", 0)),
            lds=int(row[".group_segment_fixed_size"]) + shared,
            scratch=int(row[".private_segment_fixed_size"]),
            two_units=bool(row.get(".workgroup_processor_mode", 0)),
            allocated=allocated(gpu, rsrc1, wave),
        )


def _cut(content: bytes, start: int, size: int) -> bytes:
    piece = content[start : start + size]
    if len(piece) != size:
        raise ValueError(f"it ends early: {len(content)} bytes, {start + size} are named")
    return piece


def _symbols(content: bytes, tables: list[tuple[Any, ...]]) -> dict[str, tuple[int, int]]:
    table = next((row for row in tables if row[1] == _DYNSYM), None)
    if table is None:
        raise ValueError("it has no table of symbols")
    names = _cut(content, tables[table[6]][4], tables[table[6]][5])
    symbols = {}
    for name, _, _, _, value, size in _SYMBOL.iter_unpack(_cut(content, table[4], table[5] // 24 * 24)):
        symbols[names[name : names.index(b"\0", name)].decode()] = (value, size)
    return symbols


def _loaded(content: bytes, loads: list[tuple[Any, ...]], place: int, size: int) -> bytes:
    for kind, _, offset, address, _, inside, _, _ in loads:
        if kind == _LOAD and address <= place and place + size <= address + inside:
            return _cut(content, offset + place - address, size)
    raise ValueError("its code is in no segment")


def _metadata(content: bytes, segments: list[tuple[Any, ...]]) -> dict[str, Any]:
    for kind, _, offset, _, _, size, _, _ in segments:
        if kind == _NOTE and (value := metadata_in(_cut(content, offset, size))) is not None:
            return value
    raise ValueError("it has no metadata")


def read_ptx(text: str, where: str) -> tuple[Facts, ...]:
    """The kernels of a PTX file, as far as its text has them: registers are allocated later.

    Raises:
        KernelError: it names no target, or holds no kernel.
    """
    target = _TARGET.search(text)
    starts = list(_ENTRY.finditer(text))
    if target is None or not starts or "}" not in text[starts[-1].end() :]:
        why = "it names no .target" if target is None else "it holds no whole .entry"
        raise KernelError(f"{where} is not a complete PTX", why=why, fix="compile it again")
    above = text[: starts[0].start()]
    kernels = []
    for at, entry in enumerate(starts):
        body = text[entry.start() : starts[at + 1].start() if at + 1 < len(starts) else len(text)]
        lines = [line.partition("//")[0].strip() for line in body.splitlines()]
        code = [line for line in lines if line.endswith(";") and not line.startswith((".loc", ".file", ".reg"))]
        numbers = {name: form.findall(body) for name, form in _NUMBER.items()}
        shared = numbers["lds"] + _NUMBER["lds"].findall(above)
        kernels.append(
            Facts(
                name=entry[1],
                gpu=target[1],
                code=len(code),
                digest=hashlib.sha256("\n".join(code).encode()).hexdigest(),
                threads=int((numbers["threads"] or [0])[0]),
                lds=sum(map(int, shared)),
                scratch=sum(map(int, numbers["scratch"])),
            )
        )
    return tuple(kernels)
