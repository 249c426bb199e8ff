"""Pulling from a real registry through a proxy that fails on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_registry import fake_registry
from tests.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.refusals import refused
from tests.registry_through_proxy import (
    SIZE,
    Connect,
    leftovers,
    some_blob,
)
from toolchain.core.errors import DigestError, UnreachableError
from toolchain.core.filesystem import NewFile
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry

pytestmark = pytest.mark.registry


@pytest.mark.parametrize(("kind", "after"), [("truncate", 100_000), ("reset", 0), ("status", 0)])
def test_pull_survives_a_temporary_failure(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout, kind: str, after: int
) -> None:
    blob, path = some_blob(layout, 3_000_000)
    registry = connect(chunk=1 << 26)
    registry.push_blob(repository, blob, path)
    proxy.faults.append(Fault(kind, "GET", "/blobs/", times=2, after=after))  # type: ignore[arg-type]
    assert registry.pull_blob(repository, blob, fresh) == blob.size
    assert proxy.faults[0].hits == 2
    assert fresh.blob(blob.digest).read_bytes() == path.read_bytes()
    assert leftovers(fresh) == [blob.digest[7:]]
    assert registry.pull_blob(repository, blob, fresh) == 0
    fresh.blob(blob.digest).write_bytes(b"x" * blob.size)
    assert registry.pull_blob(repository, blob, fresh) == blob.size, "it decayed where it lay"


def test_resumed_pull_requests_only_the_rest(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout
) -> None:
    blob, path = some_blob(layout, 5_000_000)
    registry = connect(chunk=1 << 26)
    registry.push_blob(repository, blob, path)
    proxy.faults.append(Fault("truncate", "GET", "/blobs/", after=4_000_000))
    before = registry.traffic.received
    registry.pull_blob(repository, blob, fresh)
    assert registry.traffic.received - before == blob.size
    ranges = [seen.headers.get("Range") for seen in proxy.seen if seen.method == "GET"]
    assert ranges[0] is None
    assert ranges[1] is not None
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) >= 2_000_000


def test_blob_with_a_flipped_bit_is_fetched_again_and_not_kept(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout
) -> None:
    blob, path = some_blob(layout)
    registry = connect(chunk=1 << 26)
    registry.push_blob(repository, blob, path)
    proxy.faults.append(Fault("flip", "GET", "/blobs/", times=-1, after=77_777))
    with refused("registry-blob-mismatch"):
        registry.pull_blob(repository, blob, fresh)
    assert proxy.faults[0].hits == 2
    assert leftovers(fresh) == []
    proxy.faults[:] = [Fault("flip", "GET", "/blobs/", after=77_777)]
    assert registry.pull_blob(repository, blob, fresh) == SIZE
    assert fresh.blob(blob.digest).read_bytes() == path.read_bytes()


def test_failed_pull_leaves_no_file(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout
) -> None:
    blob, path = some_blob(layout)
    registry = connect(chunk=1 << 26, attempts=2)
    registry.push_blob(repository, blob, path)
    proxy.faults.append(Fault("truncate", "GET", "/blobs/", times=-1, after=0))
    with pytest.raises(UnreachableError):
        registry.pull_blob(repository, blob, fresh)
    assert leftovers(fresh) == []
    with refused("registry-refused"):
        registry.pull_blob(repository, Descriptor(media.LAYER, "sha256:" + "0" * 64, 5), fresh)
    assert leftovers(fresh) == []


def test_pull_without_progress_fails(proxy: FaultProxy, layout: Layout, fresh: Layout) -> None:
    """The registry ignores ranges, and its connection breaks at the same place each time."""
    blob, path = some_blob(layout, 3_000_000)
    with fake_registry() as server, fault_proxy(server.host) as breaking:
        server.blobs[blob.digest] = path.read_bytes()
        breaking.faults.append(Fault("truncate", "GET", "/blobs/", times=50, after=2_500_000))
        with Registry(breaking.host, attempts=2, backoff=0.01, login="") as registry, pytest.raises(UnreachableError):
            registry.pull_blob("x", blob, fresh)
        assert breaking.faults[0].hits == 3, "what comes again is no progress"
    assert leftovers(fresh) == []


def test_blob_longer_than_its_descriptor_is_cut_off(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout
) -> None:
    blob, path = some_blob(layout, 5_000_000)
    registry = connect(chunk=1 << 26)
    registry.push_blob(repository, blob, path)
    before = registry.traffic.received
    with pytest.raises(DigestError):
        registry.pull_blob(repository, Descriptor(blob.media_type, blob.digest, 100), fresh)
    assert registry.traffic.received - before < 4_500_000
    assert leftovers(fresh) == []


def test_full_disk_is_reported_as_a_write_error(
    connect: Connect, repository: str, layout: Layout, fresh: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, path = some_blob(layout)
    registry = connect(chunk=1 << 26)
    registry.push_blob(repository, blob, path)
    real = fresh.new

    def full(digest: str) -> NewFile:
        made = real(digest)
        made.stream.close()
        made.stream = Path("/dev/full").open("r+b", buffering=0)  # noqa: SIM115 - it is closed with `made`
        return made

    monkeypatch.setattr(fresh, "new", full)
    with refused("blob-not-written"):
        registry.pull_blob(repository, blob, fresh)
    assert leftovers(fresh) == []
