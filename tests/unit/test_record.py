"""Records: those of every version are read, and what is damaged is none."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from toolchain.build.record import find_image, finished, known_record, read_record, records, write_record
from toolchain.cache import Cache
from toolchain.record import VERSION, LayerFacts, Patch, Record, RecordError, TakenFrom

RECORDED = Path(__file__).parents[1] / "recorded" / "record-0.json"


def before(**changes: Any) -> dict[str, Any]:
    """A record as it was written before records named a version."""
    return {**json.loads(RECORDED.read_bytes()), **changes}


def test_a_record_that_names_no_version_is_read() -> None:
    record = Record.from_bytes(RECORDED.read_bytes())
    assert (record.version, record.stage, record.partial) == (0, "llvm", "the table generators only")
    llvm, triton = record.sources
    assert llvm.patches == (Patch("a.patch", f"sha256:{'3' * 64}"),)
    assert (triton.tag, triton.license, triton.locked, triton.patches) == ("v3.7.1", "", False, ())
    assert not record.contract
    assert record.diff_id == f"sha256:{'7' * 64}"
    assert record.layer_digests == (f"sha256:{'6' * 64}",)
    assert record.taken_from == TakenFrom("oci:/srv/images@sha256:5555", "abcd")
    facts = LayerFacts.parse(record.facts)
    assert (facts.seconds, facts.total_seconds, facts.disk_bytes) == ({"compile": 40.5, "layer": 1}, 42, 9)
    assert facts.as_json().items() <= record.facts.items()


def test_it_is_written_as_it_was_read() -> None:
    """By key and value: what is in it goes into signed statements again."""
    assert json.loads(Record.parse(before()).as_bytes()) == before()


def test_a_new_one_names_its_version(tmp_path: Path) -> None:
    record = Record(stage="base", image="b", input_digest=f"sha256:{'1' * 64}", manifest="sha256:2")
    write_record(Cache(tmp_path), record)
    path = Cache(tmp_path).record(record.input_digest)
    assert json.loads(path.read_bytes())["version"] == VERSION
    assert read_record(Cache(tmp_path), record.input_digest) == record


@pytest.mark.parametrize(
    "later", ["sources", "request", "started", "finished", "tool", "isolation", "binaries", "arch", "taken_from"]
)
def test_what_came_later_may_be_missing_in_an_old_one(later: str) -> None:
    value = before()
    del value[later]
    record = Record.parse(value)
    assert not getattr(record, later)
    assert record.contract == (later == "request")


def test_the_first_form_of_a_source() -> None:
    row = {"name": "llvm", "ref": "x", "repository": "debian", "digest": None}
    (source,) = Record.parse(before(sources=[row])).sources
    assert (source.digest, source.kind, source.locked, source.patches) == (None, "", None, None)
    assert {**row, "license": ""} == source.as_json()


def test_what_only_a_newer_version_says_is_passed_over() -> None:
    newer = before(version=VERSION + 1, weather="fine", sources=[{**before()["sources"][0], "colour": "red"}])
    record = Record.parse(newer)
    assert record == Record.parse(newer, exact=True)
    assert record.version == VERSION, "as it would be written now"
    assert "weather" not in record.as_json()


def test_whoever_adds_a_key_raises_the_version() -> None:
    """Otherwise an older tool refuses the bundles of a newer one. Records are added to this list, never taken out."""
    keys = {
        1: "arch binaries facts finished image input_digest inputs isolation layers manifest partial request sources"
        " stage started taken_from tool version",
    }
    assert sorted(one.name for one in fields(Record)) == keys[VERSION].split()


def test_a_further_key_of_a_known_version_is_read_but_not_believed() -> None:
    assert Record.parse(before(weather="fine")) == Record.parse(before())
    with pytest.raises(RecordError, match="weather: records have no such key"):
        Record.parse(before(weather="fine"), exact=True)


@pytest.mark.parametrize(
    "harm",
    [
        {"manifest": 5},
        {"manifest": None},
        {"layers": None},
        {"layers": [1]},
        {"layers": [{"size": 1}]},
        {"facts": None},
        {"facts": []},
        {"inputs": "text"},
        {"sources": [{"name": "llvm"}]},
        {"sources": {"llvm": "x"}},
        {"binaries": [1]},
        {"tool": {"version": 1}},
        {"request": []},
        {"started": "yesterday"},
        {"started": True},
        {"taken_from": {"ref": "x"}},
        {"version": "1"},
        {"version": True},
    ],
)
def test_a_damaged_one_is_passed_over(harm: dict[str, Any], tmp_path: Path) -> None:
    cache, digest = Cache(tmp_path), f"sha256:{'1' * 64}"
    whole = Record(stage="base", image="b", input_digest=digest, manifest="sha256:2")
    write_record(cache, whole)
    cache.record(f"sha256:{'2' * 64}").write_text(json.dumps(before(**harm)))
    with pytest.raises(RecordError):
        read_record(cache, f"sha256:{'2' * 64}")
    assert known_record(cache, f"sha256:{'2' * 64}") is None
    assert records(cache) == [whole]


@pytest.mark.parametrize("content", [b"{", b"", b"5", b"[]", b"\xff", b'{"a":' * 200_000])
def test_what_is_no_object_is_no_record(content: bytes, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.records.mkdir()
    (cache.records / "1.json").write_bytes(content)
    assert list(finished(cache)) == []
    assert find_image(cache, "b") == []
    assert known_record(cache, "sha256:1") is None


def test_a_local_image_has_one_without_a_file() -> None:
    record = Record.of_local_image("base", "b", "sha256:1", {"image": "sha256:2", "arch": "arm64", "stage": "base"})
    assert (record.manifest, record.arch, record.layers, record.sources) == ("sha256:2", "arm64", (), ())
