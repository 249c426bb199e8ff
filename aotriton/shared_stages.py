"""Share the stages of kernels that differ only in launch options, until a stage reads a launch option.

Triton's stages run from the syntax tree to the code object. A rule describes one compilation (see worker.py). If rules
differ only in launch options (`LAUNCH`), the stages do the same work for them until a stage reads such an option. This
module intercepts these reads. At the first read of an option the process forks: it waits, and its child continues with
the value. If the next rule has the same value, and the child waits too, the rule is passed to the child. Otherwise the
waiting process forks another child.

The forked processes are a chain, in which each process is the child of the process before it. If the stages read the
three options in the order of `LAUNCH`, the chain is:

    worker ── waits before num_warps ── waits before num_stages ── waits before waves_per_eu ── writes the object

A child has a copy of its parent's memory, so it continues exactly as a process with only its own rule would. Only
`Pipeline` and `skip_parses` import Triton's modules.
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

# These are the launch options, in which the rules of a chain may differ.
LAUNCH = ("num_warps", "num_stages", "waves_per_eu")
_PR_SET_PDEATHSIG = 1

Rule = dict[str, Any]
Report = dict[str, Any]


class DiedError(Exception):
    """A process of the chain ended without a report. `status` is the status from `os.waitpid`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class _Child:
    """A child process of the chain."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self._link = link
        self._lines = link.makefile("r", encoding="utf-8")

    def tell(self, rule: Rule) -> None:
        """Send another rule to the child."""
        self._link.sendall(json.dumps(rule).encode() + b"\n")

    def report(self) -> Report:
        """Wait for the report of the last process of the chain and return it.

        Raises:
            DiedError: the child ended without a report.
        """
        try:
            line = self._lines.readline()
        except ConnectionError:
            line = ""
        if not line.endswith("\n"):
            self._close()
            raise DiedError(os.waitpid(self.pid, 0)[1])
        report: Report = json.loads(line)
        return report

    def end(self) -> None:
        """Close the connection, so that the child and its own children end, and wait for the child."""
        self._close()
        os.waitpid(self.pid, 0)

    def _close(self) -> None:
        self._lines.close()
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


class Chain:
    """Compile rules in chains of processes, with one chain at a time.

    Args:
        compile_here: a function that compiles a rule. It is called in the first process of a chain, and returns the
            report in the last process.
    """

    def __init__(self, compile_here: Callable[[SharedRule], Report]) -> None:
        self._compile_here = compile_here
        self._child: _Child | None = None
        self._group = ""

    def compile(self, group: str, rule: Rule) -> Report:
        """Compile a rule in the chain and return the report.

        Args:
            group: the values that all rules of a chain share, as text. If the current chain was started
                for another group, it is ended, and a new chain is started.

        Raises:
            DiedError: a process of the chain ended without a report.
            OSError: this process cannot fork.
        """
        if self._group != group:
            self.stop()
        try:
            child = self._child
            if child is None:
                forked = fork()
                if isinstance(forked, socket.socket):
                    shared = SharedRule(rule, forked)
                    shared.leave(self._compile_here(shared))
                self._group, self._child, child = group, forked, forked
            else:
                with contextlib.suppress(OSError):  # if the child has ended, `report` raises DiedError
                    child.tell(rule)
            report = child.report()
        except DiedError:
            self._child = None
            raise
        if report.pop("last") == child.pid:
            self.stop()
        return report

    def stop(self) -> None:
        """End all processes of the chain; the next call of `compile` starts a new chain."""
        if self._child is not None:
            self._child.end()
            self._child = None


class SharedRule:
    """The rule that a process compiles, and the launch options that the process has read.

    Args:
        up: the connection to the parent process; None in a process that compiles without a chain.
    """

    def __init__(self, rule: Rule, up: socket.socket | None = None) -> None:
        self.rule = rule
        self._up = up
        self._known: set[str] = set()

    def read(self, name: str) -> Any:
        """Return the value of a launch option.

        In a chain, the first read of an option forks, and the call returns in the child, unless the process has several
        threads or cannot fork.
        """
        if name not in self._known:
            if self._up is not None and is_single():
                self._stay(self._up, name)
            self._known.add(name)
        return self.rule[name]

    def leave(self, report: Report) -> NoReturn:
        """Send the report to the parent process and exit without cleanup."""
        try:
            if self._up is not None:
                self._up.sendall(json.dumps({**report, "last": os.getpid()}).encode() + b"\n")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)

    def _stay(self, up: socket.socket, name: str) -> None:
        """Fork a child for each value of the option, and wait for more rules. Normally only the children return.

        If this process cannot fork, it returns too, and compiles the rule itself.
        """
        lines = up.makefile("r", encoding="utf-8")
        child: _Child | None = None
        try:
            while True:
                value = self.rule[name]
                if child is None:
                    try:
                        forked = fork()
                    except OSError:
                        lines.close()
                        return
                    if isinstance(forked, socket.socket):
                        # Close the child's copies of the parent's connections, so that these end with the parent.
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
        except BaseException:  # noqa: BLE001 - this process must not return to its caller
            os._exit(1)


def fork() -> _Child | socket.socket:
    """Fork a child that ends with its parent; return the child, or the socket to the parent if this is the child."""
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
    """Return whether this process has only one thread; False if /proc cannot be read."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:
        return False


