"""Code objects have the same instructions if they differ in addresses, symbols and metadata alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolchain.cli.app import app
from toolchain_lab import bridge
from toolchain_lab.emulator.codeobject import metadata_in
from toolchain_lab.emulator.disassembly import VARIABLE
from toolchain_lab.emulator.errors import CodeObjectError
from toolchain_lab.examine.facts import read_object

ASSEMBLY = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.section .rodata,"a",@progbits
{names}
.type table,@object
table:
  .long {number}
  .long 2
.size table, 8
{pad}
.text
.globl {kernel}
.p2align 8
.type {kernel},@function
{kernel}:
  s_getpc_b64 s[4:5]
  s_add_u32 s4, s4, table@rel32@lo+4
  s_addc_u32 s5, s5, table@rel32@hi+12
  s_load_dword s6, s[4:5], 0x0
  s_waitcnt lgkmcnt(0)
  v_mov_b32_e32 v0, {register}
  s_endpgm
{size}
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel {kernel}
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 8
  .amdhsa_accum_offset 8
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: {kernel}
    .symbol: {kernel}.kd
    .args: []
    .kernarg_segment_size: {kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 8
    .vgpr_count: 8
    .max_flat_workgroup_size: 256
amdhsa.target: amdgcn-amd-amdhsa--gfx942
...
.end_amdgpu_metadata
"""


def assemble(
    folder: Path,
    *,
    pad: int = 0,
    names: str = "",
    number: int = 1,
    register: str = "s6",
    kernarg: int = 8,
    size: str = ".size k, .-k",
) -> None:
    text = ASSEMBLY.format(
        pad=f".zero {pad}" if pad else "", names=names, number=number, register=register, kernarg=kernarg, kernel="k",
        size=size,
    )  # fmt: skip
    link(folder / "gfx942", text)


def link(place: Path, text: str) -> Path:
    """Assemble a text for the GPU that its folder names, and return the code object."""
    from triton._C.libtriton import amd, llvm  # noqa: PLC0415 - the import takes a second

    llvm.init_targets()
    place.mkdir(parents=True)
    (place / "k.o").write_bytes(amd.assemble_amdgcn(text, place.name, ""))
    amd.link_hsaco(str(place / "k.o"), str(place / "k.hsaco"))
    (place / "k.o").unlink()
    return place / "k.hsaco"


def compared(tmp_path: Path) -> tuple[dict[str, int], str]:
    done = CliRunner().invoke(app, ["kernels", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert done.exit_code == 0, done.output
    counts = json.loads(done.stdout)["counts"]
    return {status: count for status, count in counts.items() if count}, done.stderr


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "same"),
        ({"kernarg": 16}, "same_instructions"),  # metadata
        ({"pad": 512}, "same_instructions"),  # the data have another address, so the bytes of the code differ
        ({"pad": 512, "names": ".globl first\nfirst:"}, "same_instructions"),  # one more symbol
        ({"pad": 512, "number": 7}, "same_instructions"),  # the data themselves are not compared
        ({"register": "s7"}, "changed"),
        ({"pad": 512, "register": "s7"}, "changed"),
    ],
)
def test_only_instructions_are_compared(tmp_path: Path, change: dict[str, int | str], status: str) -> None:
    assemble(tmp_path / "a")
    assemble(tmp_path / "b", **change)  # type: ignore[arg-type]
    assert compared(tmp_path)[0] == {status: 1}


def test_kernels_that_differ_are_disassembled_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, Any]] = [*({"register": f"s{number}"} for number in range(5)), {"pad": 512}]
    for number, change in enumerate([*changes, {"pad": 512, "register": "s7"}]):
        for side, its in (("a", {}), ("b", change)):
            assemble(tmp_path / "made", **its)
            (tmp_path / side / "gfx942").mkdir(parents=True, exist_ok=True)
            (tmp_path / "made" / "gfx942" / "k.hsaco").rename(tmp_path / side / "gfx942" / f"{number}.hsaco")
            (tmp_path / "made" / "gfx942").rmdir()
    program = tmp_path / "llvm-objdump"
    program.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/calls\nexec {bridge.disassembler().path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(program))
    assert compared(tmp_path)[0] == {"same_instructions": 1, "changed": 6}
    # The two kernels with other addresses of data are also disassembled as a whole.
    assert (tmp_path / "calls").read_text().split() == ["--version", "-d", "-d", "-d"]


@pytest.mark.parametrize(("register", "status"), [("s6", "same_instructions"), ("s7", "changed")])
def test_code_without_a_stated_size_is_compared(tmp_path: Path, register: str, status: str) -> None:
    """AITER's objects state no size for their kernels."""
    assemble(tmp_path / "a", size="")
    assemble(tmp_path / "b", size="", pad=512, register=register)
    assert compared(tmp_path)[0] == {status: 1}


def test_missing_disassembler_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble(tmp_path / "a")
    assemble(tmp_path / "b", pad=512)
    monkeypatch.setenv(VARIABLE, "/nowhere")
    counts, note = compared(tmp_path)
    assert counts == {"changed": 1}
    assert "llvm-objdump" in note


