"""Compile LLVM IR with the LLVM of the Triton that runs this script: `compile_ir.py IR GPU OBJECT`."""

import sys
from pathlib import Path
from typing import Any

from triton._C.libtriton import amd, llvm

ir, gpu, made = sys.argv[1:]
llvm.init_targets()
arguments: tuple[Any, ...] = (Path(ir).read_text(), "amdgcn-amd-amdhsa", gpu, "", [], True, False)
try:
    text = llvm.translate_to_asm(*arguments)
except TypeError:  # the function of Triton 3.8 has one more argument
    text = llvm.translate_to_asm(*arguments, False)
Path(made).with_suffix(".o").write_bytes(amd.assemble_amdgcn(text, gpu, ""))
amd.link_hsaco(str(Path(made).with_suffix(".o")), made)