def die_like(status: int) -> NoReturn:
    """End this process as a child ended: by the same signal, or with the same exit code, or with 1 for the code 0."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) or 1)


class Pipeline:
    """Triton's stages without Triton's cache.

    `compile` does what `triton.compile` does between the read and the write of the cache.
    """

    def __init__(self) -> None:
        self._compiler = importlib.import_module("triton.compiler.compiler")
        self._ir = importlib.import_module("triton._C.libtriton").ir
        self._version = importlib.import_module("triton").__version__

    @classmethod
    def known(cls) -> Pipeline | None:
        """Return a pipeline, or None if `triton.compile` is not known to call the stages as `Pipeline.compile` does."""
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
        """Return the backend of a target, and the backend's options for the given values."""
        backend = self._compiler.make_backend(target)
        return backend, backend.parse_options(given)

    def compile(
        self, source: Any, target: Any, backend: Any, options: Any, shared: SharedRule
    ) -> tuple[bytes, dict[str, Any]]:
        """Compile a source and return the code object and its metadata. `shared` supplies the launch options."""
        watched = watch(options, shared)
        metadata = Metadata({"target": target, "triton_version": self._version, **vars(options)}, shared)
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


# These lines of `triton.compile` prepare and call the stages as `Pipeline.compile` does. `Pipeline` is used only if
# `triton.compile` contains all of them.
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


def watch(options: Any, shared: SharedRule) -> Any:
    """Return a copy of `options` that gets each launch option from `shared.read`, which may fork."""
    kind = type(options)
    kept = {name: value for name, value in vars(options).items() if name not in LAUNCH}

    def answer(name: str) -> property:
        return property(lambda _: shared.read(name))

    def everything(_: Any) -> types.MappingProxyType[str, Any]:
        return types.MappingProxyType({**kept, **{name: shared.read(name) for name in LAUNCH}})

    answers = {name: answer(name) for name in LAUNCH if hasattr(options, name)}
    watched: Any = object.__new__(type(kind.__name__, (kind,), {**answers, "__dict__": property(everything)}))
    for name, value in kept.items():
        object.__setattr__(watched, name, value)
    return watched


class Metadata(MutableMapping[str, Any]):
    """The metadata that the stages share. A launch option comes from `SharedRule.read` until a stage sets it."""

    def __init__(self, content: dict[str, Any], shared: SharedRule) -> None:
        self._content = content
        self._shared = shared
        self._set: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name in LAUNCH and name in self._content and name not in self._set:
            return self._shared.read(name)
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
    """Skip two parses of the LLVM IR whose results the AMD backend ignores, and return whether they are skipped.

    `translate_to_mir` and `dump_sched_dag` write dumps if the environment variable TRITON_DUMP_MIR is set, but always
    parse the LLVM IR. If the variable is not set, and the backend calls each of them once and ignores the results, they
    are replaced by functions that do nothing.
    """
    if os.environ.get("TRITON_DUMP_MIR"):
        return False
    try:
        backend = importlib.import_module("triton.backends.amd.compiler")
        text = Path(str(backend.__file__)).read_text(encoding="utf-8")
        llvm = importlib.import_module("triton._C.libtriton").llvm
    except (ImportError, OSError):
        return False
    if text.count("translate_to_mir(") != 1 or "_ = llvm.translate_to_mir(" not in text:
        return False
    if text.count("dump_sched_dag(") != 1 or "\n        llvm.dump_sched_dag(" not in text:
        return False
    llvm.translate_to_mir = lambda *_: ""
    llvm.dump_sched_dag = lambda *_: None
    return True
