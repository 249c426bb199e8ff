"""The tables of pins: their integrity, and the lookup of a release."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.refusals import refused
from toolchain.catalog import release_data as data
from toolchain.catalog import releases as pins
from toolchain.catalog.gpus import known_gpus
from toolchain.core.errors import PinError, UnsupportedError

HASH = "10dc3a8e916d73291269e5e2b82dd22681489aa1"
FORK = "1f126a6dea50d185c0781743a667390037ae88bd"
OTHER = "86b69c31642e98f8357df62c09d118ad1da4e16a"
NOWHERE = "0123456789abcdef0123456789abcdef01234567"
UPSTREAM = "llvm/llvm-project"
TRITON_FORK = "triton-lang/llvm-project"


# --- the data ---

ROWS = [*data.triton_releases(), *data.aotriton_releases(), *data.pytorch_rows()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{type(row).__name__}-{row}"[:48])
def test_row_has_certainty_and_source(row: data.TritonRelease) -> None:
    assert row.certainty in ("verified", "inferred", "unknown")
    assert len(row.source) > 10


@pytest.mark.parametrize("row", [r for r in ROWS if not isinstance(r, data.PytorchRow)], ids=lambda r: r.title)
def test_row_hashes_are_complete_or_empty(row: data.TritonRelease | data.AotritonRelease) -> None:
    values = [row.llvm, row.commit, *([row.triton] if isinstance(row, data.AotritonRelease) else [])]
    assert all(re.fullmatch(r"(?:[0-9a-f]{40})?", value) for value in values)
    assert bool(row.llvm) == (row.certainty != "unknown")
    assert bool(row.llvm) == bool(row.repository)


@pytest.mark.parametrize("row", data.triton_releases(), ids=lambda row: row.title)
def test_triton_row_gives_source_of_commit_and_codegen_pins(row: data.TritonRelease) -> None:
    assert bool(row.commit) == (row.commit_certainty != "unknown") == bool(row.commit_source)
    assert len({pin.target for pin in row.codegen}) == len(row.codegen)
    assert all(re.fullmatch(r"[0-9a-f]{40}-\d{1,6}", pin.revision) and pin.source for pin in row.codegen)


@pytest.mark.parametrize("row", data.aotriton_releases(), ids=lambda row: row.name)
def test_aotriton_row_has_known_gpus_and_a_date(row: data.AotritonRelease) -> None:
    assert row.gpus
    assert set(row.gpus) <= set(known_gpus())
    assert list(row.gpus) == sorted(set(row.gpus))
    assert re.fullmatch(r"202[4-6]-\d\d(-\d\d)?", row.date)
    assert row.tag_certainty != "verified" or (row.commit and row.triton)


def test_rows_are_unique() -> None:
    for names in (
        [row.version or row.commit for row in data.triton_releases()],
        [row.name for row in data.aotriton_releases()],
        [row.version for row in data.pytorch_rows()],
    ):
        assert len(names) == len(set(names))


def test_llvm_commit_has_one_repository() -> None:
    rows: list[data.TritonRelease | data.AotritonRelease] = [*data.triton_releases(), *data.aotriton_releases()]
    named = {(row.llvm, row.repository) for row in rows if row.llvm}
    assert len(named) == len({llvm for llvm, _ in named})


@pytest.mark.parametrize(
    ("version", "llvm", "repository"),
    [
        ("2.1", "c5dede880d175f7229c9b2923f4753e12702305d", UPSTREAM),
        ("2.3.1", "5e5a22caf88ac1ccfa8dc5720295fdeba0ad9372", UPSTREAM),
        ("3.2", OTHER, UPSTREAM),
        ("3.7.1", FORK, TRITON_FORK),
        ("3.9", "b010a18d2b648cab83c83967ff26b8fde11acdc6", UPSTREAM),
        ("d8da7c998c75c88691e0ec157fcfd92b49d7060a", "0729a74e66aeeb7a9839d80bfd64fc49b2e69f52", UPSTREAM),
        ("e7eab7dd36b76e085d1ec858c6cee3aa88208400", "850a2b1b975c061ae0fc982ba68064d305485cb2", TRITON_FORK),
    ],
)
def test_triton_release_pins_llvm_commit(version: str, llvm: str, repository: str) -> None:
    pin = pins.triton_release(version).pin
    assert (pin.commit, pin.repository) == (llvm, repository)


@pytest.mark.parametrize(
    ("name", "commit", "triton", "llvm", "certainty"),
    [
        (
            "0.4b",
            "e53788109dfe0894357097717938c21462f8507c",
            "888e98a46c60630e5ec51bb2e30d342bcedb241b",
            "49af6502c6dcb4a7f7520178bd14df396f78240c",
            "verified",
        ),
        (
            "0.13b",
            "6e00ef3e335b45dfb49065259533b59c68995bfe",
            "db82b800cd4b73e3fa586e1819b314f53bfbad4c",
            "7f77ca0dbda4abbf9af06537b2c475f20ccd6007",
            "inferred",
        ),
    ],
)
def test_aotriton_release_pins_triton_and_llvm(name: str, commit: str, triton: str, llvm: str, certainty: str) -> None:
    row = pins.aotriton_release(name)
    assert (row.commit, row.triton, row.pin.commit, row.pin.certainty) == (commit, triton, llvm, certainty)
    assert bool(row.pin.warnings) == (certainty == "inferred")
    assert pins.triton_release(triton).pin.commit == llvm


# --- lookup ---


@pytest.mark.parametrize("text", ["3.2", "v3.2", "3.2.0", "v3.2.0", " 3.2.0 "])
def test_triton_release_is_found_by_each_spelling(text: str) -> None:
    row = pins.triton_release(text)
    assert (row.version, row.ref, row.warnings) == ("3.2.0", "v3.2.0", ())


def test_minor_version_with_differing_pins_selects_newest_patch_and_warns() -> None:
    row = pins.triton_release("3.7")
    assert row.version == "3.7.1"
    assert "3.7.0" in row.warnings[0]
    assert row.pin.warnings == row.warnings
    assert not pins.triton_release("3.7.1").warnings


def test_minor_version_with_equal_pins_selects_verified_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = data.TritonRelease(
        version="3.3.0", commit="", llvm=HASH, repository=UPSTREAM, certainty="verified", source="x"
    )
    rows = (row, dataclasses.replace(row, version="3.3.1", certainty="inferred"))
    monkeypatch.setattr(pins, "triton_releases", lambda: rows)
    assert pins.triton_release("3.3").certainty == "verified"
    inferred = pins.triton_release("3.3.1").pin
    assert inferred.certainty == "inferred"
    assert "inferred" in inferred.warnings[0]


@pytest.mark.parametrize("version", ["3.98.1", "v3.99", "4.0.0"])
def test_triton_newer_than_the_table_is_refused(version: str) -> None:
    with refused("unknown-triton") as caught:
        pins.triton_release(version)
    assert "second LLVM" in caught.value.what
    assert "AMD" in caught.value.why


@pytest.mark.parametrize("version", ["2.2", "2.3.0"])
def test_triton_with_unknown_llvm_is_refused_unless_allowed(version: str) -> None:
    with refused("release-incomplete") as caught:
        pins.triton_release(version)
    assert "llvm=" in caught.value.fix
    row = pins.triton_release(version, allow_unknown=True)
    with pytest.raises(PinError):
        _ = row.pin


@pytest.mark.parametrize("version", ["2.0", "3.4.7", "3.8.0+mine", NOWHERE])
def test_unrecorded_triton_release_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        pins.triton_release(version)
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("version", ["", "latest", "3", "3.2.0.1", "3.8.0rc1", "HEAD", "10dc3a8e"])
def test_invalid_version_is_refused(version: str) -> None:
    with refused("not-a-triton-version"):
        pins.triton_release(version)
    with refused("not-a-pytorch-version"):
        pins.aotriton_for_pytorch(version)


@pytest.mark.parametrize("text", ["3.06.0", "03.6", "\uff13.6.0", "3.0\u0667.1"])
def test_version_with_leading_zero_or_non_ascii_digit_is_refused(text: str) -> None:
    """Such a text must not select a release, because the version is part of records and of image names."""
    assert not pins.is_version(text)
    with refused("not-a-triton-version"):
        pins.triton_release(text)
    with refused("not-a-pytorch-version"):
        pins.aotriton_for_pytorch(text)


def test_a_vendor_version_has_its_own_row() -> None:
    assert pins.triton_release("3.8.0+rhaiv.1").llvm == "4611156032e1ebac68b2b8f6107b1475a7c60800"
    assert pins.triton_release("3.8").version == "3.8.0"


@pytest.mark.parametrize("text", ["0.9.2b", "0.9.2", "v0.9.2B"])
def test_aotriton_release_is_found_by_each_spelling(text: str) -> None:
    assert pins.aotriton_release(text).name == "0.9.2b"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("0.11.1b", ["llvm"]),
        ("0.14b", ["triton", "llvm"]),
        ("0.14.1b", ["aotriton", "triton", "llvm"]),
    ],
)
def test_incomplete_aotriton_release_names_the_missing_options(name: str, options: list[str]) -> None:
    with pytest.raises(PinError) as caught:
        pins.aotriton_release(name)
    assert re.findall(r"--source (\w+)=", caught.value.fix) == options
    row = pins.aotriton_release(name, allow_unknown=True)
    assert row.name == name
    with pytest.raises(PinError):
        _ = row.pin


@pytest.mark.parametrize(
    ("version", "aotriton"),
    [
        ("2.3", "0.4b"),
        ("2.7.1+rocm6.3", "0.9.2b"),
        ("2.9", "0.11b"),
        ("2.13.0", "0.12b"),
        ("main", "0.14.2b"),
    ],
)
def test_pytorch_version_selects_aotriton_release(version: str, aotriton: str) -> None:
    row = pins.aotriton_for_pytorch(version)
    assert row.aotriton == aotriton
    assert any("inferred" in warning for warning in row.warnings) == (row.certainty == "inferred")


def test_pytorch_rows_name_recorded_aotriton_releases() -> None:
    known = {row.name for row in data.aotriton_releases()}
    assert {name for row in data.pytorch_rows() for name in (row.aotriton, *row.alternatives)} <= known
    assert [row.version for row in data.pytorch_rows()] == [*(f"2.{minor}" for minor in range(3, 14)), "main"]


@pytest.mark.parametrize("version", ["2.2", "2.14", "1.13"])
def test_unrecorded_pytorch_version_is_refused(version: str) -> None:
    with refused("unknown-release"):
        pins.aotriton_for_pytorch(version)
