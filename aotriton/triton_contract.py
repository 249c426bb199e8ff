"""Does this Triton compile? Runs inside an image with Triton, without a GPU, a driver or a network.

    triton_contract.py GPU...

Compiles a vector addition for each AMD GPU to a code object and for sm_90 to PTX, and prints one JSON object:
`{"triton", "objects": {GPU: {"bytes", "sha256"}}, "ptx": {"bytes"} or {"missing": why}}`. Exit code 1 when a GPU has no
code object, or when there is no PTX although everything that PTX needs is there.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

SIGNATURE = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "count": "i32", "BLOCK": "constexpr"}
ALIGNED = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
EM_AMDGPU = 224
# The PTX of CUDA 12.0, the first that knows sm_90.
PTX_VERSION = 80


def source() -> Any:
    """The kernel with its types and constants."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "contract"))
    compiler = importlib.import_module("triton.compiler")
    function = importlib.import_module("vector_add").vector_add
    return compiler.ASTSource(fn=function, signature=SIGNATURE, constexprs={"BLOCK": 1024}, attrs=ALIGNED)


def code_object(gpu: str) -> dict[str, Any]:
    """Compile for an AMD GPU.

    Raises:
        ValueError: what came out is no AMDGPU ELF.
    """
    triton = importlib.import_module("triton")
    backends = importlib.import_module("triton.backends.compiler")
    target = backends.GPUTarget("hip", gpu, 32 if int(gpu[3:-2]) >= 10 else 64)
    code = bytes(triton.compile(source(), target=target).kernel)
    if code[:4] != b"\x7fELF" or int.from_bytes(code[18:20], "little") != EM_AMDGPU:
        raise ValueError(f"no AMDGPU ELF: {code[:20]!r}")
    return {"bytes": len(code), "sha256": hashlib.sha256(code).hexdigest()}


def ptx() -> dict[str, Any]:
    """Compile for sm_90 and stop before ptxas, which is no part of this image."""
    triton = importlib.import_module("triton")
    nvidia = importlib.import_module("triton.backends.nvidia.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    folder = Path(str(nvidia.__file__)).parent / "lib"
    if not list(folder.glob("libdevice*.bc")):
        return {"missing": "libdevice was left out of this build"}
    backend = nvidia.CUDABackend
    make, stages = backend.__init__, backend.add_stages

    def made(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        self.binary_ext = "ptx"

    def without_ptxas(self: Any, found: dict[str, Any], *arguments: Any) -> None:
        stages(self, found, *arguments)
        found.pop("cubin", None)

    backend.__init__, backend.add_stages = made, without_ptxas
    try:
        target = backends.GPUTarget("cuda", 90, 32)
        code = bytes(triton.compile(source(), target=target, options={"ptx_version": PTX_VERSION}).kernel)
    finally:
        backend.__init__, backend.add_stages = make, stages
    text = code.decode("utf-8")
    if ".target sm_90" not in text or ".entry vector_add" not in text:
        raise ValueError(f"no PTX for sm_90: {text[:200]!r}")
    return {"bytes": len(code)}


def main(gpus: list[str]) -> int:
    """Run as a program."""
    # The version of PTX would be asked of ptxas otherwise.
    os.environ["TRITON_MOCK_PTX_VERSION"] = "12.0"
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    found: dict[str, Any] = {"triton": importlib.import_module("triton").__version__, "objects": {}, "failed": {}}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for gpu in gpus:
            try:
                found["objects"][gpu] = code_object(gpu)
            except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the finding
                traceback.print_exc()
                found["failed"][gpu] = f"{type(error).__name__}: {error}"
        try:
            found["ptx"] = ptx()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            found["failed"]["sm_90"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found, sort_keys=True))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
