"""Launch the PTX from compile.py on an NVIDIA GPU, and compare the results with PyTorch's attention.

This script needs PyTorch with CUDA and the driver (libcuda), but no Triton, no ptxas and no build. For each family of
kernels, type, head size, mask and length, the script runs the forward and the backward pass. It compares two sets of
results with a float64 reference: the output and three gradients of the kernels, and the output and gradients of
PyTorch's `math` backend in the same type.

The rule for passing was set before the first run. An error is the largest absolute difference from the float64
reference. A result passes if its error is at most twice PyTorch's error plus the largest absolute value of the
reference times the type's precision (2^-10 for fp16, 2^-7 for bf16).

    python scripts/gpu/run.py FOLDER [FOLDER...] [--json FILE]

Several folders may contain the same kernels compiled by different Tritons. The script then prints a table for each
folder, and counts how many results are bit for bit the same as those of the first folder.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

BATCH, HEADS = 2, 3
LENGTHS = ((128, 128), (113, 113), (577, 577), (1024, 1024))
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
PRECISION = {"fp16": 2.0**-10, "bf16": 2.0**-7}
SHARED_OPT_IN, MAX_DYNAMIC_SHARED = 97, 8
STATIC_SHARED = 48 * 1024
RESULTS = ("o", "dq", "dk", "dv")
# The parts of kernel names that stand for no mask (False) and for a causal mask (True).
MASKS: dict[str, dict[bool, str]] = {
    "aotriton": {False: "0", True: "3"},
    "flash-attn": {False: "False", True: "True"},
}
SPLIT = {False: "noncausal", True: "causal"}
C_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}


class DoesNotFitError(Exception):
    """A kernel needs more shared memory than a block can have on this GPU."""


@dataclass
class Kernel:
    """A loaded kernel: the handle of its function, and the content of its JSON file."""

    handle: ctypes.c_void_p
    about: Mapping[str, Any]


class Driver:
    """The CUDA driver, called through libcuda with ctypes in the context that PyTorch created."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.shared = self._attribute(SHARED_OPT_IN)

    def _call(self, name: str, *given: Any) -> None:
        code = getattr(self._cuda, name)(*given)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), which, torch.cuda.current_device())
        return value.value

    def version(self) -> str:
        """Return the newest version of CUDA that the driver supports."""
        value = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def load(self, ptx: bytes, about: Mapping[str, Any]) -> Kernel:
        """Compile PTX for this GPU, and return the kernel.

        Args:
            about: the content of the kernel's JSON file.

        Raises:
            DoesNotFitError: the kernel needs more shared memory than a block can have.
            RuntimeError: the driver cannot load the PTX.
            ValueError: `about` does not describe this PTX.
        """
        if hashlib.sha256(ptx).hexdigest() != about["ptx_sha256"]:
            raise ValueError("the PTX is not the one that its JSON describes")
        launch = about["launch"]
        wanted = sum(1 for line in entry(ptx.decode(), launch["name"]).splitlines() if ".param" in line)
        scratch = sum(1 for key in ("global_scratch_size", "profile_scratch_size") if key in launch)
        if wanted != len(about["parameters"]) + scratch:
            known = f"{len(about['parameters'])} and {scratch} for scratch memory"
            raise ValueError(f"the PTX takes {wanted} parameters, but its JSON lists {known}")
        if launch["shared"] > self.shared:
            raise DoesNotFitError(f"it needs {launch['shared']} bytes of shared memory, but a block has {self.shared}")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ptx + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(function), module, launch["name"].encode())
        if launch["shared"] > STATIC_SHARED:
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, launch["shared"])
        return Kernel(function, about)

    def launch(self, kernel: Kernel, values: Mapping[str, Any]) -> None:
        """Launch a kernel, and wait until it has ended.

        Args:
            values: the tensors and numbers, by the names that kernels.toml uses.
        """
        about, launch = kernel.about, kernel.about["launch"]
        arguments: list[Any] = []
        for parameter in about["parameters"]:
            arguments.append(argument(parameter, values))
        grid = [tiles(text, values) for text in about["grid"]]
        keep: list[torch.Tensor] = []
        for kind in ("global_scratch", "profile_scratch"):
            if f"{kind}_size" not in launch:
                continue
            size = launch[f"{kind}_size"] * grid[0] * grid[1] * grid[2] * launch.get("num_ctas", 1)
            keep.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            arguments.append(ctypes.c_uint64(keep[-1].data_ptr() if size else 0))
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        threads = 32 * launch["num_warps"]
        self._call("cuLaunchKernel", kernel.handle, *grid, threads, 1, 1, launch["shared"], None, pointers, None)
        torch.cuda.synchronize()


