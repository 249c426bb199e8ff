"""A sample of lab/scripts/fuzz_readers.py: damaged files of every kind end in an error of the tool."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

pytest.importorskip("backports.zstd")
pytest.importorskip("numpy")

from lab.scripts import fuzz_readers
from lab.scripts.fuzz_readers import Kind, fuzz, kinds
from lab.tests.emulated_objects import compile_all, rule

NAMES = ("aks2", "flatzip", "wheel", "zip", "bundle", "object", "mcv", "ledger")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    folder = tmp_path_factory.mktemp("fuzz")
    gpus = ("gfx942", "gfx1100")
    paths = compile_all([rule(folder, "add", gpu) for gpu in gpus])
    return kinds({gpu: path.read_bytes() for gpu, path in zip(gpus, paths, strict=True)}, folder)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_cause_no_fault_in_readers(
    known: dict[str, Kind], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy host may pause a reader for longer than the usual limit, which is for endless reads.
    monkeypatch.setattr(fuzz_readers, "LIMIT_SECONDS", 120.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of duplicate names
        outcome = fuzz(known[name], 25, f"sample-{name}")
        # A reader that fails holds its temporary file in a reference cycle until the cycle is collected.
        gc.collect()
    assert outcome.faults == []
    assert outcome.mutants == 25
    assert outcome.answers["read"] < 25


def _bug(path: Path, scratch: Path) -> NoReturn:
    raise KeyError("source")


def _waits(path: Path, scratch: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize("read", [_bug, _waits])
def test_fault_of_a_reader_is_recorded(
    read: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz_readers, "LIMIT_SECONDS", 0.2)
    outcome = fuzz(Kind(".x", lambda draw: draw.randbytes(9), read), 1, "s", tmp_path / "kept")
    assert len(outcome.faults) == 1
    assert [path.read_bytes() for path in (tmp_path / "kept").iterdir()] == [random.Random("s-0").randbytes(9)]
