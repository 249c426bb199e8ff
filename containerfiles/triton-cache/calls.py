"""Call functions of a wheel with a substitute for Triton's driver, so that Triton compiles kernels into its cache.

    calls.py GPU LDS MODULE [FILE]      LDS: the largest size of a workgroup's local memory on the GPU, in bytes

MODULE is the name of a Python module in this folder or elsewhere on the module path. Its `call(row)` makes the tensors
and calls the function. Its `prepare()`, if it exists, is called once, before the first row. Its `PACKAGE` is the name
of the wheel's top package. No GPU, GPU driver or ROCm is needed.

The first line of the output is {"ready": true, "triton", "python", "triton_key": SHA-256 of Triton's own key,
"mcv_key": Triton's key as Model Cache Vault (MCV) finds it, "path": the path of Triton, "cache": the path of its cache,
"variables": {NAME: value}}. `variables` has the environment variables that are set and that Triton's keys depend on. A
row is a JSON line of the input or of FILE, {"id", "calls": [{...}]}. The answer to a row is {"id", "status":
"done"|"failed", "refused": bool, "reason", "seconds", "kernels": [{"name", "hash", "hit"}]}. The answer has no
"seconds" if the process of the row ended early.

If the environment variable CALLS_LAUNCHES names a folder, calls.py writes a file HASH.json there for each kernel, with
the values that a launch without Triton needs: {"source": the path of the kernel's file in the package, "signature":
[argument, type] in order, "constexprs": {argument: value}}.

The calls of each row are made in a process of its own, which is forked before any kernel is compiled, because Triton's
key of a kernel depends on the kernels that the same process compiled before and that share a function with it.

"refused" is true if the wheel's own Python code raised the exception, for example because it has no configuration for
the GPU. An ImportError is not a refusal, because it means that a package that the wheel needs is missing.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Utils:
    """The functions of a driver that describe the device."""

    def __init__(self, lds: int) -> None:
        self._lds = lds

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Return the properties of the device. Triton refuses a kernel that needs more than `max_shared_mem` bytes."""
        return {"max_shared_mem": self._lds, "multiprocessor_count": 1}

    def load_binary(self, *_: Any) -> tuple[Any, Any, int, int, int]:
        """Return a module, a function, the numbers of registers and spills, and a workgroup's maximum of threads.

        Triton refuses a kernel that needs more threads. Nothing uses the other values.
        """
        return (None, None, 0, 0, 1024)


class Driver:
    """A substitute for Triton's driver object for AMD GPUs. It records launches and runs nothing."""

    def __init__(self, target: Any, lds: int, kernels: Kernels) -> None:
        self._target, self._kernels, self.utils = target, kernels, Utils(lds)

    def get_current_target(self) -> Any:
        """Return the target to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return the index of the only device."""
        return 0

    def set_current_device(self, _: int) -> None:
        """Do nothing, because there is one device."""

    def get_current_stream(self, _: int) -> int:
        """Return the only stream."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Return the CPU, because the tensors are in host memory."""
        return sys.modules["torch"].device("cpu")

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        """Return a function that records a launch of the kernel; describe the kernel if CALLS_LAUNCHES is set."""
        if "CALLS_LAUNCHES" in os.environ:
            describe(src, Path(os.environ["CALLS_LAUNCHES"], f"{metadata.hash}.json"))
        return lambda *_: self._kernels.launched(src.name, metadata.hash)


