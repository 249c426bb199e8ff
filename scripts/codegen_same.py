"""Compare the assembly from the codegen library for AMD GPUs with the assembly that Triton itself generates.

    PYTHON scripts/codegen_same.py LIBRARY --source FOLDER [--gpus a,b] [--kernels 20] [--json FILE]

PYTHON is an interpreter with a Triton that was built from source with the same LLVM as LIBRARY, which is
`libtriton_amd_codegen.so`. FOLDER contains the unpacked flash-attn source that aotriton/flash-attn.toml describes.
Triton compiles each kernel to LLVM IR and assembly. The library compiles the same IR, and its assembly must be byte for
byte the same as Triton's. The library must also assemble its own output to an ELF file. No GPU is needed. The exit code
is 1 unless all kernels pass both checks.

The script calls the library through the C interface that Triton 3.9.0 uses, with version 1 of the options.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
# The modules with the kernels import torch. The stand-in satisfies this import.
sys.path[:0] = [str(TOP), str(TOP / "aotriton"), str(TOP / "aotriton" / "standin")]

from toolchain.kernels.rules import Rule, load_rules  # noqa: E402

GPUS = "gfx90a,gfx942,gfx950,gfx1100,gfx1151"
TRIPLE = b"amdgcn-amd-amdhsa"


class Options(ctypes.Structure):
    """The options that the library's compile function takes."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("triple", ctypes.c_char_p),
        ("processor", ctypes.c_char_p),
        ("features", ctypes.c_char_p),
        ("abi", ctypes.c_char_p),
        ("flags", ctypes.c_char_p),
        ("disabled_passes", ctypes.c_char_p),
        ("fp_fusion", ctypes.c_uint8),
        ("no_optimization", ctypes.c_uint8),
        ("canonicalize_gep", ctypes.c_uint8),
        ("dump_ir", ctypes.c_uint8),
        ("timing", ctypes.c_uint8),
    )


class Library:
    """The codegen library, called through its four C functions."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path.resolve()))
        self._library.triton_amdgpu_revision.restype = ctypes.c_char_p
        self._library.triton_amdgpu_free.argtypes = [ctypes.c_void_p]
        for name in ("triton_amdgpu_compile", "triton_amdgpu_assemble"):
            getattr(self._library, name).restype = ctypes.c_int

    def revision(self) -> str:
        return str(self._library.triton_amdgpu_revision().decode())

    def assembly(self, ir: bytes, gpu: str, features: str, *, fp_fusion: bool) -> bytes:
        """Compile LLVM IR with the library, and return the assembly."""
        options = Options(1, TRIPLE, gpu.encode(), features.encode(), b"", b"", b"", fp_fusion, 0, 0, 0, 0)
        return self._call("triton_amdgpu_compile", ir, ctypes.c_size_t(len(ir)), ctypes.byref(options))

    def assemble(self, text: bytes, gpu: str, features: str) -> bytes:
        """Assemble `text` with the library, and return the object file."""
        size = ctypes.c_size_t(len(text))
        return self._call("triton_amdgpu_assemble", text, size, TRIPLE, gpu.encode(), features.encode())

    def _call(self, name: str, *arguments: Any) -> bytes:
        made, size, error = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
        status = getattr(self._library, name)(*arguments, ctypes.byref(made), ctypes.byref(size), ctypes.byref(error))
        if status != 0 or made.value is None:
            why = ctypes.string_at(error.value).decode() if error.value else "no reason given"
            self._library.triton_amdgpu_free(error)
            raise SystemExit(f"{name}: {why}")
        content = ctypes.string_at(made.value, size.value)
        self._library.triton_amdgpu_free(made)
        return content


def compile_by_triton(compiler: Any, rule: Rule, tree: Path) -> tuple[bytes, bytes, dict[str, Any]]:
    """Compile a rule with this Python's Triton, and return the LLVM IR, the assembly and the metadata."""
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    task = rule.task(str(tree), "/nowhere")
    target = GPUTarget("hip", rule.target, 32 if int(rule.target[3:-2]) >= 10 else 64)
    launch = {name: task[name] for name in ("num_warps", "num_stages", "waves_per_eu")}
    made = compiler.triton.compile(compiler.source(task), target=target, options={**launch, **task["options"]})
    return made.asm["llir"].encode(), made.asm["amdgcn"].encode(), made.metadata._asdict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if not asked.library.is_file():
        parser.error(f"there is no library {asked.library}: it is in the image of the stage codegen-amdgpu")
    if not asked.source.is_dir():
        parser.error(f"there is no folder {asked.source}")
    with tempfile.TemporaryDirectory() as folder:
        # An empty cache keeps Triton from using results of an earlier run. The kernel worker's optimisations are off,
        # because the IR and the assembly are needed.
        os.environ.update(TRITON_CACHE_DIR=folder, KERNEL_WORKER_WITHOUT="shared,direct,parses")
        from worker import Compiler  # noqa: PLC0415 - `--help` does not need it

        compiler = Compiler()
        os.environ["TRITON_STORE_BINARY_ONLY"] = "0"
        library = Library(asked.library)
        rows: list[dict[str, Any]] = []
        for gpu in asked.gpus.split(","):
            rules = load_rules(TOP / "aotriton" / "flash-attn.toml", asked.source, (gpu,)).rules
            for rule in sorted(rules, key=lambda one: one.id)[: asked.kernels]:
                ir, expected, metadata = compile_by_triton(compiler, rule, asked.source)
                # Triton's own backend calls the library with these arguments.
                features = "-real-true16" if "gfx11" in gpu else ""
                found = library.assembly(ir, gpu, features, fp_fusion=bool(metadata["enable_fp_fusion"]))
                elf = library.assemble(found, gpu, features)[:4] == b"\x7fELF"
                rows.append({"out": rule.out, "same": found == expected, "elf": elf, "bytes": len(found)})
                if found != expected:
                    told = difflib.unified_diff(expected.decode().splitlines(), found.decode().splitlines(), n=0)
                    print(rule.out, *list(told)[:12], sep="\n", file=sys.stderr)
    same = sum(row["same"] and row["elf"] for row in rows)
    text = f"{same} of {len(rows)} kernels have the same assembly; the library is {library.revision()}"
    if asked.json:
        asked.json.write_text(json.dumps({"revision": library.revision(), "kernels": rows}, indent=1) + "\n")
    print(text)
    raise SystemExit(same != len(rows) or not rows)


if __name__ == "__main__":
    main()
