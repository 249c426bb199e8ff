"""Verifiers of other projects, pinned by SHA-256, and a network namespace that contains only a registry."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from filelock import FileLock

from toolchain.core.digest import sha256_file
from toolchain.core.errors import ToolchainError
from toolchain.sources.mirrors import Mirror, apt_mirrors

DATA = Path(__file__).parent / "verifiers"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolchain-tests"
UP = """
import fcntl, os, socket, struct, sys
request = struct.pack("16sh14x", b"lo", 1)  # IFF_UP
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, request)  # SIOCSIFFLAGS
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Pinned:
    """A binary package of the distribution."""

    program: str
    name: str
    version: str
    suite: str
    sha256: str


def pinned(program: str) -> list[Pinned]:
    """Return the packages from which a program is unpacked."""
    rows = tomllib.loads((DATA / "programs.toml").read_text())["package"]
    return [Pinned(**row) for row in rows if row["program"] == program]


def unpacked(program: str) -> Path:
    """Return the folder with a program, which is fetched once; skip the test if the program is not available."""
    folder = _CACHE / program
    _CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(_CACHE / f".{program}.lock"):
        if not folder.is_dir():
            if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
                pytest.skip(f"{program} is NOT HERE: it is pinned for amd64 and fetched by apt")
            partial = _CACHE / f".{program}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            for package in pinned(program):
                _fetch(package, partial)
            partial.replace(folder)
    return folder


def _fetch(package: Pinned, into: Path) -> None:
    root = _CACHE / "apt" / package.suite
    options = _options(root)
    gone = f"{package.name} {package.version} of {package.suite} is NOT TO BE HAD"
    try:
        _write_source(root, replace(apt_mirrors()[0], suite=package.suite, components=("main",)))
        _run("apt-get", "-q", *options, "update")
        _run("apt-get", "-q", *options, "download", f"{package.name}={package.version}", cwd=root)
    except (ToolchainError, subprocess.SubprocessError) as error:
        pytest.skip(f"{gone}: no verifier of others is tried with it ({type(error).__name__})")
    (found,) = root.glob(f"{package.name}_*.deb")
    assert sha256_file(found) == f"sha256:{package.sha256}", f"{package.name} is not the package that is pinned"
    _run("dpkg", "-x", found, into)
    found.unlink()
    shutil.rmtree(root / "lists")


def _options(root: Path) -> list[str]:
    settings = {
        "Dir::Etc::sourceparts": root / "sources",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::State::lists": root / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": root / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
        "APT::Update::Post-Invoke-Success": "",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _write_source(root: Path, mirror: Mirror) -> None:
    for name in ("sources", "lists/partial", "cache/archives/partial"):
        (root / name).mkdir(parents=True, exist_ok=True)
    signed = f"Signed-By: {mirror.keyring}\n" if mirror.keyring else ""
    text = f"Types: deb\nURIs: {mirror.site}\nSuites: {mirror.suite}\nComponents: main\n{signed}"
    (root / "sources" / "mirror.sources").write_text(text)


def _run(*words: str | Path, cwd: Path | None = None) -> None:
    subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, check=True, timeout=1200)


def npm_modules() -> Path:
    """Return a folder with check.js and its pinned modules; skip the test if npm cannot install them."""
    if shutil.which("npm") is None:
        pytest.skip("npm is NOT INSTALLED: @sigstore/verify is not tried (apt-get install npm)")
    folder = _CACHE / f"npm-{sha256_file(DATA / 'package-lock.json').removeprefix('sha256:')[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for name in ("package.json", "package-lock.json", "check.js"):
            shutil.copy(DATA / name, folder)
        if not (folder / "node_modules" / ".package-lock.json").is_file():
            try:
                _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
            except subprocess.SubprocessError as error:
                pytest.skip(f"npm does NOT BRING @sigstore/verify: it is not tried ({type(error).__name__})")
    return folder


@dataclass(frozen=True)
class Island:
    """A network namespace with only a registry, on its loopback interface."""

    pid: int
    home: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program in the namespace, with `home` as its home folder."""
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "TMPDIR": str(self.home)}
        inside = ["nsenter", f"--target={self.pid}", "--net", *map(str, words)]
        return subprocess.run(inside, capture_output=True, text=True, env=env, timeout=600, check=False)


@contextlib.contextmanager
def island(folder: Path, *server: str | Path, port: int) -> Iterator[Island]:
    """Run a server on the loopback interface of a new network namespace; skip the test if none can be made."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("NO NETWORK NAMESPACE here: that verifiers ask nobody else is not tried (it needs root)")
    folder.mkdir(parents=True)
    words = ["unshare", "--net", sys.executable, "-c", UP, *map(str, server)]
    with (folder.parent / "island.log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as running:
        try:
            made = Island(running.pid, folder)
            _wait(made, port)
            yield made
        finally:
            running.terminate()


def _wait(made: Island, port: int) -> None:
    ask: Sequence[str] = (sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)")
    for _ in range(600):
        if made.run(*ask).returncode == 0:
            return
        time.sleep(0.1)
    pytest.fail("the registry in the namespace did not start")
