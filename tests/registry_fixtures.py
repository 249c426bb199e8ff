"""A real registry on loopback, and images small enough to push often."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import ImageSpec, add_layer, standard_annotations, write_image, write_index
from toolchain.oci.layer import Compression, compress, write_layer
from toolchain.oci.layout import Layout


def free_port() -> int:
    """Return a port of loopback that no process uses, now or later.

    The kernel assigns ports from its own range to connections and to servers that ask for any port. So the port is
    below that range, and this process keeps an abstract socket name that reserves the port among test processes.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = list(range(10_000, first)) or list(range(1024, 65536))
    while True:
        port = random.SystemRandom().choice(ports)
        name = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            name.bind(f"\0toolchain-test-port-{port}")
            probe.bind(("127.0.0.1", port))
            name.detach()
            return port
        name.close()


@contextlib.contextmanager
def running_registry(folder: Path, *, users: Path | None = None) -> Iterator[str]:
    """Run docker-registry with its data below `folder`, and yield host:port. Skip the test if it is not installed.

    Args:
        users: an htpasswd file (bcrypt); None if no login is required.
    """
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip(
            "docker-registry is NOT INSTALLED: nothing about registries is tested (apt-get install docker-registry)"
        )
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\n"
        f"storage:\n  filesystem: {{rootdirectory: '{folder / 'data'}'}}\n  delete: {{enabled: true}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
        + (f"auth: {{htpasswd: {{realm: tests, path: '{users}'}}}}\n" if users is not None else "")
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, "serve", os.fspath(config)], stdout=log, stderr=log)
        try:
            wait_for_registry(f"127.0.0.1:{port}", server, folder / "log")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(60)


def wait_for_registry(host: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the registry answers, or fail with the end of its log."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < end:
        try:
            with opener.open(f"http://{host}/v2/", timeout=5):
                return
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    pytest.fail(f"the registry did not start:\n{log.read_text(errors='replace')[-2000:]}")


def small_index(
    layout: Layout,
    work: Path,
    *,
    size: int = 50_000,
    seed: int = 1,
    how: Compression = "gzip",
    arches: str = "amd64 arm64",
) -> Descriptor:
    """Write an index over one-layer images with `size` random bytes each to `layout`."""
    manifests = []
    for arch in arches.split():
        tree = work / f"tree-{arch}-{seed}"
        prefix = tree / "usr" / "lib64" / "thing"
        prefix.mkdir(parents=True, exist_ok=True)
        (prefix / "data").write_bytes(random.Random(f"{seed} {arch}").randbytes(size))
        (prefix / "link").unlink(missing_ok=True)
        (prefix / "link").symlink_to("data")
        layer = write_layer(tree, work / f"{arch}-{seed}.tar")
        blob = compress(layer, work / f"{arch}-{seed}.blob", how, 1)
        spec = ImageSpec(
            arch=arch,
            layers=(add_layer(layout, blob, created_by="test"),),
            labels={"name": "thing"},
            annotations=standard_annotations("thing"),
        )
        manifests.append(write_image(layout, spec))
    return write_index(layout, manifests, standard_annotations("thing"))
