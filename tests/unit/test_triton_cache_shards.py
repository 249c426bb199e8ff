"""Tests of a Triton cache that is made in shards, and of hostile results in the shared store."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tests.triton_cache_fixtures import FOUR, TESTS, call, made
from toolchain.core.errors import KernelError
from toolchain.kernels.cache_entries import check_made, entry_folder, lay_out, unpack
from toolchain.kernels.calls import Call, Outcome, in_orders
from toolchain.kernels.result_name import Naming
from toolchain.kernels.result_store import KernelStore
from toolchain.kernels.shared import SharedResults

pytest.importorskip("triton")
NAMING = Naming(
    TESTS / "standin_wheel", triton=["sha256:" + "a" * 64], recipe={"calls.py": "1"}, environment={"HOME": "/tmp"}
)
REFUSED = call("forward", "fp8")


def shared(store: Path, **how: Any) -> SharedResults:
    return SharedResults([KernelStore(store)], NAMING, **how)


def tree(outcomes: list[Outcome], folder: Path) -> dict[str, bytes]:
    """Lay out the kernels in `folder`, and return the content of each file of the layer."""
    for outcome in outcomes:
        if outcome.done:
            unpack(folder / outcome.entry.out, folder / "made")
    kernels = [("gfx942", *kernel) for outcome in outcomes for kernel in outcome.kernels]
    lay_out(folder / "made", kernels, folder / "tree", "/opt/triton-cache")
    return {
        str(path.relative_to(folder / "tree")): path.read_bytes()
        for path in (folder / "tree").rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the layer that one machine makes."""
    folder = tmp_path_factory.mktemp("alone")
    return tree(made(FOUR, folder)[0], folder)


@pytest.mark.nightly
def test_joined_shards_equal_a_build_on_one_machine(
    alone: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [*FOUR, REFUSED]
    one, _ = made(calls, tmp_path / "1", shared=shared(tmp_path / "store"), part=(1, 2))
    with refused("shards-missing", "2/2"):
        made(calls, tmp_path / "early", shared=shared(tmp_path / "store", only=True))
    two, _ = made(calls, tmp_path / "2", shared=shared(tmp_path / "store"), part=(2, 2))
    assert sorted(outcome.call.name for outcome in (*one, *two)) == sorted(asked.name for asked in calls)
    with monkeypatch.context() as patch:
        patch.setattr("toolchain.kernels.pool.Worker", None)  # no worker may start
        joined, about = made(calls, tmp_path / "joined", shared=shared(tmp_path / "store", only=True))
    assert [outcome.call for outcome in joined] == calls
    assert (joined[-1].refused, joined[-1].entry.reason) == (True, "RuntimeError: this device does not support fp8")
    assert about["mcv_key"] == "unknown-triton-key"
    assert tree(joined, tmp_path / "joined") == alone
    ordered, _ = made(in_orders(joined), tmp_path / "joined")
    assert {kernel for row in ordered for kernel in row.kernels} == {kernel for row in joined for kernel in row.kernels}


@pytest.fixture
def result(tmp_path: Path) -> tuple[Path, Call, Outcome]:
    (found,), _ = made(FOUR[:1], tmp_path)
    return tmp_path / found.entry.out, found.call, found


def test_result_with_foreign_or_damaged_content_is_refused(result: tuple[Path, Call, Outcome], tmp_path: Path) -> None:
    path, _, found = result
    check_made(path, "gfx942", "")
    folder = entry_folder(found.kernels[0][1])
    whole = path.read_bytes()
    for name in ("/etc/passwd", f"{folder}/../x", f"{folder}/x/y", folder, "other/x", "launches/x.json"):
        path.write_bytes(with_member(whole, tarfile.TarInfo(name)))
        with refused("cache-entry-damaged"):
            unpack(path, tmp_path / "new")
    link = tarfile.TarInfo(f"{folder}/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    for damaged in (with_member(whole, link), whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(KernelError):
            check_made(path, "gfx942", "")
    path.write_bytes(whole)
    with refused("cache-entry-damaged"):
        check_made(path, "gfx1100", "")
    # A container may have left a link at the place of the entry.
    (tmp_path / "led").mkdir()
    (tmp_path / "led" / folder).symlink_to(tmp_path)
    with refused("cache-entry-damaged"):
        unpack(path, tmp_path / "led")
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), "kernels": [["scale", "../../etc"]]}))
    with refused("cache-entry-damaged"):
        unpack(path, tmp_path / "new")


def test_a_result_with_too_many_bytes_is_refused(
    result: tuple[Path, Call, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = result
    with tarfile.open(path) as tar:
        size = sum(member.size for member in tar)
    monkeypatch.setattr("toolchain.kernels.cache_entries._LARGEST_SUM", size)
    unpack(path, tmp_path / "whole")
    monkeypatch.setattr("toolchain.kernels.cache_entries._LARGEST_SUM", size - 1)
    with refused("cache-entry-damaged"):
        unpack(path, tmp_path / "new")


def with_member(tar: bytes, member: tarfile.TarInfo) -> bytes:
    out = io.BytesIO(tar)
    with tarfile.open(fileobj=out, mode="a") as stream:
        stream.addfile(member)
    return out.getvalue()
