"""Machines that are network namespaces of this one, with a switch, and certificates of a throw-away authority.

Nothing of it touches the network of this machine: the switch is in a namespace too. Needs root, and `ip` of iproute2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from toolchain.kernels.bounds import processes

NEEDED = {"ip": "iproute2", "openssl": "openssl", "unshare": "util-linux"}
_BASE = "10.77.0."


def lacking() -> str:
    """What keeps this machine from having such machines; empty when nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if absent := [f"{name} (package {package})" for name, package in NEEDED.items() if shutil.which(name) is None]:
        return f"not installed: {', '.join(absent)}"
    probe = f"probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True, text=True)
    if done.returncode:
        return f"`ip netns add` fails: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


def certificates(folder: Path, names: Sequence[str]) -> None:
    """`ca.pem`, and `NAME.pem` and `NAME.key` for each; the authority's key is not kept."""
    folder.mkdir(mode=0o700)

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name in names:
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-out", f"{name}.pem")  # fmt: skip
    (folder / "ca.key").unlink()


class Namespaces:
    """Machines by name, while the block lasts: at its end their processes and namespaces are gone.

    Args:
        folder: of certificates and logs.
        names: of the machines; they get addresses in this order.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._prefix = f"machines-{os.getpid()}-"
        self._pem = folder / "pem"
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True)
        self.names = tuple(names)
        self._children: list[subprocess.Popen[bytes]] = []
        certificates(self._pem, names)

    def address(self, name: str) -> str:
        """The IPv4 address of a machine."""
        return f"{_BASE}{self.names.index(name) + 1}"

    def __enter__(self) -> Self:
        try:
            self._connect()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _connect(self) -> None:
        switch = f"{self._prefix}switch"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            space, port = self._prefix + name, f"port{number}"
            _ip("netns", "add", space)
            _ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "bridge0")
            _ip("-n", switch, "link", "set", port, "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for one in ("lo", "eth0"):
                _ip("-n", space, "link", "set", one, "up")

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program on a machine; what it writes goes to the machine's log."""
        with (self._logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                ["ip", "netns", "exec", self._prefix + name, *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **self.trust(name), "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self._children.append(child)
        return child

    def trust(self, name: str) -> Mapping[str, str]:
        """Dask's settings for a machine's certificate, for whatever it is to Dask."""
        tls, parts = "DASK_DISTRIBUTED__COMM__TLS__", {"CERT": "pem", "KEY": "key"}
        own = {
            f"{tls}{role}__{part}": str(self._pem / f"{name}.{end}")
            for role in ("CLIENT", "WORKER", "SCHEDULER")
            for part, end in parts.items()
        }
        return {f"{tls}CA_FILE": str(self._pem / "ca.pem"), **own}

    def log(self, name: str) -> str:
        """What its programs wrote."""
        path = self._logs / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _remove(self) -> None:
        for child in self._children:
            kill(child, whole=True)
        listed = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
        for line in listed.splitlines():
            space = line.split()[0]
            if space.startswith(self._prefix):
                subprocess.run(["ip", "netns", "del", space], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def kill(child: subprocess.Popen[bytes], *, whole: bool) -> None:
    """kill -9 of a program: with all that it started, as when a machine dies, or alone."""
    with contextlib.suppress(ProcessLookupError):
        if child.poll() is None:
            for pid in processes(child.pid) if whole else [child.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    child.wait()


def wait_for(child: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit status of a program, which is killed after so long."""
    end = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    if child.poll() is None:
        kill(child, whole=True)
    return child.returncode