def entry(ptx: str, name: str) -> str:
    """Return the declaration of the entry `name` in PTX code, up to the end of its parameters."""
    start = ptx.index(f".entry {name}(")
    return ptx[start : ptx.index(")", start)]


def tiles(text: str, values: Mapping[str, Any]) -> int:
    """Return the grid's size along an axis: for "NAME" its value, for "NAME/N" the number of tiles of size N."""
    name, _, size = text.partition("/")
    return -(-int(values[name]) // int(size or 1))


def argument(parameter: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return the C value for a parameter; raise ValueError if it is not a multiple of the parameter's `divisible`."""
    text = parameter["value"]
    value: Any = text
    if isinstance(text, str):
        name, _, dimension = text.partition(".")
        value = 0 if name == "null" else values[name]
        value = value.stride(int(dimension)) if dimension else value
    pointer = parameter["type"].startswith("*")
    value = value.data_ptr() if isinstance(value, torch.Tensor) else value
    if (pointer or isinstance(value, int)) and value % parameter["divisible"]:
        raise ValueError(f"{parameter['name']} = {value} is not a multiple of {parameter['divisible']}")
    return ctypes.c_uint64(value) if pointer else C_TYPES[parameter["type"]](value)


def reference(inputs: Sequence[torch.Tensor], *, causal: bool, scale: float) -> dict[str, torch.Tensor]:
    """Return attention and its gradients as PyTorch's `math` backend computes them in the type of the inputs."""
    *inner, do = inputs
    q, k, v = (t.detach().clone().requires_grad_() for t in inner)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    o.backward(do)
    return {"o": o.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


class Family:
    """The kernels of one family in one folder."""

    def __init__(self, driver: Driver, folder: Path, family: str) -> None:
        self._driver, self._folder, self.family = driver, folder, family
        self._loaded: dict[str, Kernel] = {}

    def kernel(self, role: str, *parts: Any) -> Kernel:
        """Return the kernel for a role and a form; the first call loads it."""
        name = "-".join([self.family, role, *(str(part) for part in parts)])
        if name not in self._loaded:
            about = json.loads((self._folder / f"{name}.json").read_text())
            self._loaded[name] = self._driver.load((self._folder / f"{name}.ptx").read_bytes(), about)
        return self._loaded[name]

    def run(self, values: dict[str, Any], dtype: str, head: int, causal: bool) -> dict[str, torch.Tensor]:
        """Run the forward and the backward pass, add their results to `values`, and return o, dq, dk and dv."""
        mask: str = MASKS[self.family][causal]
        back = SPLIT[causal] if self.family == "flash-attn" else mask
        lengths = (values["Lq"], values["Lk"]) if self.family == "flash-attn" else ()
        for name in ("o", "dq", "dk", "dv"):
            like = values[{"o": "q", "dq": "q", "dk": "k", "dv": "v"}[name]]
            values[name] = torch.full_like(like, float("nan"))
        for name in ("lse", "delta"):
            shape = (values["B"], values["H"], values["Lq"])
            values[name] = torch.full(shape, float("nan"), dtype=torch.float32, device="cuda")
        self._driver.launch(self.kernel("fwd", dtype, head, mask, *lengths), values)
        self._driver.launch(self.kernel("prep", dtype, head), values)
        self._driver.launch(self.kernel("dkdv", dtype, head, back), values)
        self._driver.launch(self.kernel("dq", dtype, head, back), values)
        return {name: values[name] for name in RESULTS}


def cases() -> Iterator[tuple[str, int, bool, int, int]]:
    """Yield each case: its type, head size, whether it has a causal mask, and its numbers of queries and keys."""
    for dtype in DTYPES:
        for head in (64, 128):
            for causal in (False, True):
                for queries, keys in LENGTHS:
                    yield dtype, head, causal, queries, keys


def one(families: Sequence[Family], case: tuple[str, int, bool, int, int]) -> list[dict[str, Any]]:
    """Run all families on the same inputs for one case, and return a row for each family."""
    dtype, head, causal, queries, keys = case
    make = torch.Generator(device="cuda").manual_seed(queries * 1000 + head + causal)
    kind = DTYPES[dtype]
    q, k, v, do = (
        torch.randn((BATCH, HEADS, n, head), device="cuda", generator=make).to(kind)
        for n in (queries, keys, keys, queries)
    )
    scale = head**-0.5
    exact = reference([t.double() for t in (q, k, v, do)], causal=causal, scale=scale)
    plain = reference([q, k, v, do], causal=causal, scale=scale)
    rows = []
    for family in families:
        values: dict[str, Any] = {"q": q, "k": k, "v": v, "do": do, "scale": scale, "D": head}
        values |= {"Lq": queries, "Lk": keys, "B": BATCH, "H": HEADS}
        row: dict[str, Any] = {"family": family.family, "case": list(case), "status": "passed", "why": ""}
        try:
            got = family.run(values, dtype, head, causal)
        except DoesNotFitError as error:
            rows.append({**row, "status": "does not fit", "why": str(error)})
            continue
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            rows.append({**row, "status": "failed", "why": str(error)})
            continue
        for name in RESULTS:
            ours = (got[name].double() - exact[name]).abs().max().item()
            torchs = (plain[name].double() - exact[name]).abs().max().item()
            bound = 2 * torchs + PRECISION[dtype] * exact[name].abs().max().item()
            row[name] = {"ours": ours, "pytorch": torchs, "bound": bound}
            row["sha256_" + name] = hashlib.sha256(got[name].cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
            if not ours <= bound:
                row["status"], row["why"] = "failed", f"{name}: the error {ours:.2e} is larger than {bound:.2e}"
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table with the kernel's error and PyTorch's error for the output and each gradient."""
    yield f"{'family':<11}{'type':<5}{'head':>4} {'mask':<7}{'length':>7}" + "".join(f"{n:>19}" for n in RESULTS)
    for row in rows:
        dtype, head, causal, queries, _ = row["case"]
        line = f"{row['family']:<11}{dtype:<5}{head:>4} {'causal' if causal else '-':<7}{queries:>7}"
        if "o" in row:
            line += "".join(f"{row[n]['ours']:>10.1e}/{row[n]['pytorch']:.1e} " for n in RESULTS)
        yield line + ("" if row["status"] == "passed" else f"  {row['status']}: {row['why']}")


def main() -> int:
    """Run all cases with the kernels of every folder, and print the tables; return 1 if a case failed, otherwise 0."""
    parser = argparse.ArgumentParser(description="Launch PTX of attention kernels, and compare with PyTorch.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    driver = Driver()
    about = {
        "device": torch.cuda.get_device_name(),
        "driver_cuda": driver.version(),
        "pytorch": torch.__version__,
        "shared_memory_per_block": driver.shared,
    }
    with contextlib.suppress(OSError):
        about["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    print(json.dumps(about))
    every: dict[str, list[dict[str, Any]]] = {}
    for folder in given.folders:
        present = sorted({path.name.split("-fwd-")[0] for path in folder.glob("*-fwd-*.json")})
        families = [Family(driver, folder, name) for name in present]
        rows = [row for case in cases() for row in one(families, case)]
        every[folder.name] = rows
        print(f"\n{folder.name}: errors of the kernels / of PyTorch, both relative to float64")
        print("\n".join(table(rows)))
        counts = {s: sum(r["status"] == s for r in rows) for s in ("passed", "failed", "does not fit")}
        print(", ".join(f"{count} {status}" for status, count in counts.items()))
    names = list(every)
    for other in names[1:]:
        pairs = list(zip(every[names[0]], every[other], strict=True))
        for result in RESULTS:
            key = "sha256_" + result
            both = [(a, b) for a, b in pairs if key in a and key in b]
            same = sum(a[key] == b[key] for a, b in both)
            print(f"{result}: {same} of {len(both)} results of {names[0]} and {other} are bit for bit the same")
    if given.json:
        given.json.write_text(json.dumps({"about": about, "rows": every}) + "\n")
    return 0 if all(row["status"] != "failed" for rows in every.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
