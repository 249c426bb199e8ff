"""Compile kernels inside the Triton image: read rules as JSON lines and write answers as JSON lines.

The worker needs Python 3.9 or newer and Triton, but no GPU and no driver. Everything that a kernel module or the
compiler prints goes to standard error.

The first line of the output is `{"ready": true, "triton": VERSION, "python": VERSION, "bitcode": {NAME: SHA-256}}`, in
which `bitcode` contains the digests of the AMD backend's bitcode libraries.

A rule is `{"id", "root", "source", "kernel", "signature": {argument: type}, "constexprs": {argument: value}, "target",
"num_warps", "num_stages", "waves_per_eu", "options": {...}, "out"}`. Paths are those of the container. `root` is added
to the module path, `source` is a Python file below it, and `kernel` is the name of a jit function in this file. A type
is either `constexpr`, with a value in `constexprs`, or one of Triton's types, such as `*fp16` or `i32`, with the suffix
`:16` or `:8` if the argument is divisible by that number. The value `{"dtype": "fp16"}` stands for Triton's type
`fp16`. `target` is LLVM's name for the GPU, the optional `options` are further options of the AMD backend, and `out` is
the path of the object. The object's JSON file has the same path with the suffix `.json`.

An answer is `{"id", "status": "done"|"failed", "seconds", "reason"}`. If the status is "done", `reason` is empty, and
the answer also has `"object", "json", "sha256", "size", "bitcode"`: the paths of the object and of its JSON file, the
digest and the size of the object, and the names of the bitcode libraries that were linked into it. Both files are
complete and on disk before the answer is written.

The environment variable KERNEL_WORKER_WITHOUT switches optimisations off. Its value is a comma-separated list of their
names: `shared` (rules share their common stages, see `shared_stages.py`), `direct` (Triton's stages run without its
cache; `shared` needs `direct`), and `parses` (modules are not parsed again for dumps that were not requested). No
optimisation changes a byte of an object.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import shared_stages
from shared_stages import LAUNCH, Chain, Pipeline, SharedRule

# These are the target, backend, options and source object of a rule.
Prepared = tuple[Any, Any, Any, Any]
LEVERS = ("shared", "direct", "parses")
WITHOUT = "KERNEL_WORKER_WITHOUT"
# These environment variables are set before Triton is imported.
ENVIRONMENT = {
    # Without this, the object contains the path and the line numbers of the kernel's source.
    "TRITON_DISABLE_LINE_INFO": "1",
    "TRITON_STORE_BINARY_ONLY": "1",
    # With these values, Triton reads no overrides of its stages, writes no dumps, and does not ignore its cache.
    "TRITON_KERNEL_OVERRIDE": "0",
    "TRITON_KERNEL_DUMP": "0",
    "TRITON_ALWAYS_COMPILE": "0",
}
# These keys of Triton's metadata are kept. Others are dropped, because some contain paths in this image or a hash of
# Triton's own files.
METADATA = (
    "allow_flush_denorm",
    "arch",
    "backend_name",
    "default_dot_input_precision",
    "enable_fp_fusion",
    "global_scratch_align",
    "global_scratch_size",
    "kpack",
    "matrix_instr_nonkdim",
    "name",
    "num_ctas",
    "num_stages",
    "num_warps",
    "profile_scratch_align",
    "profile_scratch_size",
    "sanitize_overflow",
    "schedule_hint",
    "shared",
    "triton_version",
    "warp_size",
    "waves_per_eu",
)


class _Modules:
    """The imported kernel modules. Only one root is on the module path at a time."""

    def __init__(self) -> None:
        self._root = ""

    def load(self, root: str, source: str) -> Any:
        """Import `source` by its dotted name below `root`, so that relative imports work, and return the module.

        Raises:
            ValueError: `source` is not a Python file below `root`.
        """
        root = os.path.realpath(root)
        relative = os.path.relpath(os.path.realpath(source), root)
        if relative.startswith("..") or not relative.endswith(".py"):
            raise ValueError(f"{source} is not a Python file below {root}")
        if root != self._root:
            self._leave()
            sys.path.insert(0, root)
            self._root = root
            importlib.invalidate_caches()
        return importlib.import_module(relative[:-3].replace(os.sep, "."))

    def _leave(self) -> None:
        if not self._root:
            return
        sys.path.remove(self._root)
        inside = self._root + os.sep
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(inside):
                del sys.modules[name]


class Compiler:
    """Compile rules with Triton, one at a time."""

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        on = set(LEVERS) - set(os.environ.get(WITHOUT, "").split(","))
        if "shared" in on:
            # A forked process has only the thread that called fork, so MLIR's threads would be missing.
            os.environ["MLIR_DISABLE_MULTITHREADING"] = "1"
        sys.dont_write_bytecode = True
        self._modules = _Modules()
        self._linked: list[str] = []
        # Some versions of Triton import setuptools to build launchers, which are not built here.
        if importlib.util.find_spec("setuptools") is None:
            sys.modules["setuptools"] = types.ModuleType("setuptools")
        self.triton = importlib.import_module("triton")
        self._compiler = importlib.import_module("triton.compiler")
        self._backends = importlib.import_module("triton.backends.compiler")
        self._watch_bitcode()
        if "parses" in on:
            shared_stages.skip_parses()
        self._pipeline = Pipeline.known() if "direct" in on else None
        self._chain = Chain(self._report) if "shared" in on and self._pipeline is not None else None
        self._warm = False
        self._prepared: Prepared = (None, None, None, None)

    def hello(self) -> dict[str, Any]:
        """Return the content of the first output line, which describes this Triton."""
        folder = Path(str(self.triton.__file__)).parent / "backends" / "amd" / "lib"
        bitcode = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.bc"))}
        versions = {"triton": self.triton.__version__, "python": platform.python_version()}
        return {"ready": True, **versions, "bitcode": bitcode}

    def _watch_bitcode(self) -> None:
        """Replace `link_extern_libs` by a function that also records the names of the linked bitcode libraries."""
        llvm = importlib.import_module("triton._C.libtriton").llvm
        link = llvm.link_extern_libs

        def watched(module: Any, paths: list[str], *more: Any) -> Any:
            self._linked.extend(Path(path).stem for path in paths)
            return link(module, paths, *more)

        llvm.link_extern_libs = watched

    def function(self, root: str, source: str, kernel: str) -> Any:
        """Return the jit function `kernel` of a file, without the autotuners and heuristics around it.

        Raises:
            ValueError: the file has no such function, or is not a Python file below `root`.
        """
        found = getattr(self._modules.load(root, source), kernel, None)
        function = unwrap(found)
        if function is None:
            raise ValueError(f"{source} has no jit function {kernel}")
        return function

    def source(self, rule: dict[str, Any]) -> Any:
        """Return Triton's source object for a rule: the function, types, constants and divisibility.

        Raises:
            ValueError: the function is missing, or the signature or the constants do not fit its arguments.
        """
        function = self.function(rule["root"], rule["source"], rule["kernel"])
        constants = {name: self._constant(value) for name, value in rule["constexprs"].items()}
        names = list(function.arg_names)
        given = rule["signature"]
        if sorted(given) != sorted(names):
            odd = sorted(set(given) ^ set(names))
            raise ValueError(f"the signature of {rule['kernel']} differs from the function's arguments in {odd}")
        lacking = [name for name in names if (given[name] == "constexpr") != (name in constants)]
        if lacking:
            raise ValueError(f"constexpr without a value, or a value without constexpr: {lacking}")
        types, attributes = {}, {}
        for index, name in enumerate(names):
            kind, _, divisible = given[name].partition(":")
            types[name] = kind
            if divisible:
                attributes[(index,)] = [["tt.divisibility", int(divisible)]]
        make = self._compiler.ASTSource
        if "constexprs" in inspect.signature(make.__init__).parameters:
            return make(fn=function, signature=types, constexprs=constants, attrs=attributes)
        # In Triton 3.2 and older, the signature omits constants, and a descriptor contains the divisibility.
        hints = {index: hint[0][1] for (index,), hint in attributes.items()}
        if not hasattr(self._backends, "AttrsDescriptor"):
            # Triton before 3.2 identifies arguments by number and supports divisibility by 16 only.
            by_number = {names.index(name): value for name, value in constants.items()}
            types = {index: types[name] for index, name in enumerate(names) if name not in constants}
            even = tuple(index for index, hint in hints.items() if hint == 16)
            descriptor = self._compiler.AttrsDescriptor(divisible_by_16=even, equal_to_1=())
            return make(fn=function, signature=types, constants=by_number, attrs=descriptor)
        descriptor = self._backends.AttrsDescriptor.from_hints(hints)
        runtime = {name: kind for name, kind in types.items() if kind != "constexpr"}
        return make(fn=function, signature=runtime, constants=constants, attrs=descriptor)

    def _constant(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self.triton.language.str_to_ty(value["dtype"], None)
        return value

    def compile(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Compile a rule without sharing stages, write both files, and return the part of the answer about them.

        Any exception of Triton or of the kernel's module is passed on.
        """
        return self._compile(rule, self._prepare(rule), SharedRule(rule))

    def report(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Compile a rule, share stages with other rules if possible, and return the answer without the id and the time.

        A failure is reported in the answer, not raised. If a process of the chain dies, this process ends in the
        same way.
        """
        outcome: dict[str, Any]
        try:
            prepared = self._prepare(rule)
            # The first rule is compiled in this process, so that later ones inherit what Triton loads on first use.
            if self._chain is not None and self._warm and shared_stages.is_single():
                kept = sorted((name, repr(value)) for name, value in vars(prepared[2]).items() if name not in LAUNCH)
                same = {name: value for name, value in rule.items() if name not in {*LAUNCH, "id", "out"}}
                self._prepared = prepared
                outcome = self._chain.compile(json.dumps([same, kept], sort_keys=True), rule)
            else:
                self._warm = True
                outcome = {"status": "done", "reason": "", **self._compile(rule, prepared, SharedRule(rule))}
        except KeyboardInterrupt:
            raise
        except shared_stages.DiedError as error:
            shared_stages.die_like(error.status)
        except BaseException as error:  # noqa: BLE001 - a kernel module may raise anything, SystemExit included
            traceback.print_exc()
            outcome = {"status": "failed", "reason": reason(error)}
        return outcome

    def _report(self, shared: SharedRule) -> dict[str, Any]:
        """Compile a rule in a process of the chain, and return the answer in the form that `report` returns."""
        try:
            return {"status": "done", "reason": "", **self._compile(shared.rule, self._prepared, shared)}
        except BaseException as error:  # noqa: BLE001 - a kernel module may raise anything
            traceback.print_exc()
            return {"status": "failed", "reason": reason(error)}

    def stop(self) -> None:
        """End the processes that wait for the next rule."""
        if self._chain is not None:
            self._chain.stop()

    def _prepare(self, rule: dict[str, Any]) -> Prepared:
        """Return the target, backend, options and source object of a rule.

        The backend and the options are None if the worker calls `triton.compile`, because the optimisation `direct` is
        switched off or `Pipeline` does not fit this Triton.
        """
        arch = rule["target"]
        target = self._backends.GPUTarget("hip", arch, 32 if int(arch[3:-2]) >= 10 else 64)
        source = self.source(rule)
        if self._pipeline is None:
            return target, None, None, source
        backend, options = self._pipeline.options(target, _options(rule))
        # Triton refuses some kernels only while it computes the cache key.
        _ = source.fn.cache_key
        return target, backend, options, source

    def _compile(self, rule: dict[str, Any], prepared: Prepared, shared: SharedRule) -> dict[str, Any]:
        target, backend, options, source = prepared
        self._linked.clear()
        if self._pipeline is None:
            with own_cache():
                compiled = self.triton.compile(source, target=target, options=_options(rule))
                code, known = bytes(compiled.kernel), compiled.metadata._asdict()
        else:
            code, known = self._pipeline.compile(source, target, backend, options, shared)
        rule = shared.rule  # a forked process may have received another rule
        if not code:
            raise ValueError("the compiler made an empty object")
        metadata = {name: known[name] for name in METADATA if name in known}
        metadata.update(launch_data(rule, source.fn.arg_names))
        bitcode = sorted(set(self._linked))
        metadata.update({"bitcode": bitcode, "compile_status": "Complete"})
        path = Path(rule["out"])
        beside = path.with_suffix(".json")
        # Write the JSON first, because an object with its final name marks a finished rule.
        write(beside, (json.dumps(metadata, indent=1, sort_keys=True) + "\n").encode())
        write(path, code)
        digest = hashlib.sha256(code).hexdigest()
        return {"object": str(path), "json": str(beside), "sha256": digest, "size": len(code), "bitcode": bitcode}


def launch_data(rule: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the values that a launch of the object needs in addition to Triton's metadata.

    Args:
        names: the names of the function's arguments, in order.

    Returns:
        `source`: the path of the kernel's file relative to `root`. `signature`: pairs of argument and type, in the
        function's order. `constexprs`: the value of each constant by argument.
    """
    source = os.path.relpath(os.path.realpath(rule["source"]), os.path.realpath(rule["root"]))
    return {
        "source": source.replace(os.sep, "/"),
        "signature": [[name, rule["signature"][name]] for name in names],
        "constexprs": rule["constexprs"],
    }


def _options(rule: dict[str, Any]) -> dict[str, Any]:
    return {**{name: rule[name] for name in LAUNCH}, **rule.get("options", {})}


def unwrap(found: Any) -> Any:
    """Return the jit function inside autotuners and heuristics, or None if there is no jit function."""
    for _ in range(8):
        if hasattr(found, "arg_names") and hasattr(found, "src"):
            return found
        found = getattr(found, "fn", None)
    return None


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """Give Triton an empty cache during the block, so that it does not reuse an earlier result."""
    folder = tempfile.mkdtemp(prefix="kernel-")
    os.environ["TRITON_CACHE_DIR"] = folder
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def reason(error: BaseException) -> str:
    """Return a description of the exception and up to three of its causes, in at most 4,000 characters."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    causes: list[str] = []
    inner = error.__cause__ or error.__context__
    while inner is not None and len(causes) < 3:
        causes.append("".join(traceback.format_exception_only(type(inner), inner)).strip())
        inner = inner.__cause__ or inner.__context__
    return "\nbecause ".join([text, *causes])[:4000]


def answer(compiler: Compiler, rule: dict[str, Any]) -> dict[str, Any]:
    """Compile a rule and return the answer. A failure is reported in the answer, not raised."""
    started = time.monotonic()
    result = {"id": rule.get("id", ""), **compiler.report(rule)}
    return {**result, "seconds": round(time.monotonic() - started, 3)}


def serve() -> int:
    """Read rules from standard input and write their answers, until the input ends; return the exit code."""
    # The protocol uses copies of the file descriptors 0 and 1. Descriptor 1 is redirected to standard error, so that
    # prints do not disturb the protocol.
    incoming = os.fdopen(os.dup(0), "r", encoding="utf-8")
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    def send(value: dict[str, Any]) -> None:
        outgoing.write(json.dumps(value) + "\n")
        outgoing.flush()

    compiler = Compiler()
    send(compiler.hello())
    for line in incoming:
        if line.strip():
            send(answer(compiler, json.loads(line)))
    compiler.stop()
    return 0


if __name__ == "__main__":
    sys.exit(serve())
