"""A tiny code object, made by hand, and a worker that speaks the protocol without Triton."""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolchain.catalog.gpus import machine_flag
from toolchain.core.process import die_with_parent
from toolchain.core.stored_file import StoredFile
from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.executors import LocalExecutor
from toolchain.kernels.pool import CompileSetup
from toolchain.kernels.rules import Rule
from toolchain.kernels.worker_process import Job, MakeWorker, Worker


def local_executor(
    start: MakeWorker,
    *,
    workers: int,
    timeout: float | None = None,
    bounds: MemoryBounds | None = None,
    files: Callable[[Rule], str] = lambda _: "",
    seen: str = "",
    scratch: Path | None = None,
) -> LocalExecutor:
    """Return an executor whose workers `start` starts. All rules have the same sources unless `files` names others."""
    naming: Any = SimpleNamespace(files=files)
    setup = CompileSetup(start=start, naming=naming, out=Path(), source="", seen=seen, scratch=scratch)
    return LocalExecutor(setup, workers=workers, timeout=timeout, bounds=bounds)


def aks2(*kernels: tuple[str, bytes], launch: tuple[int, int] = (1024, 256)) -> bytes:
    """Return an .aks2 file, packed without code of the tool."""
    directory, blobs, offset = b"", b"", 0
    for name, content in kernels:
        raw = name.encode() + b"\0"
        values = launch if content else (0, 0)
        directory += struct.pack("<IIIII", *values, offset, len(content), len(raw)) + raw
        blobs += content
        offset += len(content)
    head = struct.pack("<III", len(directory) + len(blobs), len(kernels), len(directory))
    return b"AKS2" + head + lzma.compress(directory + blobs)


def stored(name: str, content: bytes) -> StoredFile:
    """Return a StoredFile with this name and content."""
    return StoredFile(name, len(content), lambda: io.BytesIO(content))


def make_object(gpu: str, kernel: str, *, machine: int = 224, osabi: int = 64, descriptor: int = 64) -> bytes:
    """Return the smallest ELF file with a kernel's two dynamic symbols; `descriptor` 0 omits the descriptor."""
    names = b"\0" + kernel.encode() + b"\0" + kernel.encode() + b".kd\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 3, 3, 0x1000, 4)
    if descriptor:
        symbols += struct.pack("<IBBHQQ", 2 + len(kernel), 0x11, 3, 3, 0x2000, descriptor)
    sections = b"\0.dynsym\0.dynstr\0.shstrtab\0"
    at_names = 64
    at_symbols = at_names + len(names)
    at_sections = at_symbols + len(symbols)
    at_headers = at_sections + len(sections)

    def header(name: int, kind: int, offset: int, size: int, *, link: int = 0, entry: int = 0) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, link, 1 if link else 0, 1, entry)

    headers = (
        header(0, 0, 0, 0)
        + header(1, 11, at_symbols, len(symbols), link=2, entry=24)
        + header(9, 3, at_names, len(names))
        + header(17, 3, at_sections, len(sections))
    )
    ident = b"\x7fELF" + bytes([2, 1, 1, osabi, 3]) + bytes(7)
    head = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, at_headers, machine_flag(gpu), 64, 0, 0, 64, len(headers) // 64, 3
    )
    return head + names + symbols + sections + headers


def endless(content: bytes) -> dict[str, bytes]:
    """Return code objects that claim 2^60 sections or 2^32 - 1 segments."""
    sections, segments = bytearray(content), bytearray(content)
    # The number of sections is in the first section, because the header says 0. All sections have the same offset,
    # because the size of an entry is 0.
    struct.pack_into("<HHH", sections, 58, 0, 0, 0)
    (first,) = struct.unpack_from("<Q", sections, 40)
    struct.pack_into("<Q", sections, first + 32, 1 << 60)
    struct.pack_into("<HH", segments, 54, 0, 0xFFFF)
    struct.pack_into("<I", segments, first + 44, 0xFFFFFFFF)
    return {"sections": bytes(sections), "segments": bytes(segments)}


def make_rule(kernel: str, *, target: str = "gfx942", cluster: str = "", warps: int = 4) -> Rule:
    """Return a rule; with default arguments it differs from others only by its kernel's name."""
    return Rule(
        source="kernels.py",
        root="",
        kernel=kernel,
        signature=(("x", "*fp32:16"),),
        constexprs=(),
        target=target,
        num_warps=warps,
        num_stages=1,
        waves_per_eu=0,
        out=f"{target}/{kernel}/warps-{warps}.hsaco",
        cluster=cluster or f"{target}/{kernel}",
    )


