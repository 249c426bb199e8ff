"""Publishing to a real registry, and through a proxy that fails on demand."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import pytest

from tests.fault_proxy import Fault, FaultProxy
from tests.places import fetch_image, publish, tags
from tests.refusals import refused
from tests.registry_fixtures import small_index
from tests.registry_through_proxy import (
    SIZE,
    Connect,
    leftovers,
    some_blob,
)
from toolchain.core import process
from toolchain.core.errors import DigestError, RegistryError, UnreachableError
from toolchain.oci.check import verify_layout
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.registry import Registry

pytestmark = pytest.mark.registry


def test_index_is_published_and_fetched_unchanged(
    registry_host: str, repository: str, layout: Layout, fresh: Layout, tmp_path: Path
) -> None:
    index = small_index(layout, tmp_path, size=SIZE)
    dest = RegistryRef(registry_host, repository, "latest")
    total = sum(item.size for item in layout.walk(index))
    first = publish(layout, index, dest, ["0123456789ab"])
    # The index is sent once by digest and once for each tag.
    assert first.pushed_bytes == total + 2 * index.size
    assert (first.digest, first.tags) == (index.digest, ("latest", "0123456789ab"))
    assert first.ref == f"{registry_host}/{repository}@{index.digest}"
    second = publish(layout, index, dest, ["0123456789ab"])
    assert second.pushed_bytes == 0
    assert second.skipped_bytes == total
    with Registry(registry_host) as registry:
        assert tags(registry, repository) == ["0123456789ab", "latest"]
        assert registry.get_manifest(repository, "latest") == (index, layout.read(index))
    assert fetch_image(dest, fresh) == index
    assert verify_layout(fresh, index) == []
    assert {item.digest: fresh.blob(item.digest).read_bytes() for item in fresh.walk(index)} == {
        item.digest: layout.blob(item.digest).read_bytes() for item in layout.walk(index)
    }


def test_missing_digest_is_named_as_users_write_it(registry_host: str, repository: str) -> None:
    missing = f"sha256:{'0' * 64}"
    with Registry(registry_host) as registry, pytest.raises(RegistryError) as refused:
        registry.get_manifest(repository, missing)
    assert f"{repository}@{missing}" in refused.value.what


def test_children_are_pushed_before_the_index(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, tmp_path: Path
) -> None:
    index = small_index(layout, tmp_path, size=1000)
    publish(layout, index, RegistryRef(proxy.host, repository), ["t"], registry=connect())
    puts = [seen.path for seen in proxy.seen if seen.method == "PUT"]
    kinds = ["blob" if "/blobs/" in path else path.rsplit("/", 1)[1] for path in puts]
    images = [image.digest for image in layout.children(index)]
    assert kinds == ["blob", "blob", images[0], "blob", "blob", images[1], index.digest, "t"]


def test_index_with_a_refused_child_is_not_published(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, tmp_path: Path
) -> None:
    index = small_index(layout, tmp_path, size=1000)
    last = layout.children(index)[1]
    proxy.faults.append(Fault("status", "PUT", last.digest, times=-1, status=500))
    registry = connect(attempts=2)
    with refused("registry-refused"):
        publish(layout, index, RegistryRef(proxy.host, repository), ["t"], registry=registry)
    assert proxy.faults[0].hits == 3
    assert registry.manifest_digest(repository, index.digest) is None
    assert tags(registry, repository) == []


def test_manifest_refused_while_another_publisher_writes_is_sent_again(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, tmp_path: Path
) -> None:
    """docker-registry answers 400 DIGEST_INVALID while another publisher writes the link of one of the blobs."""
    index = small_index(layout, tmp_path, size=1000)
    proxy.faults.append(Fault("status", "PUT", "/manifests/", times=2, status=400))
    registry = connect()
    publish(layout, index, RegistryRef(proxy.host, repository), ["t"], registry=registry)
    assert proxy.faults[0].hits == 2
    assert registry.get_manifest(repository, "t") == (index, layout.read(index))


def test_permanently_refused_manifest_fails_after_four_requests(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, tmp_path: Path
) -> None:
    index = small_index(layout, tmp_path, size=1000)
    proxy.faults.append(Fault("status", "PUT", "/manifests/", times=-1, status=400))
    with refused("registry-refused") as caught:
        publish(layout, index, RegistryRef(proxy.host, repository), ["t"], registry=connect(attempts=50))
    assert "HTTP 400" in caught.value.why
    assert proxy.faults[0].hits == 4


@pytest.mark.parametrize(("status", "method"), [(500, "HEAD"), (429, "POST"), (503, "PATCH"), (504, "PUT")])
def test_push_survives_a_temporary_failure_and_sends_no_byte_twice(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, status: int, method: str
) -> None:
    blob, path = some_blob(layout)
    proxy.faults.append(Fault("status", method, repository, times=2, skip=1 if method == "PATCH" else 0, status=status))
    registry = connect()
    assert registry.push_blob(repository, blob, path) == SIZE
    assert proxy.faults[0].hits == 2
    assert registry.traffic.repeated >= 2
    assert registry.blob_size(repository, blob.digest) == SIZE
    # The registry received each byte once, because the upload resumed where it had stopped.
    assert sum(seen.body for seen in proxy.seen) == SIZE


@pytest.mark.parametrize(
    "fault",
    [
        Fault("reset", "PATCH", skip=2, after=10_000),
        Fault("lose-answer", "PATCH", skip=1),
        Fault("lose-answer", "PUT"),
        Fault("status", "PATCH", skip=2, status=404),
        Fault("status", "PATCH", skip=2, status=416),
        Fault("reset", "POST"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.method}-{fault.after}",
)
def test_push_survives_a_broken_connection(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout, fault: Fault
) -> None:
    blob, path = some_blob(layout)
    proxy.faults.append(Fault(fault.kind, fault.method, skip=fault.skip, after=fault.after, status=fault.status))
    registry = connect()
    assert registry.push_blob(repository, blob, path) == SIZE
    assert proxy.faults[0].hits == 1
    assert registry.pull_blob(repository, blob, fresh) == SIZE
    assert fresh.blob(blob.digest).read_bytes() == path.read_bytes()
    if (fault.kind, fault.method) == ("lose-answer", "PUT"):
        # Only the answer was lost, so the registry has the blob, and nothing is sent again.
        assert sum(seen.body for seen in proxy.seen) == SIZE


@pytest.mark.parametrize(
    "fault",
    [Fault("stall", "PATCH", skip=1, after=10_000), Fault("stall", "GET", "/blobs/sha256", after=100_000)],
    ids=["push", "pull"],
)
def test_stalled_request_is_repeated(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout, fault: Fault
) -> None:
    blob, path = some_blob(layout)
    proxy.faults.append(fault)
    # A busy registry may also exceed the timeout, and each late answer needs one more attempt.
    registry = connect(attempts=20, timeout=(1.5, 1.5))
    assert registry.push_blob(repository, blob, path) == SIZE
    assert registry.pull_blob(repository, blob, fresh) == SIZE
    assert fault.hits == 1
    assert fresh.blob(blob.digest).read_bytes() == path.read_bytes()


def test_persistent_failure_is_reported_after_few_requests(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes after seconds, not hours, because only one level of the code repeats a request."""
    blob, path = some_blob(layout)
    connect().push_blob(repository, blob, path)
    registry = connect(attempts=2, timeout=(60.0, 300.0))
    for name, ask in (
        ("blobs", lambda: registry.pull_blob(repository, blob, fresh)),
        ("manifests", lambda: registry.get_manifest(repository, "t")),
    ):
        proxy.faults[:] = [Fault("reset", "GET", name, times=-1)]
        with pytest.raises(UnreachableError):
            ask()
        assert proxy.faults[0].hits == 3
    # A busy machine answers within two seconds; the stalled answer never comes.
    monkeypatch.setattr("toolchain.oci.transport.QUESTION", 2.0)
    proxy.faults[:] = [Fault("stall", "GET", "blobs", times=-1)]
    with pytest.raises(UnreachableError):
        registry.pull_blob(repository, blob, fresh)
    assert 1 <= proxy.faults[0].hits <= 3
    assert leftovers(fresh) == []


