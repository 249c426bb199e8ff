"""A kernel store in a real registry, and behind a proxy that fails on demand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.unit.test_kernel_store import KERNELS, Machine, rules_of
from toolchain.core.errors import ToolchainError
from toolchain.kernels.oci_store import OciStore
from toolchain.oci.reference import RegistryRef
from toolchain.oci.registry import Registry
from toolchain.oci.repository_place import RepositoryPlace

pytestmark = pytest.mark.registry
_NUMBERS = itertools.count()
Connect = Callable[[str], OciStore]


@pytest.fixture
def proxy(registry_host: str) -> Iterator[FaultProxy]:
    with fault_proxy(registry_host) as running:
        yield running


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Opens the one store of a test, each time as another machine would."""
    repository, opened = f"kernels/{abs(hash(str(tmp_path))):x}-{next(_NUMBERS)}", []

    def store(host: str) -> OciStore:
        registry = Registry(host, login="", attempts=3, backoff=0.01, timeout=(2.0, 5.0))
        opened.append(registry)
        place = RepositoryPlace(RegistryRef(host, repository), registry)
        return OciStore(place, tmp_path / f"scratch-{len(opened)}")

    yield store
    for registry in opened:
        registry.close()


def test_a_registry_has_what_was_compiled(tmp_path: Path, registry_host: str, connect: Connect) -> None:
    rules = [*rules_of(*KERNELS), *rules_of("one", target="gfx1100")]
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    made = first.run(connect(registry_host), rules)
    taken = second.run(connect(registry_host), rules)
    assert (made.shared["added"], made.shared["absent"], taken.shared["taken"]) == (4, 4, 4)
    assert second.workers.tries == []
    assert second.files() == first.files()


PASSING = [
    Fault("status", "GET", "/tags/", status=503, times=2),
    Fault("reset", "GET", "/tags/"),
    Fault("status", "POST", status=503),
    Fault("lose-answer", "PUT"),
    Fault("reset", "PUT", "/blobs/", after=100),
    Fault("status", "PUT", "/manifests/", status=500, times=2),
    Fault("truncate", "GET", "/blobs/", after=100),
    Fault("flip", "GET", "/blobs/", after=700),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.kind} {fault.method} {fault.path} {fault.status}")
def test_what_passes_costs_nothing(tmp_path: Path, proxy: FaultProxy, connect: Connect, fault: Fault) -> None:
    proxy.faults.append(fault)
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    assert first.run(connect(proxy.host)).shared["added"] == 3
    taken = second.run(connect(proxy.host))
    assert taken.shared["taken"] == 3
    assert fault.hits


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", "POST", times=-1, status=403),
        Fault("status", "(PUT|PATCH)", times=-1, status=500),
        Fault("reset", "(PUT|PATCH)", times=-1),
        Fault("status", "PUT", "/manifests/", times=-1, status=400),
        Fault("digest", "PUT", "/manifests/", times=-1),
    ],
    ids=lambda fault: f"{fault.kind} {fault.method} {fault.path} {fault.status}",
)
def test_what_cannot_be_added_is_compiled_all_the_same_and_nothing_half_is_seen(
    tmp_path: Path, proxy: FaultProxy, registry_host: str, connect: Connect, fault: Fault
) -> None:
    proxy.faults.append(fault)
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    result = first.run(connect(proxy.host))
    assert result.counts() == {"done": 3, "failed": 0, "timed_out": 0}
    assert result.shared["added"] == 0
    seen = second.run(connect(registry_host))
    assert (seen.shared["taken"], seen.shared["damaged"], seen.shared["added"]) == (0, 0, 3)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("flip", "GET", "/blobs/", times=-1, skip=1, after=700),
        Fault("status", "GET", "/blobs/", times=-1, skip=1, status=404),
        Fault("status", "GET", "/manifests/", times=-1, status=404),
        Fault("flip", "GET", "/blobs/", times=-1, after=20),
    ],
    ids=lambda fault: f"{fault.kind} {fault.method} {fault.path} {fault.status} {fault.skip}",
)
def test_what_cannot_be_taken_is_compiled(
    tmp_path: Path, proxy: FaultProxy, registry_host: str, connect: Connect, fault: Fault
) -> None:
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    first.run(connect(registry_host))
    proxy.faults.append(fault)
    result = second.run(connect(proxy.host))
    assert result.shared["taken"] == 0
    assert second.files() == first.files()
    assert fault.hits


def test_a_registry_that_does_not_answer_is_told_before_anything_is_compiled(
    tmp_path: Path, proxy: FaultProxy, connect: Connect
) -> None:
    proxy.faults.append(Fault("reset", "GET", "/tags/", times=-1))
    machine = Machine(tmp_path / "first")
    with pytest.raises(ToolchainError):
        machine.run(connect(proxy.host))
    assert not (machine.workers.folder / "started").exists()


def test_tags_come_page_by_page(registry_host: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolchain.oci import registry  # noqa: PLC0415

    monkeypatch.setattr(registry, "_TAGS_A_PAGE", 2)
    store = connect(registry_host)
    names = [f"part-{number}" for number in range(5)]
    for name in names:
        store.note(name, name.encode())
    assert list(connect(registry_host).notes("part-")) == names
