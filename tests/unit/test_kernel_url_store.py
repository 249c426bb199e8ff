"""A kernel store by URL: the checks of a folder's hold there too, and what a place can do to it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.kernel_fixtures import make_object, make_rule
from tests.unit.test_kernel_store import KERNELS, Machine, PlainKey, rules_of
from toolchain.build.kernel_store import open_store
from toolchain.cache import Cache
from toolchain.errors import ConfigError, RegistryError
from toolchain.kernels.shards import cut
from toolchain.kernels.store import Addition, FolderStore, Result
from toolchain.kernels.url_store import MARKER, UrlStore
from toolchain.option_values import kernel_store

URL = "memory://bucket/kernels"


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


def record_path(machine: Machine, kernel: str) -> str:
    name = machine.naming().name(rules_of(kernel)[0])
    (path,) = [path for path in MemoryFileSystem.store if path.endswith(name)]
    return str(path)


def stored() -> dict[str, bytes]:
    return {path: bytes(file.getvalue()) for path, file in MemoryFileSystem.store.items()}


def put(path: str, content: bytes) -> None:
    MemoryFileSystem().pipe_file(path, content)


def test_what_one_machine_compiled_another_takes(tmp_path: Path) -> None:
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    made, taken = first.run(UrlStore(URL)), second.run(UrlStore(URL))
    assert (made.shared["added"], taken.shared["taken"], taken.shared["added"]) == (3, 3, 0)
    assert second.workers.tries == []
    assert second.files() == first.files()
    assert set(UrlStore(URL).seconds(["gfx942"])) == {rule.id for rule in rules_of(*KERNELS)}
    assert UrlStore(URL).seconds(["gfx1100"]) == {}
    other = Machine(tmp_path / "other", layers=("sha256:" + "b" * 64,))
    assert other.run(UrlStore(URL)).shared["taken"] == 0


@pytest.mark.parametrize("damage", ["a bit", "cut", "emptied"])
def test_damaged_bytes_are_found_and_replaced(tmp_path: Path, damage: str) -> None:
    first = Machine(tmp_path / "first")
    first.run(UrlStore(URL))
    path = record_path(first, "two")
    content = bytearray(stored()[path])
    if damage == "a bit":
        content[-3] ^= 1
    put(path, bytes(content[: {"cut": len(content) // 2, "emptied": 0}.get(damage, len(content))]))
    second = Machine(tmp_path / "second")
    result = second.run(UrlStore(URL))
    assert (result.shared["taken"], result.shared["damaged"], result.shared["lied"]) == (2, 1, {})
    assert second.workers.tries == ["two"]
    assert second.files() == first.files()
    assert Machine(tmp_path / "third").run(UrlStore(URL)).shared["taken"] == 3


@pytest.mark.parametrize("lie", ["another GPU", "another rule"])
def test_a_store_that_lies_is_named_and_nothing_of_it_is_kept(tmp_path: Path, lie: str) -> None:
    first = Machine(tmp_path / "first")
    first.run(UrlStore(URL))
    naming, two = first.naming(), rules_of("two")[0]
    inputs = naming.inputs(two if lie == "another GPU" else rules_of("three")[0])
    code = make_object("gfx1100" if lie == "another GPU" else "gfx942", "two")
    metadata = b'{"shared": 0, "num_warps": 4, "warp_size": 64, "compile_status": "Complete", "arch": "gfx942"}'
    put(
        record_path(first, "two"), Result(inputs=inputs, code=code, metadata=metadata, about={"triton": "0.0"}).record()
    )
    second = Machine(tmp_path / "second")
    result = second.run(UrlStore(URL))
    assert [ref for ref, _ in second.lies] == [URL]
    assert sorted(second.workers.tries) == sorted(KERNELS)
    assert (second.files(), result.shared["added"]) == (first.files(), 0)


def test_with_a_key_only_what_it_signed_counts(tmp_path: Path) -> None:
    Machine(tmp_path / "unsigned").run(UrlStore(URL))
    result = Machine(tmp_path / "signed").run(UrlStore(URL), key=PlainKey("ours"))
    assert (result.shared["taken"], result.shared["unsigned"], result.shared["added"]) == (0, 3, 3)


def test_two_writers_at_once_lose_nothing() -> None:
    names = [f"{number:064x}" for number in range(100)]

    def write() -> None:
        store = UrlStore(URL)
        store.prepare("0" * 12, ["gfx942"])
        for number, name in enumerate(names):
            store.add(Addition(name, "gfx942", f"rule{number}", float(number), f"record {number}".encode()))
        store.flush()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    store = UrlStore(URL)
    store.prepare("0" * 12, ["gfx942"])
    found = dict(store.fetch(names))
    assert found == {name: f"record {number}".encode() for number, name in enumerate(names)}
    assert store.seconds(["gfx942"]) == {f"rule{number}": float(number) for number in range(100)}


def test_a_place_that_refuses_costs_only_its_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = MemoryFileSystem.pipe_file, [0]

    def full(self: MemoryFileSystem, path: str, value: bytes, **how: Any) -> None:
        count[0] += 1
        if count[0] > 2:  # the marker and one result
            raise OSError(28, "No space left on device")
        write(self, path, value, **how)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    first = Machine(tmp_path / "first")
    result = first.run(UrlStore(URL))
    assert (result.counts()["done"], result.shared["added"]) == (3, 1)
    monkeypatch.undo()
    assert Machine(tmp_path / "second").run(UrlStore(URL)).shared["taken"] == 1, "what is there is whole"


def test_a_place_that_does_not_answer_ends_the_campaign_before_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = UrlStore(URL)

    def silent(*_: Any, **__: Any) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "find", silent)
    machine = Machine(tmp_path / "machine")
    with pytest.raises(RegistryError, match="cannot be read") as caught:
        machine.run(store)
    assert "no answer" in caught.value.why
    assert machine.workers.tries == []
    monkeypatch.setattr(MemoryFileSystem, "cat_file", silent)
    with pytest.raises(RegistryError, match="cannot be read"):
        UrlStore(URL)


def test_a_result_that_goes_away_meanwhile_is_a_miss(tmp_path: Path) -> None:
    first = Machine(tmp_path / "first")
    first.run(UrlStore(URL))
    store = UrlStore(URL)
    store.prepare(first.naming().scope, ["gfx942"])
    names = [first.naming().name(rule) for rule in rules_of(*KERNELS)]
    MemoryFileSystem().rm(record_path(first, "two"))
    assert {name for name, _ in store.fetch(names)} == {names[0], names[2]}


def test_notes_and_the_first_of_them() -> None:
    store = UrlStore(URL)
    assert store.note("cut-1", b"a", first=True) == b"a"
    assert UrlStore(URL).note("cut-1", b"b", first=True) == b"a"
    assert store.note("cut-1", b"c") == b"c"
    store.note("shard-1", b"d")
    assert store.notes("cut-") == {"cut-1": b"c"}
    assert cut([replace(make_rule("one"), cluster="x")], 1, store.seconds(["gfx942"])) == {"x": 1}


def test_a_store_of_another_format_is_refused() -> None:
    put(f"/bucket/kernels/{MARKER}", b'{"format":99}')
    with pytest.raises(ConfigError, match="another format"):
        UrlStore(URL)


def test_urls_of_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    assert kernel_store(f"{URL}/") == URL
    assert kernel_store("s3://bucket/prefix") == "s3://bucket/prefix"
    for wrong, why in (
        ("s3://", "no place"),
        ("s3://key:secret@host/b", "credentials"),
        ("a::s3://b", "not a reference"),
    ):
        with pytest.raises(ConfigError, match=why):
            kernel_store(wrong)
    with open_store(kernel_store(f"file://{tmp_path}/store"), cache) as folder, open_store(URL, cache) as store:
        assert isinstance(folder, FolderStore)
        assert isinstance(store, UrlStore)
    with pytest.raises(ConfigError, match="--offline"), open_store("s3://bucket/x", cache, offline=True):
        pass
    with pytest.raises(ConfigError, match="cannot be used"), open_store("nonsense://bucket/x", cache):
        pass
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match="needs fsspec") as caught, open_store(URL, cache):
        pass
    assert "in a checkout of this tool" in caught.value.fix
