"""Tests of locks and bundles for cross-compilation, which contain a base and a sysroot for each architecture."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.bundle_fixtures import Place
from tests.evidence_fixtures import finished_base, finished_sysroot
from tests.lock_fixtures import base, lock
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.bundle.export import export
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, HostileInputError
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef
from toolchain.pipeline import lockfile, locking
from toolchain.pipeline import run as pipeline
from toolchain.pipeline.lock_differences import differences
from toolchain.pipeline.lockfile import Lock
from toolchain.pipeline.plan import plan
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.stages.base import BaseStage
from toolchain.stages.llvm import LlvmStage
from toolchain.stages.stage import Built, Planned
from toolchain.stages.unpacked import UnpackedStage

pytestmark = pytest.mark.usefixtures("on_amd64")
LLVM = ("--source", "llvm=distro:llvm-toolchain-22", "--base", "debian13")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Return a cache with a base and the sysroots for arm64 and s390x; the commands use this cache."""
    found = Cache(tmp_path / "one")
    finished_base(found, tmp_path / "base")
    for arch in ("arm64", "s390x"):
        finished_sysroot(found, tmp_path / arch, arch)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(found.root))
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return found


def held(request: Request, target: str) -> Lock:
    """Return the lock that a request would get now."""
    return locking.resolve(request, [row.planned for row in plan(request, target)], target)


def named(found: Lock) -> list[str]:
    """Return the systems of a lock, each with its state."""
    return [f"{one} {one.state}" for one in found.bases]


# Locks


@pytest.mark.parametrize(
    ("target", "arch", "systems"),
    [
        ("llvm", ("arm64",), ["base debian13 (amd64)", "sysroot debian13 (arm64)"]),
        ("llvm", ("amd64", "arm64"), ["base debian13 (amd64)", "sysroot debian13 (arm64)"]),
        ("llvm", ("s390x", "arm64"), ["base debian13 (amd64)", "sysroot debian13 (s390x)", "sysroot debian13 (arm64)"]),
        ("base", ("arm64",), ["sysroot debian13 (arm64)"]),
        ("base", ("amd64",), ["base debian13 (amd64)"]),
    ],
)
def test_lock_contains_each_system_that_the_build_uses(
    cache: Cache, target: str, arch: tuple[str, ...], systems: list[str]
) -> None:
    sources = specs({"llvm": "distro:llvm-toolchain-22"} if target == "llvm" else {})
    request = Request(cache=cache, arch=arch, sources=sources)
    found = held(request, target)
    assert named(found) == [f"{one} resolved" for one in systems]
    assert found.complete
    assert all(one.image for one in found.bases)
    for one in found.bases:
        assert one.packages[0].name == ("apt" if one.stage == "base" else "libc6-dev")
    opened = locking.resolve(request, [row.planned for row in plan(request, target)], target, open_base=True)
    assert named(opened) == [f"{one} open" for one in systems]
    assert not opened.complete


def test_lock_of_two_architectures_is_checked_by_plan_build_and_lock(cache: Cache) -> None:
    def call(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, *LLVM, "--arch", "amd64,arm64"])
        assert "Traceback" not in done.stderr
        return done

    made = call("lock", "llvm", "--offline", "--json")
    assert made.exit_code == 0, made.stderr
    assert [(row["stage"], row["arch"]) for row in json.loads(made.stdout)["bases"]] == [
        ("base", "amd64"),
        ("sysroot", "arm64"),
    ]
    assert b"[[sysroot]]" in Path(lockfile.DEFAULT).read_bytes()
    assert call("lock", "llvm", "--check", "--offline").exit_code == 0
    assert call("plan", "llvm", "--locked").exit_code == 0
    alone = CliRunner().invoke(app, ["plan", "llvm", *LLVM, "--locked", "--arch", "arm64"])
    assert alone.exit_code == 0, "one of those that are locked"
    other = CliRunner().invoke(app, ["plan", "llvm", *LLVM, "--locked", "--arch", "s390x"])
    assert other.exit_code == 21
    assert "[lock-differs]" in other.stderr
    assert "debian13" in other.stderr
    path = cache.package_list("sysroot", "debian13", "arm64")
    path.write_text(path.read_text().replace("2.41", "2.42"))
    for words in (
        ("plan", "llvm", "--locked"),
        ("build", "llvm", "--locked", "--offline"),
        ("lock", "llvm", "--check"),
    ):
        moved = call(*words)
        assert moved.exit_code == 21, moved.stderr
        assert "[lock-differs]" in moved.stderr
        assert "debian13" in moved.stderr


