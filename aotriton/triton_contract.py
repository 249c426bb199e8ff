"""Check that the installed Triton compiles a kernel, without a GPU, a driver or a network.

    triton_contract.py GPU...

The program compiles a vector addition to a code object for each AMD GPU and to PTX for sm_90, and prints a JSON object:
`{"triton", "objects": {GPU: {"bytes", "sha256"}}, "unsupported": [GPU], "ptx": {"bytes"} or {"missing": why}, "failed":
{GPU: why}}`. `triton` is Triton's version. `unsupported` lists the GPUs that Triton or its LLVM does not support.
`failed` contains the reason for each other target (a GPU or sm_90) for which compiling failed. `ptx` is absent if
compiling for sm_90 failed, and has `missing` if this Triton lacks libdevice. The exit code is 1 if `failed` is not
empty, or if GPUs are given but none has a code object.

Some versions of Triton link code objects with `ld.lld`, whose path can be set in `TRITON_HIP_LLD_PATH`. Some versions
import setuptools to build launchers. No launcher is built here, so an empty module replaces setuptools if it is
missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SIGNATURE = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "count": "i32", "BLOCK": "constexpr"}
CONSTANTS = {"BLOCK": 1024}
ALIGNED = (0, 1, 2)
EM_AMDGPU = 224
# These are parts of the messages that LLVM and Triton print about a GPU that they do not support.
UNSUPPORTED = (b"is not a recognized processor", b"error: unsupported target: '")
# PTX 8.0 is the first version with sm_90a. Triton's PTX for sm_90 has the target sm_90a.
PTX_VERSION = 80


class UnsupportedGpuError(Exception):
    """Triton or its LLVM does not support the GPU."""


class CompilerError(Exception):
    """The compiler raised an exception, or its process ended without a result. The message contains the cause."""


def source() -> Any:
    """Return Triton's source object for the vector addition."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "contract"))
    return kernel_of(importlib.import_module("vector_add").vector_add, SIGNATURE, CONSTANTS, ALIGNED)


def kernel_of(function: Any, signature: Mapping[str, str], constants: Mapping[str, Any], aligned: Sequence[int]) -> Any:
    """Return Triton's source object for a kernel.

    Args:
        signature: the type of each argument; `constexpr` for a constant.
        constants: the value of each constant.
        aligned: the indices of the arguments that are multiples of 16.
    """
    compiler = importlib.import_module("triton.compiler.compiler")
    if not is_old(compiler):
        attributes: Any = {(index,): [["tt.divisibility", 16]] for index in aligned}
        return compiler.ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    types = {name: kind for name, kind in signature.items() if name not in constants}
    attributes = compiler.AttrsDescriptor(divisible_by_16=set(aligned), equal_to_1=set())
    return compiler.ASTSource(fn=function, signature=types, constants=constants, attrs=attributes)


def is_old(compiler: Any) -> bool:
    """Return whether this Triton is old: its `ASTSource` has no parameter `constexprs`."""
    return "constexprs" not in inspect.signature(compiler.ASTSource).parameters


def target_of(backend: str, arch: Any, warp: int) -> Any:
    """Return a `GPUTarget`, or the pair of `backend` and `arch` if this Triton has no `GPUTarget`."""
    module = importlib.import_module("triton.backends.compiler")
    return module.GPUTarget(backend, arch, warp) if hasattr(module, "GPUTarget") else (backend, arch)


def by_stages(kernel: Any, target: Any, options: dict[str, Any], *, without: str = "") -> Any:
    """Run the stages of an old Triton (see `is_old`) and return the result of the last stage.

    `triton.compile` of an old Triton is not used, because it needs a GPU driver.

    Args:
        without: the name of a stage to leave out.
    """
    compiler = importlib.import_module("triton.compiler.compiler")
    ir = importlib.import_module("triton._C.libtriton").ir
    backend = compiler.make_backend(target)
    if hasattr(backend, "path_to_rocm_lld"):
        type(backend).path_to_rocm_lld = staticmethod(linker)
    parsed = backend.parse_options(options)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed)
    stages.pop(without, None)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    given = {"options": parsed, "context": context}
    if hasattr(backend, "get_codegen_implementation"):
        given["codegen_fns"] = backend.get_codegen_implementation()
    module = kernel.make_ir(**given)
    metadata = {"hash": "", "target": target, **parsed.__dict__}
    metadata.update(kernel.metadata() if hasattr(kernel, "metadata") else {})
    for stage in stages.values():
        module = stage(module, metadata)
    return module


def linker() -> str:
    """Return the path of `ld.lld` for an old Triton: `TRITON_HIP_LLD_PATH`, or the first on PATH.

    Raises:
        FileNotFoundError: `TRITON_HIP_LLD_PATH` is not set, and PATH has no `ld.lld`.
    """
    found = os.environ.get("TRITON_HIP_LLD_PATH") or shutil.which("ld.lld")
    if not found:
        raise FileNotFoundError("this Triton links by ld.lld, which PATH does not have")
    return found


