"""The emulator and the barrier scan find the fault of docs/lab/llvm-barrier.md in code of Triton's LLVM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.scripts.barrier_scan import barriers
from toolchain.cli.app import app
from toolchain_lab.bridge import disassembler, load
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.syntax import parse

IR = Path(__file__).parents[1] / "emulated" / "loop_head_barrier.ll"
WAIT = {"gfx942": "s_waitcnt lgkmcnt(0)", "gfx1100": "s_waitcnt lgkmcnt(0)", "gfx1201": "s_wait_dscnt 0x0"}
BARRIER = re.compile(r"^\ts_barrier(_signal)?\b", re.MULTILINE)


def compiled(folder: Path, gpu: str, *, waits: bool) -> Path:
    """Compile the IR with the LLVM of the installed Triton; `waits` adds the missing wait before each barrier."""
    from triton._C.libtriton import amd, llvm  # noqa: PLC0415 - the import takes a second

    llvm.init_targets()
    text = llvm.translate_to_asm(IR.read_text(), "amdgcn-amd-amdhsa", gpu, "", [], True, False)
    if waits:
        text = BARRIER.sub(lambda match: f"\t{WAIT[gpu]}\n{match[0]}", text)
    path = folder / "pipeline.hsaco"
    path.with_suffix(".o").write_bytes(amd.assemble_amdgcn(text, gpu, ""))
    amd.link_hsaco(str(path.with_suffix(".o")), str(path))
    return path


@pytest.mark.parametrize("gpu", WAIT)
@pytest.mark.parametrize(("waits", "code"), [(False, 24), (True, 0)])
def test_barrier_without_wait_is_found(tmp_path: Path, gpu: str, waits: bool, code: int) -> None:
    path = compiled(tmp_path, gpu, waits=waits)
    found = barriers([parse(line) for line in Program.of(load(path), disassembler()).lines])
    assert len(found) == (0 if waits else 1)
    values = ("in=zeros:1024:i32", "out=zeros:128:i32", "n=4")
    done = CliRunner().invoke(
        app, ["emulate", str(path), "--grid", "1", *(word for value in values for word in ("--arg", value))]
    )
    assert done.exit_code == code, done.output
    if not waits:
        assert f"{found[0][0]:#x}" in done.output