@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("stage", ["base", "sysroot"])
def test_changed_packages_stop_the_build(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, waited: bool
) -> None:
    """The build stops whether it made the base or sysroot itself, or waited for another process to make it."""
    request = Request(cache=cache, arch=("arm64",), sources=specs({"llvm": "distro:llvm-toolchain-22"}))
    locked = held(request, "llvm")
    other = Cache(tmp_path / "two")
    if stage == "sysroot":
        finished_base(other, tmp_path / "same")

    def moved() -> Built:
        if stage == "base":
            return finished_base(other, tmp_path / "moved", "9.9")
        return finished_sysroot(other, tmp_path / "moved", "arm64", "9.9")

    @contextlib.contextmanager
    def lock_of(_: Cache, planned: Planned) -> Iterator[None]:
        if planned.name == stage and waited:
            moved()
        yield

    def never(*_: object) -> Built:
        raise AssertionError("nothing is left to build")

    for one in (BaseStage, UnpackedStage):
        monkeypatch.setattr(one, "build", lambda *_: never() if waited else moved())
    monkeypatch.setattr(LlvmStage, "build", never)
    monkeypatch.setattr(pipeline, "stage_lock", lock_of)
    monkeypatch.setattr(pipeline, "_ready", lambda *_: None)
    monkeypatch.setattr(pipeline, "_known", lambda stage, own, dependencies, _: stage.plan(own, dependencies))
    monkeypatch.setattr("toolchain.pipeline.fetching.fetch_for", lambda _, source, **__: source)
    with refused("lock-differs") as caught:
        pipeline.build(dataclasses.replace(request, cache=other, lock=locked), "llvm")
    assert "9.9" in caught.value.why