def test_push_to_a_registry_that_stores_nothing_fails(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout
) -> None:
    """The registry accepts each chunk, and answers that it has received nothing."""
    blob, path = some_blob(layout)
    proxy.faults.append(Fault("header", "PATCH", times=50, headers={"Range": "0-0"}))
    proxy.faults.append(Fault("header", "GET", "/uploads/", times=-1, headers={"Range": "0-0"}))
    with pytest.raises(RegistryError):
        connect(attempts=2).push_blob(repository, blob, path)
    assert 0 < proxy.faults[0].hits < 10


def test_damaged_blob_is_refused_without_a_second_upload(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout
) -> None:
    blob, path = some_blob(layout)
    path.write_bytes(b"x" * SIZE)
    with refused("blob-digest-mismatch"):
        connect().push_blob(repository, blob, path)
    assert sum(seen.method == "POST" for seen in proxy.seen) == 1


def test_upload_refused_for_its_digest_is_repeated(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout
) -> None:
    blob, path = some_blob(layout)
    proxy.faults.append(Fault("status", "PUT", status=400))
    registry = connect()
    assert registry.push_blob(repository, blob, path) == SIZE
    assert sum(seen.method == "POST" for seen in proxy.seen) == 2


def test_changed_manifests_are_detected(
    proxy: FaultProxy, connect: Connect, repository: str, layout: Layout, fresh: Layout, tmp_path: Path
) -> None:
    index = small_index(layout, tmp_path, size=100)
    dest = RegistryRef(proxy.host, repository)
    registry = connect(attempts=2)
    proxy.faults.append(Fault("flip", "GET", f"/manifests/{index.digest}", after=30))
    with refused("registry-manifest-mismatch"):
        publish(layout, index, dest, ["t"], registry=registry)
    proxy.faults[:] = [Fault("digest", "PUT", "/manifests/t", times=-1)]
    with refused("registry-refused"):
        publish(layout, index, dest, ["t"], registry=registry)
    digit = layout.read(index).index(b"sha256:") + 20
    proxy.faults[:] = [Fault("flip", "GET", "/manifests/t", after=digit)]
    with refused("publish-changed"):
        publish(layout, index, dest, ["t"], registry=registry)
    proxy.faults[:] = [Fault("truncate", "GET", "/manifests/", times=2, after=30)]
    publish(layout, index, dest, ["t"], registry=registry)
    proxy.faults[:] = [Fault("flip", "GET", f"/manifests/{layout.children(index)[0].digest}", after=30)]
    with pytest.raises(DigestError):
        fetch_image(dest.at(digest=index.digest), fresh, registry=registry)
    assert not fresh.has(index.digest)


