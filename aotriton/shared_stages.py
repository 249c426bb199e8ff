"""Compiles kernels that differ in launch options alone as one, up to where they come to differ.

Triton's stages run from the syntax tree to the code object. For rules of one function, signature and GPU they do the
same work until one of them reads a launch option: warps, stages or waves per EU. So those options are watched. At the
first read of one, the process stays where it is, and a child continues with the value. For the next rule that process
makes a new child, with the other value.

    worker: reads the rule ── before num_warps ── before num_stages ── before waves_per_eu: object

There is one such chain at a time, each process the child of the one before it. Nothing is stored under a key, so no key
can lack anything. A child has the memory of its parent, byte for byte, and does from there what a process with that
option alone would do. Needs the standard library; Triton's modules are imported when the first kernel is compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import signal
import socket
import sys
import types
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

# What rules of one group may differ in.
LAUNCH = ("num_warps", "num_stages", "waves_per_eu")
_PR_SET_PDEATHSIG = 1

Rule = dict[str, Any]
Report = dict[str, Any]


class DiedError(Exception):
    """A process of the chain is gone without a report; `status` is as `os.waitpid` gives it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class _Child:
    """A process that this one forked, which compiles or waits."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self._link = link
        self._lines = link.makefile("r", encoding="utf-8")

    def tell(self, rule: Rule) -> None:
        """Have it continue with another rule."""
        self._link.sendall(json.dumps(rule).encode() + b"\n")

    def report(self) -> Report:
        """The report of the last process of the chain.

        Raises:
            DiedError: the child has ended without one.
        """
        line = self._lines.readline()
        if not line.endswith("\n"):
            self._close()
            raise DiedError(os.waitpid(self.pid, 0)[1])
        report: Report = json.loads(line)
        return report

    def end(self) -> None:
        """Let it end: it ends when no process can write to it, and waits for its own child."""
        self._close()
        os.waitpid(self.pid, 0)

    def _close(self) -> None:
        self._lines.close()
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


class Chain:
    """The processes of one group, as the worker sees them.

    Args:
        compile_here: what the first process of a chain does; it returns in the last one, with the report.
    """

    def __init__(self, compile_here: Callable[[Road], Report]) -> None:
        self._compile_here = compile_here
        self._child: _Child | None = None
        self._group = ""

    def compile(self, group: str, rule: Rule) -> Report:
        """The report for a rule.

        Args:
            group: all that rules of one chain must have alike; another one's chain is given up.

        Raises:
            DiedError: the compiler died.
        """
        if self._group != group:
            self.stop()
        try:
            child = self._child
            if child is None:
                forked = fork()
                if isinstance(forked, socket.socket):
                    road = Road(rule, forked)
                    road.leave(self._compile_here(road))
                self._group, self._child, child = group, forked, forked
            else:
                child.tell(rule)
            report = child.report()
        except DiedError:
            self._child = None
            raise
        if report.pop("last") == child.pid:
            self.stop()
        return report

    def stop(self) -> None:
        """Give up what is there."""
        if self._child is not None:
            self._child.end()
            self._child = None


class Road:
    """How far one process of a chain has come: its rule, and which launch options were read on the way.

    Args:
        up: the process before this one; None in a process that compiles alone.
    """

    def __init__(self, rule: Rule, up: socket.socket | None = None) -> None:
        self.rule = rule
        self._up = up
        self._known: set[str] = set()

    def read(self, name: str) -> Any:
        """The value of a launch option; at the first read, in the process that continues with that value."""
        if name not in self._known:
            if self._up is not None and is_single():
                self._stay(self._up, name)
            self._known.add(name)
        return self.rule[name]

    def leave(self, report: Report) -> NoReturn:
        """Report as the last one and end, without tidying up what no one needs any more."""
        try:
            if self._up is not None:
                self._up.sendall(json.dumps({**report, "last": os.getpid()}).encode() + b"\n")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)

    def _stay(self, up: socket.socket, name: str) -> None:
        """Stay for as long as rules come that share what was done so far. Only its children return from here."""
        lines = up.makefile("r", encoding="utf-8")
        child: _Child | None = None
        try:
            while True:
                value = self.rule[name]
                if child is None:
                    try:
                        forked = fork()
                    except OSError:
                        # No room for a further process: this one continues itself, and shares nothing more.
                        lines.close()
                        return
                    if isinstance(forked, socket.socket):
                        # What leads further up must close when the one above ends, so no other process may hold it.
                        lines.close()
                        up.close()
                        self._up = forked
                        return
                    child = forked
                else:
                    child.tell(self.rule)
                report = child.report()
                if report["last"] == child.pid:
                    child.end()
                    child = None
                up.sendall(json.dumps(report).encode() + b"\n")
                line = lines.readline()
                self.rule = json.loads(line) if line.endswith("\n") else {}
                if child is not None and self.rule.get(name) != value:
                    child.end()
                    child = None
                if not self.rule:
                    os._exit(0)
        except DiedError as error:
            die_like(error.status)
        except BaseException:  # noqa: BLE001 - the one above is gone: nothing may continue in its place
            os._exit(1)


def fork() -> _Child | socket.socket:
    """The child in the parent; in the child the socket to the parent, with whom it ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return _Child(pid, ours)
    ours.close()
    _end_with_parent(parent)
    return theirs


