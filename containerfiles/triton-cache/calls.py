"""Call functions of a wheel with a substitute for Triton's driver, so that Triton compiles kernels into its cache.

    calls.py GPU LDS MODULE [FILE]      LDS: the largest size of a workgroup's local memory on the GPU, in bytes

No GPU, GPU driver or ROCm is needed. MODULE is the name of a Python module in this folder or elsewhere on the module
path. Its function `call` makes tensors and calls a function of the wheel. Its function `prepare`, if it exists, is
called once, before the first call. Its constant `PACKAGE` is the name of the wheel's top-level package.

A row is a JSON line of FILE or of standard input, {"id", "calls": [{...}]}. `call` is called with each item of "calls".
The first line of the output is {"ready": true, "triton": version, "python": version, "triton_key": SHA-256 of Triton's
own key, "mcv_key": Triton's key as Model Cache Vault (MCV) finds it, "path": the path of Triton, "cache": the path of
its cache, "variables": {name: value}}. "variables" is the result of Triton's `get_cache_invalidating_env_vars`. Each
further line is the answer to a row, {"id", "status": "done"|"failed", "refused": bool, "reason", "seconds", "kernels":
[{"name", "hash", "hit"}]}. "kernels" has an item for each launch, whose "hit" is true if the kernel was in the cache.
There is no "seconds" if the row's process ended before it answered.

"refused" is true if the wheel's own Python code raised the exception, for example because it has no configuration for
the GPU. An ImportError is not a refusal, because it means that a package that the wheel needs is missing.

If the environment variable CALLS_LAUNCHES names a folder, calls.py writes a launch file HASH.json there for each
kernel, with the values that a launch without Triton needs: {"source": the path of the kernel's Python file in its
top-level package, "signature": [[argument, type], ...] in order, "constexprs": {argument: value}}.

calls.py forks a process for each row, and itself compiles no kernel, because Triton's key of a kernel depends on which
kernels with shared functions the same process compiled before.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Utils:
    """A substitute for the `utils` object of Triton's driver."""

    def __init__(self, lds: int) -> None:
        self._lds = lds

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Return device properties. Triton refuses a kernel that needs over `max_shared_mem` bytes of local memory."""
        return {"max_shared_mem": self._lds, "multiprocessor_count": 1}

    def load_binary(self, *_: Any) -> tuple[Any, Any, int, int, int]:
        """Return no module and no function, no registers and no spills, and the maximum workgroup size.

        Triton refuses a kernel that needs more threads than the maximum.
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
        """Do nothing, because there is only one device."""

    def get_current_stream(self, _: int) -> int:
        """Return the handle of the default stream."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Return PyTorch's CPU device, because the tensors are in host memory."""
        return sys.modules["torch"].device("cpu")

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        """Return a function that records a launch of the kernel. If CALLS_LAUNCHES is set, write the launch file."""
        if "CALLS_LAUNCHES" in os.environ:
            describe(src, Path(os.environ["CALLS_LAUNCHES"], f"{metadata.hash}.json"))
        return lambda *_: self._kernels.launched(src.name, metadata.hash)


class Kernels:
    """A listener for Triton's compilations, which also records the launches of kernels.

    Triton calls the listener when it compiles a kernel or loads it from its cache, and not for later launches.
    """

    def __init__(self) -> None:
        self._hits: dict[str, bool] = {}
        self._rows: list[dict[str, Any]] = []

    def __call__(self, *, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        self._hits[metadata["hash"]] = cache_hit

    def launched(self, name: str, hash_: str) -> None:
        """Record a launch of a kernel, and whether the kernel was in the cache."""
        self._rows.append({"name": name, "hash": hash_, "hit": self._hits[hash_]})

    def take(self) -> list[dict[str, Any]]:
        """Return the recorded launches and clear the record."""
        rows, self._rows = self._rows, []
        return rows


def describe(src: Any, path: Path) -> None:
    """Write the launch file of a kernel to `path`. The module's docstring describes its format."""
    names, (top, *below) = src.fn.arg_names, src.fn.fn.__module__.split(".")
    constants = {names[at[0]]: plain(value) for at, value in src.constants.items() if len(at) == 1}
    launch = {
        "source": "/".join(below or [top]) + ".py",
        "signature": [[name, str(src.signature[name])] for name in names],
        "constexprs": constants,
    }
    # Other containers, whose processes may have the same ids, write to this folder too.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    partial.write_text(json.dumps(launch, sort_keys=True), encoding="utf-8")
    partial.replace(path)


def plain(value: Any) -> Any:
    """Return a constant as a JSON value.

    An object that JSON cannot represent becomes its `__name__` or, if it has none, its `str`.
    """
    value = getattr(value, "value", value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else str(getattr(value, "__name__", value))


def about(triton: Any) -> dict[str, Any]:
    """Return the first line of the output as a dictionary."""
    try:
        key = importlib.import_module("triton.runtime.cache").triton_key()
    except AttributeError:  # in Triton 3.4 and older, the function is in another module
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
    """Replace Triton's driver, and return the record of launches. Import the wheel only after this call."""
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    lanes = 32 if int(gpu[3:-2]) >= 10 else 64
    kernels = Kernels()
    driver = Driver(target("hip", gpu, lanes), lds, kernels)
    importlib.import_module("triton.runtime.driver").driver.set_active(driver)
    triton.knobs.compilation.listener = kernels
    return kernels


def refused(error: BaseException, package: str) -> bool:
    """Return whether the package's own code raised the error, and the error is not an ImportError."""
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
    """Print the facts about Triton, then read rows and print their answers until the input ends."""
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