def test_large_blob_is_not_held_in_memory(registry_host: str, repository: str, layout: Layout, fresh: Layout) -> None:
    blob, path = some_blob(layout, 24 << 20)
    with Registry(registry_host, chunk=8 << 20) as registry:
        tracemalloc.start()
        try:
            registry.push_blob(repository, blob, path)
            registry.pull_blob(repository, blob, fresh)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 6 << 20


def test_skopeo_reads_the_layout_and_the_registry(
    registry_host: str, repository: str, layout: Layout, tmp_path: Path
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is NOT INSTALLED: that others can read our layout is not tested (apt-get install skopeo)")
    index = small_index(layout, tmp_path, size=1000, how="zstd")
    layout.tag(index, "latest")
    config = layout.read_json(layout.children(layout.children(index)[0])[0])
    (tmp_path / "link").symlink_to(layout.root)  # skopeo's syntax allows no space in the layout's name
    said = process.run(["skopeo", "inspect", "--raw", f"oci:{tmp_path / 'link'}:latest"], capture=True).stdout
    assert said.encode().rstrip(b"\n") == layout.read(index)
    said = process.run(
        ["skopeo", "inspect", "--override-arch", "amd64", "--config", f"oci:{layout.root}:latest"], capture=True
    ).stdout
    assert config["rootfs"]["diff_ids"][0] in said
    publish(layout, index, RegistryRef(registry_host, repository), ["t"])
    said = process.run(
        ["skopeo", "inspect", "--tls-verify=false", "--raw", f"docker://{registry_host}/{repository}:t"], capture=True
    ).stdout
    assert said.encode().rstrip(b"\n") == layout.read(index)
