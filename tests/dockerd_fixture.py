"""A docker daemon with its own data root and its own socket, without a bridge."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def dockerd(folder: Path, *, first: str = "") -> Iterator[str]:
    """Start a daemon with its data below `folder`, and yield its address; the test is skipped if it cannot be started.

    Args:
        first: shell commands that run before the daemon, in its own mount namespace. Only the daemon sees
            their mounts, as if its folders were those of another machine.
    """
    for program in ("dockerd", "docker", "skopeo"):
        if shutil.which(program) is None:
            pytest.skip(f"NO CONTAINER OF DOCKER RUNS HERE: {program} is missing: apt-get install docker.io skopeo")
    # The path of a socket must be short, and the path of a test's folder is long.
    with tempfile.TemporaryDirectory(prefix="tc-dockerd-", dir="/tmp") as short:
        address = f"unix://{short}/docker.sock"
        log = folder / "dockerd.log"
        argv = ["dockerd", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
        argv += ["--bridge=none", "--data-root", f"{folder}/data", "--exec-root", f"{short}/exec"]
        argv += ["--pidfile", f"{short}/pid", "--host", address]
        # The daemon has its own PID namespace, so that its containerd ends with it.
        wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"]
        wrapper += ["sh", "-ec", f'{first}\nexec "$@"', "sh"]
        with log.open("wb") as sink:
            daemon = subprocess.Popen([*wrapper, *argv], stdout=sink, stderr=sink, start_new_session=True)
        try:
            _wait(daemon, address, log)
            yield address
        finally:
            # The first process of the namespace ends after all others in it, and they write to the folders until then.
            inside: list[str] = []
            with contextlib.suppress(OSError):
                inside = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
            with contextlib.suppress(ProcessLookupError):
                daemon.send_signal(signal.SIGKILL)
            daemon.wait(60)
            for pid in inside:
                _wait_for_end(pid)


def _wait(daemon: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + 180
    while daemon.poll() is None and time.monotonic() < end:
        asked = subprocess.run(["docker", "--host", address, "version"], capture_output=True, check=False, timeout=300)
        if asked.returncode == 0:
            return
        time.sleep(0.25)
    last = log.read_text(errors="replace")[-600:]
    pytest.skip(f"NO CONTAINER OF DOCKER RUNS HERE: dockerd does not start: {last}")


def _wait_for_end(pid: str) -> None:
    """Wait until a process has ended; it may remain as a zombie until its parent reads its exit code."""
    with contextlib.suppress(OSError):
        for _ in range(600):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
            time.sleep(0.1)
