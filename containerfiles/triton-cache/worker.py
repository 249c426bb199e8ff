"""Make the calls of a wheel that tasks describe, with the protocol of aotriton/worker.py.

calls.py makes the calls. The first line of the output is the first line that calls.py prints. A task is a JSON line of
standard input:

    {"id", "source": the path of the module for calls.py, of which only the name is used, "target": the GPU,
     "constexprs": {"calls": the list of calls, as JSON text}, "options": {"lds": the LDS argument of calls.py}, "out"}

The answer to a task is {"id", "status": "done"|"failed", "reason", "seconds"}. An answer with "failed" also has
"refused" from the answer of calls.py. After a task that is done, the file `out` is a tar. The tar contains the kernels'
entries in Triton's cache and their launch files (see calls.py). The file with the same name and the suffix .json lists
the kernels. The answer then also has the "sha256" and "size" of the tar, and "bitcode", an empty list. The environment
variables TRITON_CACHE_DIR and CALLS_LAUNCHES must be set, and calls.py inherits them.

A wheel may cache the properties of the GPU. Therefore calls.py is started again whenever a task has another
GPU, LDS size or module than the previous task.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

CALLS = Path(__file__).with_name("calls.py")


class Caller:
    """A process that runs calls.py for one GPU, one LDS size and one module."""

    def __init__(self, gpu: str, lds: int, module: str) -> None:
        self.serves = (gpu, lds, module)
        process = self._process = subprocess.Popen(
            [sys.executable, CALLS, gpu, str(lds), module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._tasks, self._answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        self.about = self._answer()

    def ask(self, row: dict[str, Any]) -> dict[str, Any]:
        """Send a row and return the answer; raise SystemExit if calls.py has ended."""
        with contextlib.suppress(BrokenPipeError):  # if calls.py has ended, `_answer` raises SystemExit
            self._tasks.write(json.dumps(row) + "\n")
            self._tasks.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"calls.py ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Close the input of the process, and wait until the process exits."""
        self._tasks.close()
        self._process.wait()


def entry_of(hash_: str) -> Path:
    """Return the folder in Triton's cache of the kernel with the hexadecimal hash `hash_`."""
    return Path(os.environ["TRITON_CACHE_DIR"], base64.b32encode(bytes.fromhex(hash_)).decode().rstrip("="))


def packed(hashes: Sequence[str]) -> bytes:
    """Return a reproducible tar of the cache entries and the launch files of the kernels with these hashes."""
    launches = Path(os.environ["CALLS_LAUNCHES"])
    files: dict[str, Path] = {}
    for hash_ in hashes:
        entry = entry_of(hash_)
        files |= {f"{entry.name}/{path.name}": path for path in entry.iterdir() if path.is_file()}
        files[f"launches/{hash_}.json"] = launches / f"{hash_}.json"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def metadata(kernels: Sequence[tuple[str, str]], gpu: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the JSON file beside a tar.

    `shared`, `num_warps` and `warp_size` are the largest values of the kernels, or 0 if there are no kernels.

    Args:
        kernels: the name and hash of each kernel.
        about: the first output line of calls.py, without "ready".
    """
    rows = [json.loads((entry_of(hash_) / f"{name[:150]}.json").read_text(encoding="utf-8")) for name, hash_ in kernels]
    return {
        "compile_status": "Complete",
        "arch": gpu,
        "shared": max((int(row["shared"]) for row in rows), default=0),
        "num_warps": max((int(row["num_warps"]) for row in rows), default=0),
        "warp_size": max((int(row["target"]["warp_size"]) for row in rows), default=0),
        "kernels": [list(kernel) for kernel in kernels],
        "about": about,
    }


def write(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, and then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def carried_out(task: dict[str, Any], caller: Caller, about: dict[str, Any]) -> dict[str, Any]:
    """Make the calls of a task and return the answer; if all calls succeed, write the tar and the JSON file."""
    made = caller.ask({"id": task["id"], "calls": json.loads(task["constexprs"]["calls"])})
    answer = {name: made.get(name) for name in ("id", "status", "reason")}
    answer["seconds"] = made.get("seconds", 0)
    if made["status"] != "done":
        return {**answer, "refused": made["refused"]}
    kernels = list(dict.fromkeys((kernel["name"], kernel["hash"]) for kernel in made["kernels"]))
    out, content = Path(task["out"]), packed([hash_ for _, hash_ in kernels])
    write(out.with_suffix(".json"), json.dumps(metadata(kernels, task["target"], about), sort_keys=True).encode())
    write(out, content)
    return {**answer, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "bitcode": []}


def main() -> None:
    """Print the first output line of calls.py, then read tasks and print their answers until the input ends."""
    os.umask(0o022)
    # The first process makes no calls. It reports facts about Triton, which do not depend on the GPU.
    caller = Caller("gfx942", 1, "")
    about = {name: value for name, value in caller.about.items() if name != "ready"}
    print(json.dumps(caller.about), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        serves = (task["target"], int(task["options"]["lds"]), Path(task["source"]).stem)
        if caller.serves != serves:
            caller.end()
            caller = Caller(*serves)
        print(json.dumps(carried_out(task, caller, about)), flush=True)


if __name__ == "__main__":
    main()