def _end_with_parent(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


_LIBC = ctypes.CDLL(None)


def is_single() -> bool:
    """Whether this process has one thread: a fork has no other, and would wait for it for ever."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:
        return False


def die_like(status: int) -> NoReturn:
    """End as a child did, so that who waits for this process learns how."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) or 1)


class Pipeline:
    """Triton's stages without its cache: no key over all sources, no files beside the object's own.

    Does what `triton.compile` does between its look into the cache and its write to it.
    """

    def __init__(self) -> None:
        self._compiler = importlib.import_module("triton.compiler.compiler")
        self._ir = importlib.import_module("triton._C.libtriton").ir
        self._version = importlib.import_module("triton").__version__

    @classmethod
    def known(cls) -> Pipeline | None:
        """One, or None for a Triton whose `compile` hands other things to its stages than is known here."""
        try:
            pipeline = cls()
            make = inspect.signature(pipeline._compiler.ASTSource.make_ir)
            text = inspect.getsource(pipeline._compiler.compile)
        except (ImportError, AttributeError, OSError, TypeError):
            return None
        wanted = ["self", "target", "options", "codegen_fns", "module_map", "context"]
        fits = list(make.parameters) == wanted and all(line in text for line in _KNOWN)
        return pipeline if fits else None

    def options(self, target: Any, given: dict[str, Any]) -> tuple[Any, Any]:
        """The backend of a target, and the options that it makes of what is given."""
        backend = self._compiler.make_backend(target)
        return backend, backend.parse_options(given)

    def compile(self, source: Any, target: Any, backend: Any, options: Any, road: Road) -> tuple[bytes, dict[str, Any]]:
        """A code object and its metadata; the launch options are those of `road`."""
        watched = watch(options, road)
        metadata = Metadata({"target": target, "triton_version": self._version, **vars(options)}, road)
        stages: dict[str, Callable[[Any, Any], Any]] = {}
        backend.add_stages(stages, watched, source.language)
        context = self._ir.context()
        self._ir.load_dialects(context)
        backend.load_dialects(context)
        codegen, modules = backend.get_codegen_implementation(watched), backend.get_module_map()
        module = source.make_ir(target, watched, codegen, modules, context)
        names = list(stages)
        for name in names[names.index(source.ext) :]:
            module = stages[name](module, metadata)
        return bytes(module), dict(metadata)


# Lines of `triton.compile` that say what the stages get: with others, what is done here would be something else.
_KNOWN = (
    "metadata = {",
    "**options.__dict__,",
    "backend.add_stages(stages, options, src.language)",
    "context = ir.context()",
    "ir.load_dialects(context)",
    "backend.load_dialects(context)",
    "codegen_fns = backend.get_codegen_implementation(options)",
    "module_map = backend.get_module_map()",
    "module = src.make_ir(target, options, codegen_fns, module_map, context)",
    "next_module = compile_ir(module, metadata)",
)


def watch(options: Any, road: Road) -> Any:
    """The options, of a class that lets a road answer for the launch options. No other way leads to their values."""
    kind = type(options)
    kept = {name: value for name, value in vars(options).items() if name not in LAUNCH}

    def answer(name: str) -> property:
        return property(lambda _: road.read(name))

    def everything(_: Any) -> types.MappingProxyType[str, Any]:
        return types.MappingProxyType({**kept, **{name: road.read(name) for name in LAUNCH}})

    answers = {name: answer(name) for name in LAUNCH if hasattr(options, name)}
    watched: Any = object.__new__(type(kind.__name__, (kind,), {**answers, "__dict__": property(everything)}))
    for name, value in kept.items():
        object.__setattr__(watched, name, value)
    return watched


class Metadata(MutableMapping[str, Any]):
    """What the stages tell each other; a launch option that no stage has set is read from the road."""

    def __init__(self, content: dict[str, Any], road: Road) -> None:
        self._content = content
        self._road = road
        self._set: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name in LAUNCH and name in self._content and name not in self._set:
            return self._road.read(name)
        return self._content[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._set.add(name)
        self._content[name] = value

    def __delitem__(self, name: str) -> None:
        self._set.add(name)
        del self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


def skip_parses() -> bool:
    """Leave out what the AMD backend parses each kernel for twice without using it; whether there was something.

    Its two dumps of the scheduler look for the variable that asks for them after they have parsed the LLVM IR.
    """
    if os.environ.get("TRITON_DUMP_MIR"):
        return False
    try:
        backend = importlib.import_module("triton.backends.amd.compiler")
        text = Path(str(backend.__file__)).read_text(encoding="utf-8")
        llvm = importlib.import_module("triton._C.libtriton").llvm
    except (ImportError, OSError):
        return False
    # Only where nothing uses what they return.
    if text.count("translate_to_mir(") != 1 or "_ = llvm.translate_to_mir(" not in text:
        return False
    if text.count("dump_sched_dag(") != 1 or "\n        llvm.dump_sched_dag(" not in text:
        return False
    llvm.translate_to_mir = lambda *_: ""
    llvm.dump_sched_dag = lambda *_: None
    return True
