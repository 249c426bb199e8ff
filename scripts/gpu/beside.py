"""Run the Triton source of checked AMD kernels on an NVIDIA GPU, with the inputs that `kernels check` uses.

    beside.py compile OUT --root TREE OBJECT...  compiles the source of each object to PTX; needs Triton
    beside.py inputs OUT                         writes the buffers and numbers of all cases; needs this project
    beside.py launch OUT RESULT                  runs the kernels; needs a GPU, its driver and the standard library
    beside.py compare OUT RESULT [CHECKED...]    prints the errors against float64; needs this project

OBJECT is an AMD code object with its JSON file next to it. OUT is a folder, and RESULT is a .zip. CHECKED is a file
with the output of `kernels check --json` for the objects.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
C_TYPES: dict[str, Any] = {
    "i1": ctypes.c_uint8,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
MAX_DYNAMIC_SHARED, STATIC_SHARED = 8, 48 * 1024
KERNEL_SECONDS = 60


def compile_all(out: Path, root: Path, objects: list[Path], capability: int) -> int:
    """Compile each object's source to N.ptx, with N.json for its launch, where N is the object's index.

    An object that fails is reported and skipped.
    """
    sys.path[:0] = [str(HERE), str(HERE.parents[1] / "aotriton")]
    compiling, worker = importlib.import_module("compile"), importlib.import_module("worker")
    os.environ["TRITON_F32_DEFAULT"] = "ieee"
    compiler, target = worker.Compiler(), compiling.patched(capability)
    os.environ["TRITON_STORE_BINARY_ONLY"] = "0"
    out.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(objects):
        beside = json.loads(path.with_suffix(".json").read_text())
        rule = {"root": str(root), "source": str(root / beside["source"]), "kernel": beside["name"]}
        rule |= {"signature": dict(beside["signature"]), "constexprs": beside["constexprs"]}
        options = {"num_warps": beside["num_warps"], "num_stages": beside["num_stages"]}
        try:
            with worker.own_cache():
                source = compiler.source(rule)
                made = compiler.triton.compile(
                    source, target=target, options={**options, "ptx_version": compiling.PTX_VERSION}
                )
        except Exception as error:  # noqa: BLE001 - Triton may raise anything; the next object is compiled
            traceback.print_exc()
            print(f"failed {path.name}: {str(error).splitlines()[-1:]}", flush=True)
            continue
        known = made.metadata._asdict()
        about = {
            "object": f"{path.parent.name}/{path.name}",
            "beside": beside,
            "launch": {key: known[key] for key in compiling.LAUNCH if key in known},
            "triton": compiler.triton.__version__,
        }
        (out / f"{number:03d}.ptx").write_bytes(bytes(made.kernel))
        (out / f"{number:03d}.json").write_text(json.dumps(about) + "\n")
        print(f"{number:03d} {about['object']}", flush=True)
    return 0


def cases_of(about: Mapping[str, Any]) -> list[Any]:
    """Return the cases by which `kernels check` judges an object."""
    from toolchain_lab.emulator.metadata import metadata_of  # noqa: PLC0415 - `launch` does not need it
    from toolchain_lab.numbers.check import CASES, SEED  # noqa: PLC0415

    # The metadata names gfx1100, because the bounds for gfx942 allow for fp32 that is truncated to xf32.
    metadata = metadata_of({**about["beside"], "arch": "gfx1100"}, about["object"])
    return list(CASES[metadata.source, metadata.kernel](metadata, SEED))


def told(out: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the number of each kernel in the folder, and the content of its JSON file."""
    for path in sorted(out.glob("[0-9][0-9][0-9].json")):
        yield path.stem, json.loads(path.read_text())


