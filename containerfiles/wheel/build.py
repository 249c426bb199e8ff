"""Build the wheel of a project without a network.

The Containerfile runs this program in a container with PyTorch and Triton. The program reads the project's source in
/src/project, the wheels of the packages that the build imports in /wheels, and the project's row of wheels.toml in
/row/row.json. It writes the wheel to /out/wheel, and a JSON object with these keys to /out/result.json:

    torch      the version of PyTorch; empty if its import failed or was not tried
    triton     the number of files and the digest of the installed Triton, which the build must not change
    network    [file:line, address] of each recorded attempt to open a connection or look up a host
               (see watch/sitecustomize.py)
    failed     [kind, what, why] if the wheel cannot be built for a known reason; otherwise the key is absent

If the build fails for another reason, the program exits with 1 and writes no result.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

TRITON, SOURCE, OUT, BUILD = Path("/usr/lib/toolchain/triton"), Path("/src/project"), Path("/out"), Path("/build")
REACHED = BUILD / "reached"
RESULT: dict[str, Any] = {"torch": "", "triton": {}, "network": []}
TAIL = 30


def main() -> None:
    """Build the wheel and write the result."""
    os.umask(0o022)
    row = json.loads(Path("/row/row.json").read_text(encoding="utf-8"))
    (OUT / "wheel").mkdir(parents=True)
    BUILD.mkdir()
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
        "TZ": "UTC", "HOME": "/build/home", "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1767225600"),
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": os.fspath(TRITON), "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/wheels", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1", **row["build"],
    }  # fmt: skip
    print("@step configure", flush=True)
    before = tree(TRITON)
    RESULT["triton"] = {"files": len(before), "sha256": digest(json.dumps(before, sort_keys=True).encode())}
    if not list(TRITON.glob("*.dist-info")):
        fail("triton", "the Triton has no dist-info", "a project that looks for it would replace or remove this Triton")
    asked = run([sys.executable, "-c", "import torch; print(torch.__version__)"], env)
    if asked.returncode != 0:
        fail("torch", "PyTorch cannot be imported", tail(asked.stdout))
    RESULT["torch"] = asked.stdout.split()[-1]
    src = edited(row)
    venv = BUILD / "venv"
    step([sys.executable, "-m", "venv", "--system-site-packages", os.fspath(venv)], env)
    env["PATH"] = f"{venv}/bin:{env['PATH']}"
    python = os.fspath(venv / "bin/python")
    step(
        [python, "-m", "pip", "install", "--quiet", *sorted(os.fspath(path) for path in Path("/wheels").iterdir())], env
    )
    env["PYTHONPATH"] = f"/recipe/containerfiles/wheel/watch:{TRITON}"
    env["WATCH_REACHED"] = os.fspath(REACHED)
    for words in row["before"]:
        step([python if word == "python3" else word for word in words], env, src)
    print("@step compile", flush=True)
    pep517 = ["--use-pep517"] if row.get("pep517", True) else []
    words = ["pip", "wheel", "--no-deps", "--no-build-isolation", *pep517, "--wheel-dir", "/build/dist", "."]
    made = run([python, "-m", *words], env, src)
    print(made.stdout, flush=True)
    RESULT["network"] = reached()
    after = tree(TRITON)
    if changed := sorted(name for name in {*before, *after} if before.get(name) != after.get(name)):
        fail("changed", f"the build changed {len(changed)} files of Triton", "\n".join(changed[:TAIL]))
    if made.returncode != 0:
        wanted = re.search(r"No matching distribution found for (\S+)", made.stdout)
        if wanted:
            fail("network", f"the build would fetch {wanted[1]}", tail(made.stdout))
        if RESULT["network"]:
            told = "\n".join(f"{where} asked for {address}" for where, address in RESULT["network"])
            fail("network", "the build reaches for the network", f"{told}\n{tail(made.stdout)}")
        sys.exit("toolchain: the wheel's build failed")
    for path in (BUILD / "dist").glob("*.whl"):
        shutil.copyfile(path, OUT / "wheel" / path.name)
    end()


def edited(row: dict[str, Any]) -> Path:
    """Copy the source without the files in the row's `drop`, apply the row's edits, and return the path of the copy.

    The program ends with `fail` unless each edit's file contains the edit's anchor exactly once.
    """
    src, drop = BUILD / "src", {os.fspath(SOURCE / name) for name in row["drop"]}
    shutil.copytree(
        SOURCE, src, symlinks=True, ignore=lambda at, names: [name for name in names if f"{at}/{name}" in drop]
    )
    for edit in row["edits"]:
        path = src / edit["file"]
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(edit["anchor"]) != 1:
            fail("source", f"{edit['file']} cannot be edited", f"it does not hold {edit['anchor']!r} once")
        path.write_text(text.replace(edit["anchor"], edit["text"]), encoding="utf-8")
    return src


def tree(top: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder by relative path; for a link, the SHA-256 of its target path."""
    files = (path for path in top.rglob("*") if path.is_symlink() or path.is_file())
    return {
        path.relative_to(top).as_posix(): digest(bytes(path.readlink()) if path.is_symlink() else path.read_bytes())
        for path in files
    }


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def run(words: list[str], env: dict[str, str], cwd: Path = BUILD) -> subprocess.CompletedProcess[str]:
    """Run a program with standard error redirected to standard output; return its exit code and output."""
    return subprocess.run(
        words,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def step(words: list[str], env: dict[str, str], cwd: Path = BUILD) -> None:
    """Run a program and print its output; exit with 1 if it fails."""
    done = run(words, env, cwd)
    print(done.stdout, flush=True)
    if done.returncode != 0:
        sys.exit(f"toolchain: {' '.join(words)} failed")


def tail(text: str) -> str:
    """Return the last 30 lines of a text."""
    return "\n".join(text.strip().splitlines()[-TAIL:])


def reached() -> list[list[str]]:
    """Return the distinct records that watch/sitecustomize.py wrote, in order: [file:line, address]."""
    rows = REACHED.read_text(encoding="utf-8").splitlines() if REACHED.is_file() else []
    return [json.loads(text) for text in dict.fromkeys(rows)]


def fail(kind: str, what: str, why: str) -> NoReturn:
    """Write and print the reason why the wheel cannot be built, and exit with 0."""
    RESULT["failed"] = [kind, what, why]
    print(f"{what}: {why}", flush=True)
    end()


def end() -> NoReturn:
    """Write /out/result.json and exit with 0."""
    (OUT / "result.json").write_text(json.dumps(RESULT, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print("@step done", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