def code_object(gpu: str, kernel: Any) -> dict[str, Any]:
    """Compile a kernel for an AMD GPU and return the size in bytes and the SHA-256 of the code object.

    Raises:
        UnsupportedGpuError: Triton or LLVM does not support the GPU.
        CompilerError: the kernel does not compile.
        ValueError: the result is not an AMDGPU ELF.
    """
    triton = importlib.import_module("triton")
    target = target_of("hip", gpu, 32 if int(gpu[3:-2]) >= 10 else 64)
    with said_on_stderr() as said:
        if is_old(importlib.import_module("triton.compiler.compiler")):
            code = in_process(lambda: bytes(by_stages(kernel, target, {})))
        else:
            code = in_process(lambda: bytes(triton.compile(kernel, target=target).kernel))
        if any(text in said() for text in UNSUPPORTED):
            raise UnsupportedGpuError(gpu)
    if code[:4] != b"\x7fELF" or int.from_bytes(code[18:20], "little") != EM_AMDGPU:
        raise ValueError(f"no AMDGPU ELF: {code[:20]!r}")
    return {"bytes": len(code), "sha256": hashlib.sha256(code).hexdigest()}


def in_process(make: Callable[[], bytes]) -> bytes:
    """Call `make` in a child process, because LLVM ends the process if it cannot select an instruction.

    Raises:
        CompilerError: `make` raised an exception, or the child process ended without a result.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def answer() -> None:
        try:
            there.send((make(), ""))
        except Exception as error:  # noqa: BLE001 - any exception is reported
            traceback.print_exc()
            there.send((b"", _text(error)))

    child = context.Process(target=answer)
    child.start()
    there.close()
    try:
        made, why = here.recv()
    except EOFError:
        made, why = b"", "the compiler's process ended"
    child.join()
    if why:
        raise CompilerError(f"{why}, exit code {child.exitcode}" if child.exitcode else why)
    return bytes(made)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def said_on_stderr() -> Iterator[Callable[[], bytes]]:
    """Redirect standard error to a file, yield a function that returns its content, and print the content at the end.

    Raises:
        UnsupportedGpuError: the body raised an exception, and the content contains one of `UNSUPPORTED`.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def said() -> bytes:
            file.seek(0)
            return file.read()

        try:
            yield said
        except Exception as error:
            if any(text in said() for text in UNSUPPORTED):
                raise UnsupportedGpuError from error
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            sys.stderr.write(said().decode("utf-8", "replace"))


def ptx() -> dict[str, Any]:
    """Compile the vector addition for sm_90 without ptxas, and return the size of the PTX in bytes.

    If libdevice is missing, the function compiles nothing and returns the reason.

    Raises:
        ValueError: the result is not PTX for sm_90.
    """
    nvidia = importlib.import_module("triton.backends.nvidia.compiler")
    folder = Path(str(nvidia.__file__)).parent / "lib"
    if not list(folder.glob("libdevice*.bc")):
        return {"missing": "libdevice was left out of this build"}
    target, options = target_of("cuda", 90, 32), {"ptx_version": PTX_VERSION}
    if is_old(importlib.import_module("triton.compiler.compiler")):
        text = str(by_stages(source(), target, options, without="cubin"))
    else:
        text = new_ptx(nvidia.CUDABackend, target, options)
    if ".target sm_90" not in text or ".entry vector_add" not in text:
        raise ValueError(f"no PTX for sm_90: {text[:200]!r}")
    return {"bytes": len(text)}


def new_ptx(backend: Any, target: Any, options: dict[str, Any]) -> str:
    """Compile the vector addition with `triton.compile` but without ptxas, and return the PTX.

    Args:
        backend: Triton's class `CUDABackend`, which is changed during the call.
    """
    triton = importlib.import_module("triton")
    make, stages = backend.__init__, backend.add_stages

    def made(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        self.binary_ext = "ptx"

    def without_ptxas(self: Any, found: dict[str, Any], *arguments: Any) -> None:
        stages(self, found, *arguments)
        found.pop("cubin", None)

    backend.__init__, backend.add_stages = made, without_ptxas
    try:
        return bytes(triton.compile(source(), target=target, options=options).kernel).decode("utf-8")
    finally:
        backend.__init__, backend.add_stages = make, stages


def prepare() -> None:
    """Set environment variables that Triton reads, and replace setuptools by an empty module if it is missing."""
    # Without this variable, Triton runs ptxas, because the cache key contains its version.
    os.environ["TRITON_MOCK_PTX_VERSION"] = "12.0"
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    if importlib.util.find_spec("setuptools") is None:
        sys.modules["setuptools"] = types.ModuleType("setuptools")


def main(gpus: list[str]) -> int:
    """Compile for the GPUs, print the results and return the exit code."""
    prepare()
    version = importlib.import_module("triton").__version__
    found: dict[str, Any] = {"triton": version, "objects": {}, "unsupported": [], "failed": {}}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for gpu in gpus:
            try:
                found["objects"][gpu] = code_object(gpu, source())
            except UnsupportedGpuError:
                found["unsupported"].append(gpu)
            except Exception as error:  # noqa: BLE001 - any exception is reported
                traceback.print_exc()
                found["failed"][gpu] = str(error) if isinstance(error, CompilerError) else _text(error)
        try:
            found["ptx"] = ptx()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            found["failed"]["sm_90"] = _text(error)
    print(json.dumps(found, sort_keys=True))
    return 1 if found["failed"] or (gpus and not found["objects"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
