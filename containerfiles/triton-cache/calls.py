"""Calls the functions of a wheel as its users do, under a driver that stands for a GPU's: Triton fills its cache.

    calls.py GPU LDS MODULE [FILE]      LDS: bytes of local memory of a workgroup, which the driver answers

MODULE, a file beside this one or on the module path, has `call(row)`, which makes the tensors and calls; and may have
`prepare()`, called once. `PACKAGE` is the wheel's top package. No GPU, no AMD driver and no ROCm are needed.

First line out: {"ready": true, "triton", "python", "triton_key": SHA-256 of Triton's own key, "mcv_key", "path": of
Triton, "cache": path of its cache, "variables": {NAME: value of each that is set and counts in the keys of it}}.
Then a row comes in as a JSON line, {"id", "calls": [{...}]}, or all of them from FILE, and an answer goes out:
{"id", "status": "done"|"failed", "refused": bool, "reason", "seconds", "kernels": [{"name", "hash", "hit"}]}.

CALLS_LAUNCHES, a folder that the environment names, gets HASH.json for each kernel: {"source": its file in the package,
"signature": [argument, type] in their order, "constexprs": {argument: value}}, by which it is launched without Triton.

Each row is a process of its own, forked before any kernel: Triton's key of a kernel depends on which others came before
it in the process, of those that share a function with it.

"refused": the wheel's own Python raised it, before any kernel failed: it has no configuration for the GPU or the call.
A module that cannot be imported is not a refusal: a package that the wheel needs is missing.
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
    """What Triton asks a driver about the device."""

    def __init__(self, lds: int) -> None:
        self._lds = lds

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Of these, local memory decides whether a kernel is refused."""
        return {"max_shared_mem": self._lds, "multiprocessor_count": 1}

    def load_binary(self, *_: Any) -> tuple[Any, Any, int, int, int]:
        """Module, function, registers, spills, threads of a workgroup."""
        return (None, None, 0, 0, 1024)


class Driver:
    """Stands for AMD's driver; launches nothing."""

    def __init__(self, target: Any, lds: int, kernels: Kernels) -> None:
        self._target, self._kernels, self.utils = target, kernels, Utils(lds)

    def get_current_target(self) -> Any:
        """The GPU."""
        return self._target

    def get_current_device(self) -> int:
        """Of one."""
        return 0

    def set_current_device(self, _: int) -> None:
        """There is one."""

    def get_current_stream(self, _: int) -> int:
        """There is one."""
        return 0

    def get_active_torch_device(self) -> Any:
        """The tensors are ordinary memory."""
        return sys.modules["torch"].device("cpu")

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        """What would start a kernel."""
        if "CALLS_LAUNCHES" in os.environ:
            describe(src, Path(os.environ["CALLS_LAUNCHES"], f"{metadata.hash}.json"))
        return lambda *_: self._kernels.launched(src.name, metadata.hash)


class Kernels:
    """Those that were launched since the last look, and whether Triton found each in its cache.

    Triton looks there once for each in a process, and tells a listener; later launches of the same take no look.
    """

    def __init__(self) -> None:
        self._hits: dict[str, bool] = {}
        self._rows: list[dict[str, Any]] = []

    def __call__(self, *, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        self._hits[metadata["hash"]] = cache_hit

    def launched(self, name: str, hash_: str) -> None:
        """Note a launch."""
        self._rows.append({"name": name, "hash": hash_, "hit": self._hits[hash_]})

    def take(self) -> list[dict[str, Any]]:
        """Since the last look."""
        rows, self._rows = self._rows, []
        return rows


def describe(src: Any, path: Path) -> None:
    """Write what a launch needs to know."""
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
    """A constant as in JSON; a type or a function is its name."""
    value = getattr(value, "value", value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else str(getattr(value, "__name__", value))


def about(triton: Any) -> dict[str, Any]:
    """What Triton's cache depends on here besides the kernels."""
    try:
        key = importlib.import_module("triton.runtime.cache").triton_key()
    except AttributeError:  # in 3.4 and before
        key = importlib.import_module("triton.compiler.compiler").triton_key()
    # MCV looks for it in one place only.
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
    """Set the driver, before the wheel is imported; what is compiled from now on is noted."""
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    lanes = 32 if int(gpu[3:-2]) >= 10 else 64
    kernels = Kernels()
    driver = Driver(target("hip", gpu, lanes), lds, kernels)
    importlib.import_module("triton.runtime.driver").driver.set_active(driver)
    triton.knobs.compilation.listener = kernels
    return kernels


def refused(error: BaseException, package: str) -> bool:
    """Whether the wheel's own Python raised it: the innermost place is in its folder."""
    if isinstance(error, ImportError):
        return False
    module = sys.modules.get(package)
    places = [os.fspath(Path(one).resolve()) + os.sep for one in getattr(module, "__path__", [])]
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(os.path.realpath(frames[-1].filename).startswith(place) for place in places)


def answer(module: Any, row: dict[str, Any], kernels: Kernels) -> dict[str, Any]:
    """Make the calls of a row; what one raises is an answer too."""
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
    """The answer of a process of its own."""
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
    """Answer rows until there are no more."""
    gpu, lds, name, *file = sys.argv[1:]
    # What a wheel prints must not be taken for an answer.
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
