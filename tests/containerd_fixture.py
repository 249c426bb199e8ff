"""A containerd with its own root and its own sockets, without plugins that change the host."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# These plugins create networks, mount disks or write outside of the root.
_WITHOUT = (
    *("grpc.v1.cri", "internal.v1.opt", "snapshotter.v1.aufs", "snapshotter.v1.btrfs"),
    *("snapshotter.v1.devmapper", "snapshotter.v1.zfs"),
)


@contextlib.contextmanager
def containerd(folder: Path) -> Iterator[str]:
    """Start containerd with its data below `folder`, and yield the address for `ctr`.

    The test is skipped if containerd cannot be started.
    """
    for program in ("containerd", "ctr"):
        if shutil.which(program) is None:
            pytest.skip(f"NO CONTAINERD: {program} is missing: apt-get install containerd")
    if os.geteuid() != 0:
        pytest.skip("NO CONTAINERD: it starts as root alone")
    # The path of a socket must be short, and the path of a test's folder is long.
    with tempfile.TemporaryDirectory(prefix="tc-containerd-", dir="/tmp") as short:
        address, config, log = f"{short}/sock", folder / "config.toml", folder / "containerd.log"
        without = ", ".join(f'"io.containerd.{name}"' for name in _WITHOUT)
        config.write_text(
            f'version = 2\nroot = "{folder}/root"\nstate = "{short}/state"\ndisabled_plugins = [{without}]\n'
            f'[grpc]\naddress = "{address}"\n[ttrpc]\naddress = "{short}/ttrpc"\n'
        )
        with log.open("wb") as sink:
            daemon = subprocess.Popen(["containerd", "-c", os.fspath(config)], stdout=sink, stderr=sink)
        try:
            for _ in range(1200):
                if daemon.poll() is not None or Path(address).exists():
                    break
                time.sleep(0.1)
            if not Path(address).exists():
                pytest.skip(f"NO CONTAINERD: it does not start: {log.read_text(errors='replace')[-600:]}")
            yield address
        finally:
            daemon.kill()
            daemon.wait(60)