class Kernels:
    """The kernels that were launched since the last `take`, and whether Triton found each in its cache.

    Triton reads its cache once for each kernel in a process and then calls this listener. Later launches of the kernel
    do not read the cache.
    """

    def __init__(self) -> None:
        self._hits: dict[str, bool] = {}
        self._rows: list[dict[str, Any]] = []

    def __call__(self, *, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        self._hits[metadata["hash"]] = cache_hit

    def launched(self, name: str, hash_: str) -> None:
        """Record a launch of a kernel."""
        self._rows.append({"name": name, "hash": hash_, "hit": self._hits[hash_]})

    def take(self) -> list[dict[str, Any]]:
        """Return the launches since the last call of `take`."""
        rows, self._rows = self._rows, []
        return rows


def describe(src: Any, path: Path) -> None:
    """Write the path of a kernel's source, its signature and its constants to `path` as JSON; see CALLS_LAUNCHES."""
    names, (top, *below) = src.fn.arg_names, src.fn.fn.__module__.split(".")
    constants = {names[at[0]]: plain(value) for at, value in src.constants.items() if len(at) == 1}
    launch = {
        "source": "/".join(below or [top]) + ".py",
        "signature": [[name, str(src.signature[name])] for name in names],
        "constexprs": constants,
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(launch, sort_keys=True), encoding="utf-8")
    partial.replace(path)


def plain(value: Any) -> Any:
    """Convert a constant to a JSON value; an object such as a type or a function becomes its name or its text."""
    value = getattr(value, "value", value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else str(getattr(value, "__name__", value))


def about(triton: Any) -> dict[str, Any]:
    """Return the content of the first line of the output, which describes this Triton."""
    try:
        key = importlib.import_module("triton.runtime.cache").triton_key()
    except AttributeError:  # in Triton 3.4 and older, another module has the function
        key = importlib.import_module("triton.compiler.compiler").triton_key()
    # Model Cache Vault looks for the key only in the module `triton.compiler.compiler`.
    known = getattr(importlib.import_module("triton.compiler.compiler"), "triton_key", None)
    return {
        "ready": True,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "triton_key": hashlib.sha256(key.encode()).hexdigest(),
        "mcv_key": known() if known else "unknown-triton-key",
        "path": os.fspath(Path(triton.__file__).parent),
        "cache": triton.knobs.cache.dir,
        "variables": dict(importlib.import_module("triton._C.libtriton").get_cache_invalidating_env_vars()),
    }


def stand_in(gpu: str, lds: int, triton: Any) -> Kernels:
    """Replace Triton's driver, and return the record of launches. The wheel must be imported after this call."""
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    lanes = 32 if int(gpu[3:-2]) >= 10 else 64
    kernels = Kernels()
    driver = Driver(target("hip", gpu, lanes), lds, kernels)
    importlib.import_module("triton.runtime.driver").driver.set_active(driver)
    triton.knobs.compilation.listener = kernels
    return kernels


def refused(error: BaseException, package: str) -> bool:
    """Return whether the wheel's own code raised the exception, other than an ImportError."""
    if isinstance(error, ImportError):
        return False
    module = sys.modules.get(package)
    places = [os.fspath(Path(one).resolve()) + os.sep for one in getattr(module, "__path__", [])]
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(os.path.realpath(frames[-1].filename).startswith(place) for place in places)


def answer(module: Any, row: dict[str, Any], kernels: Kernels) -> dict[str, Any]:
    """Make the calls of a row and return the answer. An exception is reported in the answer, not raised."""
    started = time.monotonic()
    said: dict[str, Any] = {"id": row["id"], "status": "done", "refused": False, "reason": ""}
    try:
        for call in row["calls"]:
            module.call(call)
    except BaseException as error:  # noqa: BLE001 - a wheel may raise anything, SystemExit included
        traceback.print_exc()
        lines = "".join(traceback.format_exception_only(type(error), error)).strip()
        said.update(status="failed", refused=refused(error, module.PACKAGE), reason=lines[:4000])
    return {**said, "kernels": kernels.take(), "seconds": round(time.monotonic() - started, 3)}


def forked(module: Any, row: dict[str, Any], kernels: Kernels) -> dict[str, Any]:
    """Make the calls of a row in a forked process and return the answer, or a failure if the process sends none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as out:
                json.dump(answer(module, row, kernels), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as incoming:
        text = incoming.read()
    _, status = os.waitpid(child, 0)
    if text:
        said: dict[str, Any] = json.loads(text)
        return said
    how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended without an answer"
    return {"id": row["id"], "status": "failed", "refused": False, "reason": f"its process was {how}", "kernels": []}


def main() -> None:
    """Print the first line of the output, read rows from standard input or from FILE, and print the answers."""
    gpu, lds, name, *file = sys.argv[1:]
    # The output of a wheel goes to standard error, because standard output carries the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    triton = importlib.import_module("triton")

    def send(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    send(about(triton))
    module, kernels = None, stand_in(gpu, int(lds), triton)
    with Path(file[0]).open(encoding="utf-8") if file else sys.stdin as rows:
        for line in rows:
            if module is None:
                module = importlib.import_module(name)
                getattr(module, "prepare", lambda: None)()
            send(forked(module, json.loads(line), kernels))


if __name__ == "__main__":
    main()
