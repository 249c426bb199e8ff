"""Records: a record of this version is read; another version or a damaged record is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.record import VERSION, LayerFacts, OtherVersionError, Patch, Record, RecordError, TakenFrom
from toolchain.pipeline.records import (
    find_image,
    finished,
    known_record,
    new_record,
    read_record,
    records,
    unread_records,
    write_record,
)
from toolchain.request.model import Request
from toolchain.stages.stage import Built, Planned
from toolchain.trust.attest import isolation_of

WHOLE: dict[str, Any] = {
    "version": VERSION,
    "stage": "llvm",
    "image": "llvm-triton-10dc3a8e-debian13",
    "input_digest": f"sha256:{'1' * 64}",
    "inputs": {"stage": "llvm"},
    "sources": [
        {
            "name": "llvm",
            "ref": "10dc3a8e",
            "repository": "https://github.com/llvm/llvm-project",
            "digest": "git:10dc3a8e@https://github.com/llvm/llvm-project",
            "tag": "v1",
            "kind": "git",
            "license": "MIT",
            "locked": True,
            "patches": [{"name": "a.patch", "digest": f"sha256:{'3' * 64}"}],
        }
    ],
    "request": {"stage": "llvm", "contract": False},
    "started": 1.5,
    "finished": 2,
    "tool": {"version": "0.1.0", "builder": "b"},
    "isolation": {"mode": "chroot"},
    "binaries": ["triton-wheel"],
    "partial": "the table generators only",
    "arch": "amd64",
    "manifest": f"sha256:{'5' * 64}",
    "layers": [{"digest": f"sha256:{'6' * 64}"}],
    "compressor": "gzip/zlib-1.2.13/9",
    "facts": {
        "unpacked_bytes": 9,
        "blob_bytes": 5,
        "diff_id": f"sha256:{'7' * 64}",
        "seconds": {"compile": 40.5, "layer": 1},
        "total_seconds": 42,
        "largest": [{"path": "/a", "bytes": 9}],
        "disk_bytes": 9,
    },
    "taken_from": {"ref": "oci:/srv/images@sha256:5555", "key": "abcd"},
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, **changes}


def test_fields_and_facts_of_a_record_are_parsed() -> None:
    record = Record.from_bytes(json.dumps(WHOLE).encode())
    (llvm,) = record.sources
    assert (llvm.kind, llvm.patches) == ("git", (Patch("a.patch", f"sha256:{'3' * 64}"),))
    assert not record.contract
    assert record.compressor == "gzip/zlib-1.2.13/9"
    assert record.layer_digests == (f"sha256:{'6' * 64}",)
    assert record.taken_from == TakenFrom("oci:/srv/images@sha256:5555", "abcd")
    facts = LayerFacts.parse(record.facts)
    assert (facts.seconds, facts.total_seconds, facts.disk_bytes) == ({"compile": 40.5, "layer": 1}, 42, 9)
    assert facts.as_json() == record.facts


def test_record_round_trips_through_json() -> None:
    """The keys and values must be equal, because they become part of signed statements again."""
    assert json.loads(Record.parse(WHOLE).as_bytes()) == WHOLE


def test_record_with_a_name_that_is_not_utf8_can_be_read_again(tmp_path: Path) -> None:
    patches = [{"name": "fix\udcff \U0001f480.patch", "digest": f"sha256:{'3' * 64}"}]
    record = Record.parse({**WHOLE, "sources": [{**WHOLE["sources"][0], "patches": patches}]})
    cache = Cache(tmp_path / "cache")
    write_record(cache, record)
    (patch,) = read_record(cache, record.input_digest).sources[0].patches
    assert patch.name == "fix\\udcff \U0001f480.patch"


def test_record_of_a_stage_without_containers_claims_no_isolation(tmp_path: Path) -> None:
    """A base from packages is made with the caller's rights, whatever the probe for other builds found."""
    cache = Cache(tmp_path / "cache")
    cache.engine.mkdir(parents=True)
    (cache.engine / "isolation.json").write_text(json.dumps({"mode": "chroot", "measures": "sha256:1"}))
    for engine, isolation in ((True, "chroot sha256:1"), (False, "none")):
        planned = Planned(name="base", image="x", inputs={}, engine=engine)
        built = Built(planned=planned, input_digest="sha256:1", manifest="sha256:2", layers=())
        assert isolation_of(new_record(Request(cache=cache), planned, built)) == isolation


@pytest.mark.parametrize("version", [None, 1, VERSION + 1])
def test_record_of_another_version_is_not_used(version: int | None, tmp_path: Path) -> None:
    with pytest.raises(OtherVersionError):
        Record.parse(changed(version=version))
    cache = Cache(tmp_path)
    cache.record("sha256:" + "1" * 64).parent.mkdir()
    path = cache.record("sha256:" + "1" * 64)
    path.write_text(json.dumps(changed(version=version)))
    assert known_record(cache, "sha256:" + "1" * 64) is None
    assert (records(cache), unread_records(cache)) == ([], [path])
    done = CliRunner().invoke(app, ["plan", "base", "--cache", str(tmp_path)])
    assert done.exit_code == 0
    assert "toolchain cache prune" in done.stderr


def test_change_of_record_keys_requires_a_new_version() -> None:
    """A new key needs a new version, because otherwise an older tool takes a bundle with that key for hostile."""
    keys = {
        2: "arch binaries compressor facts finished image input_digest inputs isolation layers manifest partial request"
        " sources stage started taken_from tool",
    }
    assert sorted(one.name for one in fields(Record)) == keys[VERSION].split()


@pytest.mark.parametrize(
    "harm",
    [
        {"manifest": 5},
        {"layers": [{"size": 1}]},
        {"facts": None},
        {"sources": [{"name": "llvm"}]},
        {"binaries": [1]},
        {"weather": "fine"},
        {"sources": [{**WHOLE["sources"][0], "kind": None}]},
        {"taken_from": {"ref": "x"}},
        {"version": True},
    ],
)
def test_damaged_record_is_skipped(harm: dict[str, Any], tmp_path: Path) -> None:
    cache, digest = Cache(tmp_path), f"sha256:{'1' * 64}"
    whole = Record.parse(changed(input_digest=digest))
    write_record(cache, whole)
    cache.record(f"sha256:{'2' * 64}").write_text(json.dumps(changed(**harm)))
    with pytest.raises(RecordError):
        read_record(cache, f"sha256:{'2' * 64}")
    assert known_record(cache, f"sha256:{'2' * 64}") is None
    assert records(cache) == [whole]


@pytest.mark.parametrize("content", [b"{", b"", b"5", b"[]", b"\xff", b'{"a":' * 200_000])
def test_file_without_json_object_is_not_a_record(content: bytes, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.records.mkdir()
    (cache.records / "1.json").write_bytes(content)
    assert list(finished(cache)) == []
    assert find_image(cache, "b") == []
    assert known_record(cache, "sha256:1") is None
