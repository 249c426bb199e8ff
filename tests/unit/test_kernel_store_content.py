"""Tests of invalid records and shard marks in a kernel store."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tests.unit.test_kernel_shards import RULES, folder, merge, run
from tests.unit.test_kernel_store import Machine
from toolchain.kernels.result_store import DamagedError, Result, read_record, read_seconds

DEEP = "[" * 100_000


@pytest.mark.parametrize("value", [10**400, -1, 1e12, "nan", None, [1]])
def test_invalid_duration_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_seconds(value)


@pytest.mark.parametrize("said", ['{"seconds": 1e999}', f'{{"seconds": {"9" * 400}}}', '{"size": Infinity}', DEEP])
def test_record_with_invalid_numbers_or_deep_json_is_damaged(said: str) -> None:
    whole = {"inputs": {}, "json": "{}", "bitcode": [], "seconds": 1, "about": {}, "sha256": "", "size": 0}
    try:
        statement = json.dumps({**whole, **json.loads(said)})
    except RecursionError:
        statement = said
    line = json.dumps({"statement": statement, "check": hashlib.sha256(statement.encode()).hexdigest()})
    with pytest.raises(DamagedError):
        read_record(line.encode() + b"\n", {})
    with pytest.raises(DamagedError):
        read_record(DEEP.encode() + b"\n", {})


@pytest.mark.parametrize("value", [1.0, True])
def test_result_with_equal_constant_of_another_type_is_not_taken(value: Any) -> None:
    """The names of the two results differ, but an edited store can contain a signed record under the other name."""
    made = Result(inputs={"rule": {"constexprs": {"BLOCK": value}}}, code=b"object", metadata=b"{}").record()
    assert read_record(made, {"rule": {"constexprs": {"BLOCK": value}}}).code == b"object"
    with pytest.raises(DamagedError, match="rule"):
        read_record(made, {"rule": {"constexprs": {"BLOCK": 1}}})


@pytest.mark.parametrize("rule", ["abc", 7, [1]])
def test_result_whose_rule_is_not_an_object_is_damaged(rule: Any) -> None:
    made = Result(inputs={"rule": rule}, code=b"object", metadata=b"{}").record()
    with pytest.raises(DamagedError):
        read_record(made, {"rule": {"target": "gfx942"}})


@pytest.mark.parametrize("changes", [{"of": 30_000_000}, {"shard": 0}, {"shard": 3}, {"shard": -1}])
def test_mark_of_an_invalid_shard_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    store = folder(tmp_path / "store")
    run(Machine(tmp_path / "first"), [store], (1, 2))
    (name,) = store.notes("shard-")
    path = tmp_path / "store" / "notes" / f"{name}.json"
    statement = json.dumps({**json.loads(json.loads(path.read_bytes())["statement"]), **changes})
    check = hashlib.sha256(statement.encode()).hexdigest()
    path.write_text(json.dumps({"statement": statement, "check": check}))
    with refused("shard-mark-invalid"):
        merge(Machine(tmp_path / "other"), [store], RULES)