@pytest.mark.parametrize(
    ("bases", "says"),
    [
        ((base(), base()), "base debian13 (amd64) is listed twice"),
        ((base(stage="sysroot"), base(stage="sysroot")), "sysroot debian13 (amd64) is listed twice"),
        ((base(stage="sysroot", state="image"),), "which only a base can have"),
        ((base(image=""),), "but no image"),
    ],
)
def test_lock_with_invalid_bases_is_refused(bases: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lockfile.parse(lockfile.render(lock(bases=bases)), "the file")
    assert says in str(caught.value)


def test_package_rows_that_do_not_match_their_digest_are_reported() -> None:
    """A build compares only the digest, but a person who reads the file sees the rows."""
    was = base(packages=(dataclasses.replace(base().packages[0], version="9.9"), *base().packages[1:]))
    for rows in (was, base(packages=())):
        found = differences(lock(bases=(rows,)), lock(), whole=False)
        assert found
        assert "apt" in found[0]
    assert differences(lock(request={"stage": "llvm"}), lock(request={"stage": "base"}), whole=False) == []
    (asked,) = differences(lock(request={"gpu": ["a"]}), lock(request={"gpu": ["b"]}), whole=True)
    assert asked.startswith("--gpu: ")
    (asked,) = differences(lock(request={"stage": "llvm"}), lock(request={"stage": "base"}), whole=True)
    assert asked.startswith("the stage: "), "it is an argument"


def test_system_without_a_record_is_unresolved_in_the_lock(cache: Cache, tmp_path: Path) -> None:
    shutil.rmtree(cache.records)
    request = Request(cache=cache, arch=("arm64",))
    rows = [row.planned for row in plan(request, "base")]
    made = locking.make(request, rows, "base", tmp_path / "a lock")
    assert named(made) == ["sysroot debian13 (arm64) unresolved"]
    assert not made.complete
    assert locking.check_file(request, rows, "base", tmp_path / "a lock") == made
    locking.check(dataclasses.replace(request, lock=made), rows)


# Bundles


@pytest.fixture
def place(cache: Cache, tmp_path: Path) -> Place:
    """Return a place for a bundle of the base and both sysroots."""
    return Place(tmp_path, Request(cache=cache, arch=("amd64", "arm64", "s390x"), offline=True), target="base")


def test_bundle_contains_the_base_and_all_sysroots(place: Place) -> None:
    done = place.export()
    owners = [f"toolchain-{one}" for one in ("base-debian13-amd64", "sysroot-debian13-arm64", "sysroot-debian13-s390x")]
    for kind in ("base", "record"):
        assert [one.name for one in done.entries if one.kind == kind] == owners
    brought = place.import_bundle()
    assert all(one.new for one in brought.taken)
    assert brought.command[-2:] == ("--base", "debian13")
    assert ("--arch", "amd64,arm64,s390x") in set(zip(brought.command, brought.command[1:], strict=False))
    there = dataclasses.replace(place.request, cache=Cache(place.root / "other"), lock=brought.lock)
    rows = plan(there, "base")
    assert [(row.planned.name, row.arch) for row in rows] == [
        ("base", "amd64"),
        ("sysroot", "arm64"),
        ("sysroot", "s390x"),
    ]
    assert all(row.built is not None for row in rows)
    assert named(held(there, "base")) == named(done.lock)
    assert [one.image for one in held(there, "base").bases] == [one.image for one in done.lock.bases]
    assert [one.entry.kind for one in place.import_bundle().taken if one.new] == ["lock"]
    assert export(there, "base", LayoutRef(place.root / "again")).published.digest == done.published.digest


def test_bundle_of_a_sysroot_that_is_not_built_is_refused(place: Place) -> None:
    place.request.cache.package_list("sysroot", "debian13", "s390x").unlink()
    with refused("base-not-built", "debian13", "s390x") as caught:
        place.export()
    assert "--arch s390x" in caught.value.fix
    assert not place.out.path.exists()


@pytest.mark.parametrize("kind", ["base", "record"])
def test_bundle_with_swapped_systems_is_refused(place: Place, kind: str) -> None:
    """The lock contains both systems, but in the bundle each has the name of the other."""
    place.export()

    def swap(value: dict[str, Any], _: Layout) -> None:
        one, two = [row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == kind][1:]
        one["digest"], one["size"], two["digest"], two["size"] = two["digest"], two["size"], one["digest"], one["size"]

    place.change(swap)
    with pytest.raises(HostileInputError):
        place.import_bundle()
    assert not (place.root / "other" / "locked").exists()


def test_bundle_for_another_architecture_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.export()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with refused("bundle-other-machine", "debian13", "amd64", "arm64"):
        place.import_bundle()
    assert not (place.root / "other" / "records").exists()


def test_bundle_whose_base_is_called_a_sysroot_is_refused(place: Place) -> None:
    """The record has the base's inputs, so it would be stored under the name of the base's record."""
    place.export()

    def edit(value: dict[str, Any], layout: Layout) -> None:
        for row in value["layers"]:
            notes = row["annotations"]
            notes["toolchain.bundle.name"] = notes["toolchain.bundle.name"].replace("base-debian13", "sysroot-debian13")
            if notes["toolchain.bundle.kind"] == "lock":
                content = layout.blob(row["digest"]).read_bytes().replace(b"[[base]]", b"[[sysroot]]")
                blob = layout.put_bytes(content, row["mediaType"])
                row["digest"], row["size"] = blob.digest, blob.size

    place.change(edit)
    with refused("bundle-other-machine", "debian13", "amd64"):
        place.import_bundle()
    assert not (place.root / "other" / "records").exists()


@pytest.mark.parametrize("partial", ["", "tablegen"])
def test_record_with_another_value_of_partial_is_refused(place: Place, partial: str) -> None:
    place.export()

    def edit(value: dict[str, Any], layout: Layout) -> None:
        row = [row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == "record"][1]
        record = json.loads(layout.blob(row["digest"]).read_bytes()) | {"partial": partial}
        blob = layout.put_bytes(canonical(record), row["mediaType"])
        row["digest"], row["size"] = blob.digest, blob.size

    place.change(edit)
    with refused("bundle-record-mismatch"):
        place.import_bundle()
    assert not (place.root / "other" / "records").exists()


@pytest.mark.parametrize("arch", [("amd64",), ("amd64", "arm64")], ids=",".join)
def test_bundle_of_a_base_contains_the_sysroots_for_a_portable_llvm(
    cache: Cache, tmp_path: Path, arch: tuple[str, ...]
) -> None:
    """Mirrors can have different packages of the old system, and these are part of the input digest of LLVM."""
    for one in arch:
        finished_sysroot(cache, tmp_path / f"old-{one}", one, glibc=DEFAULT_GLIBC)
    place = Place(tmp_path, Request(cache=cache, arch=arch, glibc=DEFAULT_GLIBC, offline=True), target="base")
    done = place.export()
    assert named(done.lock) == [
        "base debian13 (amd64) resolved",
        *(f"sysroot glibc-{DEFAULT_GLIBC} ({one}) resolved" for one in arch),
    ]
    place.import_bundle()
    there = dataclasses.replace(place.request, cache=Cache(place.root / "other"))
    for target in ("base", "sysroot"):
        assert all(row.built is not None for row in plan(there, target)), target


def test_bundle_of_a_base_omits_a_sysroot_for_portable_builds_if_not_built(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note says that the sysroot for portable builds is not built."""
    said: list[str] = []
    monkeypatch.setattr("toolchain.core.console.note", said.append)
    request = Request(cache=cache, glibc=DEFAULT_GLIBC, offline=True)
    alone = Place(tmp_path, request, target="base").export()
    assert named(alone.lock) == ["base debian13 (amd64) resolved"]
    (told,) = said
    assert told.startswith("the sysroot for portable builds is not built")
    both = Place(tmp_path / "both", dataclasses.replace(request, arch=("amd64", "arm64")), target="base")
    with refused("base-not-built"):
        both.export()
