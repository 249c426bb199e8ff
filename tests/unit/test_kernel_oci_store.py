"""A kernel store in a layout folder: packs, and what becomes of a damaged one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_registry import fake_registry
from tests.unit.test_kernel_store import KERNELS, Machine, rules_of
from toolchain.core.errors import ToolchainError
from toolchain.kernels import oci_store
from toolchain.kernels.oci_store import OciStore
from toolchain.kernels.result_store import Addition, Result
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import LayoutPlace
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.oci.registry import Registry
from toolchain.oci.repository_place import RepositoryPlace


def opened(root: Path, scratch: str) -> OciStore:
    return OciStore(LayoutPlace(LayoutRef(root / "layout")), root / scratch)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def test_results_travel_in_packs(tmp_path: Path, layout: Layout) -> None:
    rules = [*rules_of(*KERNELS), *rules_of("one", target="gfx1100")]
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    made = first.run(opened(tmp_path, "a"), rules)
    taken = second.run(opened(tmp_path, "b"), rules)

    assert (made.shared["added"], taken.shared["taken"], taken.shared["added"]) == (4, 4, 0)
    assert second.workers.tries == []
    assert second.files() == first.files()
    assert sorted(tag.split("-")[2] for tag in layout.refs()) == ["gfx1100", "gfx942"], "a pack for each GPU"
    assert not [
        blob for blob in (tmp_path / "b" / "layout" / "blobs" / "sha256").iterdir() if blob.stat().st_size > 3000
    ]


def test_only_the_packs_of_this_triton_and_gpu_are_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(tmp_path / "first").run(opened(tmp_path, "a"))
    Machine(tmp_path / "other", layers=("sha256:" + "b" * 64,)).run(opened(tmp_path, "b"))
    looked: list[str] = []
    ask = LayoutPlace.manifest

    def watched(place: LayoutPlace, reference: str = "") -> object:
        looked.append(reference)
        return ask(place, reference)

    monkeypatch.setattr(LayoutPlace, "manifest", watched)
    assert Machine(tmp_path / "second").run(opened(tmp_path, "c")).shared["taken"] == 3
    assert len(looked) == 1


@pytest.mark.parametrize("layer", [0, 1], ids=["list", "pack"])
def test_a_damaged_pack_is_passed_over_and_its_results_are_added_again(
    tmp_path: Path, layout: Layout, layer: int
) -> None:
    first = Machine(tmp_path / "first")
    first.run(opened(tmp_path, "a"))
    (manifest,) = layout.refs().values()
    path = layout.blob(layout.children(manifest)[1 + layer].digest)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    second = Machine(tmp_path / "second")
    result = second.run(opened(tmp_path, "b"))
    assert (result.shared["taken"], result.shared["added"]) == (0, 3)
    assert second.files() == first.files()
    # The same results make the same pack, whose damaged blob is written again.
    assert Machine(tmp_path / "third").run(opened(tmp_path, "c")).shared["taken"] == 3


def test_a_pack_goes_out_when_it_is_full(tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_store, "RECORDS", 2)
    store = opened(tmp_path, "a")
    store.prepare("0" * 12, ["gfx942"])
    record = Result(inputs={}, code=b"x", metadata=b"{}").record()
    stored = [store.add(Addition(f"{number:064x}", "gfx942", record)) for number in range(3)]
    assert stored == [0, 2, 0]
    assert len(layout.refs()) == 1
    assert store.flush() == 1
    assert len(layout.refs()) == 2
    second = opened(tmp_path, "b")
    second.prepare("0" * 12, ["gfx942"])
    assert [second.holds(f"{number:064x}") for number in range(4)] == [True, True, True, False]


def test_the_tag_of_a_pack_moves_last(tmp_path: Path) -> None:
    with fake_registry() as server, Registry(server.host, login="", backoff=0.001, attempts=2) as registry:
        store = OciStore(RepositoryPlace(RegistryRef(server.host, "kernels"), registry), tmp_path / "scratch")
        store.prepare("0" * 12, ["gfx942"])
        record = Result(inputs={}, code=b"x", metadata=b"{}").record()
        store.add(Addition("0" * 64, "gfx942", record))
        assert store.flush() == 1
        puts = [line for line in server.seen if line.startswith("PUT ")]
        assert len(puts) > 3
        assert ["/manifests/k-" in put for put in puts] == [False] * (len(puts) - 1) + [True]
        server.blobs.clear()
        server.manifests.clear()
        server.statuses["^PUT .*/blobs/"] = [500] * 20
        store.add(Addition("1" * 64, "gfx942", record))
        with pytest.raises(ToolchainError):
            store.flush()
        assert server.manifests == {}


def test_a_list_that_leads_out_of_its_pack_is_passed_over(
    tmp_path: Path, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    Machine(tmp_path / "first").run(opened(tmp_path, "a"))
    ((tag, manifest),) = layout.refs().items()
    value = layout.read_json(manifest)
    listed = json.loads(layout.blob(value["layers"][0]["digest"]).read_bytes())
    for row in listed["results"].values():
        row[0] += 1 << 40
    value["layers"][0] = layout.put_json(listed, oci_store.LIST).as_json()
    layout.tag(layout.put_json(value, manifest.media_type), tag)
    assert Machine(tmp_path / "second").run(opened(tmp_path, "b")).shared["taken"] == 0
    assert "points outside of it" in caplog.text


def test_notes(tmp_path: Path) -> None:
    store = opened(tmp_path, "a")
    assert store.notes("shard-") == {}
    store.note("shard-1", b"one")
    store.note("shard-1", b"two")
    assert opened(tmp_path, "b").notes("shard-") == {"shard-1": b"two"}
