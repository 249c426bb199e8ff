"""Tests of the options for kernel stores, shards and keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import finished_base
from tests.refusals import refused
from tests.unit.test_kernel_store import Machine, forge, rules_of
from toolchain.cli import build_cmd
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError
from toolchain.kernels.result_store import Result, UnsignedError, read_record
from toolchain.pipeline import run
from toolchain.pipeline.kernel_store import result_key, shared_results
from toolchain.request.model import Request
from toolchain.request.option_values import check, shard
from toolchain.stages.stage import Built
from toolchain.trust.keys import new_key


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_invalid_shard_is_refused(text: str) -> None:
    assert shard("4/4") == (4, 4)
    with refused("not-a-shard", "K/N"):
        shard(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "every", "9" * 5000])
def test_invalid_number_of_kernels_to_check_is_refused(text: str) -> None:
    assert (check("300"), check("all")) == (300, 0)
    with refused("not-a-number"):
        check(text)


@pytest.mark.parametrize(("key", "store", "warned"), [("own", "s", False), (None, "s", True)])
def test_note_is_printed_for_a_store_without_a_key(
    key: str | None,
    store: str | None,
    warned: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolchain.pipeline.kernel_store.result_key", lambda _: None)
    given = Path(key) if key else None
    where = Path(store) if store else None
    build_cmd._check_kernel_store(Request(cache=Cache(Path("cache")), kernel_store=where, kernel_key=given))
    assert ("--kernel-key" in capsys.readouterr().err) == warned


def test_invalid_kernel_key_is_refused_before_the_build(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    for wrong in ("not-there", ".", "text"):
        with pytest.raises(ConfigError):
            build_cmd._check_kernel_store(Request(cache=Cache(tmp_path / "cache"), kernel_key=tmp_path / wrong))


def test_folder_that_is_not_a_store_is_refused_before_the_build(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    request = Request(cache=Cache(tmp_path / "cache"))
    build_cmd._check_kernel_store(replace(request, kernel_store=tmp_path / "empty"))
    with refused("not-a-kernel-store"):
        build_cmd._check_kernel_store(replace(request, kernel_store=tmp_path))
    with refused("store-unusable"):
        build_cmd._check_kernel_store(replace(request, kernel_store=tmp_path / "file"))
    for place in ("empty", "nothing"):
        with refused("kernel-store-missing", place):
            build_cmd._check_kernel_store(replace(request, shards=(tmp_path / place,)))


def test_private_key_signs_results_and_its_public_half_verifies_them(tmp_path: Path) -> None:
    new_key(tmp_path / "ours")
    new_key(tmp_path / "theirs")
    ours, public = result_key(tmp_path / "ours"), result_key(tmp_path / "ours.pub")
    inputs = {"rule": {"target": "gfx942"}}
    record = Result(inputs=inputs, code=b"code", metadata=b"{}").record(ours)
    assert read_record(record, inputs, public).code == b"code"
    assert b'"sig"' not in Result(inputs=inputs, code=b"code", metadata=b"{}").record(public)
    with pytest.raises(UnsignedError, match="key"):
        read_record(record, inputs, result_key(tmp_path / "theirs.pub"))
    line, _, _ = record.partition(b"\n")
    with pytest.raises(UnsignedError):
        read_record(Result(inputs=inputs, code=b"lie!", metadata=b"{}").record(), inputs, public)
    assert b"keyid" in line


def test_invalid_code_object_from_a_store_is_removed(tmp_path: Path) -> None:
    machine, rule = Machine(tmp_path / "machine"), rules_of("one")[0]
    forge(machine, tmp_path, rule, code=b"\x7fELF of nobody")
    request = Request(cache=Cache(tmp_path / "cache"), kernel_store=tmp_path / "store")
    machine.out.mkdir()
    shared = shared_results(request, machine.naming())
    assert shared is not None
    assert list(shared.take([rule], machine.out)) == []
    assert shared.counts.damaged == 1
    assert [path for path in machine.out.rglob("*") if path.is_file()] == []
    assert shared_results(replace(request, kernel_store=None), machine.naming()) is None


def test_finished_stage_is_built_again_for_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    finished = finished_base(cache, tmp_path / "work")
    again = []

    def build_stage(*_: Any, **__: Any) -> Built:
        again.append("base")
        return finished

    # The base stands for a stage with a campaign, because the stages that compile kernels need a container engine.
    monkeypatch.setattr(run, "CAMPAIGNS", ("base",))
    monkeypatch.setattr(run, "_build_stage", build_stage)
    run.build(Request(cache=cache), "base")
    assert again == []
    run.build(Request(cache=cache, shard=(1, 2)), "base")
    assert again == ["base"]