SECOND = """
.text
.type second,@function
.globl second
second:
  s_endpgm
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel second
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 8
  .amdhsa_accum_offset 8
.end_amdhsa_kernel
"""


def test_instructions_of_object_with_several_kernels_are_listed(tmp_path: Path) -> None:
    assemble(tmp_path, names=SECOND)
    path = str(tmp_path / "gfx942" / "k.hsaco")
    done = CliRunner().invoke(app, ["emulate", path, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["instructions"]["s_endpgm"] == 2
    done = CliRunner().invoke(app, ["emulate", path, "--grid", "1"])
    assert (done.exit_code, "[several-kernels]" in done.output) == (23, True), done.output


@pytest.mark.parametrize("sizes", [(32, 64), (64, 32)])
def test_each_kernel_is_decoded_with_its_own_wave_size(tmp_path: Path, sizes: tuple[int, int]) -> None:
    text = '.amdgcn_target "amdgcn-amd-amdhsa--gfx1100"\n'
    metadata = ".amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.kernels:\n"
    for name, size in zip(("first", "second"), sizes, strict=True):
        save = {32: "s_and_saveexec_b32 s0, vcc_lo", 64: "s_and_saveexec_b64 s[0:1], vcc"}[size]
        text += (
            f".text\n.globl {name}\n.p2align 8\n.type {name},@function\n{name}:\n  {save}\n  s_endpgm\n"
            f'.section .rodata,"a",@progbits\n.p2align 6\n.amdhsa_kernel {name}\n.amdhsa_next_free_vgpr 8\n'
            f".amdhsa_next_free_sgpr 8\n.amdhsa_wavefront_size32 {int(size == 32)}\n.end_amdhsa_kernel\n"
        )
        metadata += (
            f"  - {{.name: {name}, .symbol: {name}.kd, .args: [], .kernarg_segment_size: 8,\n"
            "     .kernarg_segment_align: 8, .group_segment_fixed_size: 0, .private_segment_fixed_size: 0,\n"
            f"     .wavefront_size: {size},\n"
            "     .sgpr_count: 8, .vgpr_count: 8, .max_flat_workgroup_size: 64}\n"
        )
    text += f"{metadata}amdhsa.target: amdgcn-amd-amdhsa--gfx1100\n...\n.end_amdgpu_metadata\n"
    path = link(tmp_path / "gfx1100", text)
    done = CliRunner().invoke(app, ["emulate", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert [(row["object"], row["unknown"]) for row in json.loads(done.stdout)["objects"]] == [(str(path), 0)]


def test_text_of_a_python_exception_is_not_the_reason(tmp_path: Path) -> None:
    assemble(tmp_path)
    path = tmp_path / "gfx942" / "k.hsaco"
    content = path.read_bytes()
    size = b".max_flat_workgroup_size"
    assert size + b"\xcd\x01\x00" in content
    path.write_bytes(content.replace(size + b"\xcd\x01\x00", size + b"\xa2ab"))  # text instead of a number
    with pytest.raises(CodeObjectError) as caught:
        bridge.load(path)
    assert caught.value.why != str(caught.value.__cause__)
    path.write_bytes(content.replace(b".name\xa1k", b".name\xa1z"))
    with pytest.raises(CodeObjectError) as caught:
        bridge.load(path)
    assert "expected 1" not in caught.value.why
    path.write_bytes(b"PK\3\4, as in a wheel")
    with pytest.raises(CodeObjectError) as caught:
        bridge.load(path)
    assert caught.value.why == "it is not an ELF file"


def test_metadata_of_an_object_that_was_linked_from_several_is_merged() -> None:
    """The linker keeps the note of each object, as in hipBLASLt, where one object has 713."""
    notes = b""
    for name in (b"a", b"b", b"c"):
        content = b"\x81\xaeamdhsa.kernels\x91\x81\xa5.name\xa1" + name
        notes += struct.pack("<III8s", 7, len(content), 32, b"AMDGPU") + content.ljust(-(-len(content) // 4) * 4, b"\0")
    assert metadata_in(notes) == {"amdhsa.kernels": [{".name": name} for name in "abc"]}


def test_size_of_arguments_is_read_from_the_metadata(tmp_path: Path) -> None:
    assemble(tmp_path, kernarg=48)
    assert bridge.load(tmp_path / "gfx942" / "k.hsaco").descriptor.kernarg == 48


@pytest.mark.parametrize(("flag", "gpu"), [(0x30, "gfx908"), (0x36, "gfx1030"), (0x5F, "gfx9-4-generic")])
def test_code_object_for_gpu_outside_of_the_catalog_is_read(tmp_path: Path, flag: int, gpu: str) -> None:
    """hipBLASLt and rocBLAS contain code objects for more GPUs than AOTriton."""
    assemble(tmp_path)
    content = bytearray((tmp_path / "gfx942" / "k.hsaco").read_bytes())
    content[48] = flag
    (facts,) = read_object(bytes(content), "k.hsaco")
    assert (facts.gpu, facts.name, facts.occupancy) == (gpu, "k", None)