def inputs(out: Path) -> int:
    """Write a .zip for each kernel, with `cases.json` and the buffers of all cases."""
    numpy: Any = importlib.import_module("numpy")
    for stem, about in told(out):
        with zipfile.ZipFile(out / f"{stem}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            rows = []
            for number, case in enumerate(cases_of(about)):
                arguments: list[Any] = []
                for name, kind in about["beside"]["signature"]:
                    if kind == "constexpr":
                        continue
                    value = case.values[name]
                    if isinstance(value, numpy.ndarray):
                        archive.writestr(f"{number}/{name}", value.tobytes())
                        value = {"bytes": value.nbytes}
                    arguments.append([name, kind.partition(":")[0], value])
                results = sorted({expected.argument for expected in case.expected})
                rows.append({"label": case.label, "grid": case.grid, "arguments": arguments, "results": results})
            archive.writestr("cases.json", json.dumps(rows))
    return 0


class Driver:
    """The CUDA driver, called through libcuda with ctypes."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name, version = ctypes.create_string_buffer(100), ctypes.c_int()
        self.call("cuDeviceGetName", name, 100, device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.about = {"device": name.value.decode(), "driver_cuda": version.value}

    def call(self, name: str, *given: Any) -> None:
        """Call a function of the driver, and raise RuntimeError if it fails."""
        if code := getattr(self._cuda, name)(*given):
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def room(self, size: int, content: bytes | None = None) -> Any:
        """Return the address of new device memory that contains `content` or zeros; null if `size` is 0."""
        address = ctypes.c_uint64()
        if size:
            self.call("cuMemAlloc_v2", ctypes.byref(address), size)
            self.call("cuMemcpyHtoD_v2", address, content or bytes(size), size)
        return address

    def function(self, ptx: bytes, name: str, shared: int) -> Any:
        """Compile PTX code, and return its function `name`, which may use `shared` bytes of shared memory."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > STATIC_SHARED:
            self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        return function


def launch_one(folder: Path, stem: str, result: Path) -> None:
    """Launch all cases of a kernel, and write the bytes of its results to the .zip `result`."""
    driver, about = Driver(), json.loads((folder / f"{stem}.json").read_text())
    launch = about["launch"]
    function = driver.function((folder / f"{stem}.ptx").read_bytes(), launch["name"], launch["shared"])
    with zipfile.ZipFile(folder / f"{stem}.zip") as archive, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as left:
        left.writestr("about.json", json.dumps(driver.about))
        for number, case in enumerate(json.loads(archive.read("cases.json"))):
            values, buffers = [], {}
            for name, kind, value in case["arguments"]:
                if isinstance(value, dict):
                    content = archive.read(f"{number}/{name}")
                    buffers[name] = (driver.room(len(content), content), len(content))
                    values.append(buffers[name][0])
                else:
                    values.append(ctypes.c_uint64(value or 0) if kind.startswith("*") else C_TYPES[kind](value))
            x, y, z = case["grid"]
            for key in ("global_scratch_size", "profile_scratch_size"):
                if key in launch:
                    values.append(driver.room(launch[key] * x * y * z * launch.get("num_ctas", 1)))
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            threads = 32 * launch["num_warps"]
            driver.call(
                "cuLaunchKernel", function, x, y, z, threads, 1, 1, launch["shared"], None, pointers, None
            )  # fmt: skip
            driver.call("cuCtxSynchronize")
            for name in case["results"]:
                address, size = buffers[name]
                back = ctypes.create_string_buffer(size)
                driver.call("cuMemcpyDtoH_v2", back, address, size)
                left.writestr(f"{number}/{name}", back.raw)


def launch_all(folder: Path, result: Path) -> int:
    """Launch each kernel in a separate process, because a fault breaks the CUDA context, and write one file of results.

    A kernel that fails or does not end in time is reported and skipped.
    """
    with zipfile.ZipFile(result, "w") as archive:
        for stem, about in told(folder):
            began, part = time.monotonic(), result.with_name(f"{result.name}.{stem}")
            words = [sys.executable, "-I", str(Path(__file__).resolve()), "one", str(folder), stem, str(part)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=KERNEL_SECONDS, check=False)
                why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["the process failed"])[-1]
            except subprocess.TimeoutExpired:
                why = f"the kernel did not end within {KERNEL_SECONDS} s"
            if why:
                archive.writestr(f"{stem}.failed", why)
            else:
                archive.write(part, f"{stem}.zip")
            part.unlink(missing_ok=True)
            print(f"{stem} {about['object']} {why or 'ran'} {time.monotonic() - began:.1f} s", flush=True)
    return 0


def compare(out: Path, result: Path, checked: list[Path]) -> int:
    """Print each kernel's largest error as a share of the allowed error, on the GPU and in the emulator.

    Returns:
        1 if an error is larger than allowed, otherwise 0; kernels that did not run are ignored.
    """
    numpy: Any = importlib.import_module("numpy")
    emulated: dict[str, list[str]] = {}
    for path in checked:
        for row in json.loads(path.read_text())["kernels"]:
            told_of = f"{row['gpu']} {row['status']} {row['share']:.0%}"
            emulated.setdefault(Path(row["name"]).name, []).append(told_of)
    wrong = 0
    with zipfile.ZipFile(result) as archive:
        for stem, about in told(out):
            there = ", ".join(emulated.get(Path(about["object"]).name, ["not checked"]))
            if f"{stem}.failed" in archive.namelist():
                print(f"{stem} {about['object']:<40} {archive.read(f'{stem}.failed').decode()}  emulated: {there}")
                continue
            share, where = 0.0, ""
            with archive.open(f"{stem}.zip") as stream, zipfile.ZipFile(stream) as part:
                device = json.loads(part.read("about.json"))["device"]
                for number, case in enumerate(cases_of(about)):
                    for expected in case.expected:
                        like = case.values[expected.argument]
                        data = numpy.frombuffer(part.read(f"{number}/{expected.argument}"), like.dtype)
                        error, bound = expected.error(data), expected.bound
                        if (of := error / bound if bound else float(error > 0)) >= share:
                            share, where = of, f"{expected.label}, {case.label}"
            wrong += not share <= 1
            names: dict[str, str] = dict(about["beside"]["signature"])
            print(
                f"{stem} {about['object']:<40} {names.get('Q', names.get('Out', ''))[1:5]:<5}"
                f" {device}: {share:.0%} ({where})  emulated: {there}"
            )
    print(f"{wrong} wrong")
    return 1 if wrong else 0


def main() -> int:
    """Run one of the four commands, or `one`, which `launch` starts for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    given: dict[str, Callable[[argparse.Namespace], int]] = {
        "compile": lambda a: compile_all(a.out, a.root.resolve(), a.objects, a.capability),
        "inputs": lambda a: inputs(a.out),
        "launch": lambda a: launch_all(a.out, a.result),
        "compare": lambda a: compare(a.out, a.result, a.checked),
    }
    for verb in given:
        verbs.add_parser(verb).add_argument("out", type=Path)
    compiling, launching, comparing = (verbs.choices[verb] for verb in ("compile", "launch", "compare"))
    compiling.add_argument("--root", type=Path, required=True)
    compiling.add_argument("--capability", type=int, default=90)
    compiling.add_argument("objects", type=Path, nargs="+")
    launching.add_argument("result", type=Path)
    comparing.add_argument("result", type=Path)
    comparing.add_argument("checked", type=Path, nargs="*")
    one = verbs.add_parser("one")
    for name in ("out", "stem", "result"):
        one.add_argument(name)
    arguments = parser.parse_args()
    if arguments.verb == "one":
        launch_one(Path(arguments.out), arguments.stem, Path(arguments.result))
        return 0
    return given[arguments.verb](arguments)


if __name__ == "__main__":
    sys.exit(main())