# The kernel's name selects the behaviour; the file `tries` has a line for each attempt.
FAKE_WORKER = """
import hashlib, json, os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(sys.argv[1])
with (here / "started").open("a") as stream:
    stream.write(f"{os.getpid()}\\n")
if (here / "broken").exists():
    print("no module named triton", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"ready": True, "triton": "0.0"}), flush=True)
kept = []
for line in sys.stdin:
    task = json.loads(line)
    with (here / "tries").open("a") as stream:
        stream.write(task["kernel"] + "\\n")
    kernel = task["kernel"]
    answer = {"id": task["id"], "status": "done", "seconds": 0.5, "reason": ""}
    print("a compiler's chatter", flush=True)
    if kernel == "fails":
        answer.update(status="failed", reason="TypeError: cannot\\nbecause of that")
    elif kernel == "dies":
        print("LLVM ERROR: out of registers", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    elif kernel == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kernel == "starved":
        why = "RuntimeError: lld failed\\nbecause OSError: [Errno 28] No space left on device"
        answer.update(status="failed", reason=why)
    elif kernel == "unlinked":
        try:
            subprocess.check_call(["sh", "-c", "kill -KILL $$"])
        except subprocess.CalledProcessError as error:
            answer.update(status="failed", reason=f"subprocess.CalledProcessError: {error}")
    elif kernel == "hangs":
        out = pathlib.Path(task["out"])
        out.parent.mkdir(parents=True, exist_ok=True)
        (out.parent / (".%s.1.partial" % out.name)).write_bytes(b"half")
        time.sleep(600)
    elif kernel == "grows":
        kept.append(b"x" * (60 << 20))
    elif kernel == "eats":
        eaten = []
        for _ in range(20):
            eaten.append(b"x" * (20 << 20))
            time.sleep(0.02)
        time.sleep(600)
    elif kernel == "large":
        block = b"x" * (150 << 20)
        while (here / "tries").read_text().split().count("large") < 2:
            time.sleep(0.05)
        others = [pid for pid in (here / "started").read_text().split() if int(pid) != os.getpid()]
        with (here / "beside").open("a") as stream:
            stream.write(f"{sum(os.path.exists('/proc/' + pid) for pid in others)}\\n")
        while all(os.path.exists("/proc/" + pid) for pid in others) and others:
            time.sleep(0.05)
        del block
    elif kernel == "slow":
        time.sleep(0.3)
    elif kernel == "waits":
        (here / "waiting").touch()
        while not (here / "go").exists():
            time.sleep(0.05)
    if answer["status"] == "done":
        out = pathlib.Path(task["out"])
        out.parent.mkdir(parents=True, exist_ok=True)
        content = b"" if kernel == "empty" else (here / (task["target"] + kernel)).read_bytes()
        if kernel != "absent":
            out.write_bytes(content)
        status = {"shared": 0, "num_warps": 4, "warp_size": 64, "compile_status": "Complete", "arch": task["target"]}
        out.with_suffix(".json").write_text("{}" if kernel == "no_facts" else json.dumps(status))
        digest = "0" * 64 if kernel == "lies" else hashlib.sha256(content).hexdigest()
        answer.update(sha256=digest, size=len(content), bitcode=["ocml"])
    if kernel == "odd":
        answer.update(json.loads((here / "odd").read_text()))
    print(json.dumps(answer), flush=True)
"""


def only_hanging_ones_time_out(patch: pytest.MonkeyPatch) -> None:
    """Apply the time limit of kernels to `hangs` alone, because a busy machine may need longer than that for others."""
    ask = Worker.ask

    def patient(worker: Worker, job: Job, timeout: float | None) -> dict[str, Any]:
        return ask(worker, job, timeout if timeout is None or job.task["kernel"] == "hangs" else 300.0)

    patch.setattr(Worker, "ask", patient)


class FakeWorkers:
    """A function that starts fake workers, which copy their objects from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "worker.py").write_text(FAKE_WORKER, encoding="utf-8")

    def provide(self, rules: list[Rule]) -> None:
        """Write the code objects that the workers return for `rules`."""
        for rule in rules:
            (self.folder / f"{rule.target}{rule.kernel}").write_bytes(make_object(rule.target, rule.kernel))

    @contextlib.contextmanager
    def __call__(self, _files: str, _out: Path) -> Iterator[subprocess.Popen[str]]:
        child = subprocess.Popen(
            [sys.executable, "-u", str(self.folder / "worker.py"), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - as for real workers
        )
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()
            child.wait(60)
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    @property
    def tries(self) -> list[str]:
        """Return the kernels in the order in which the workers received them."""
        path = self.folder / "tries"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    @property
    def alive(self) -> list[int]:
        """Return the PIDs of the workers that still run."""
        found = []
        for pid in (self.folder / "started").read_text(encoding="utf-8").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 0)
                found.append(int(pid))
        return found
