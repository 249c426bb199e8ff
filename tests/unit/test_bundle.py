"""Bundles: export from one cache and import into another."""

from __future__ import annotations

import dataclasses
import glob
import json
import shlex
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from tests.at_once import failures
from tests.bundle_fixtures import Place, full_place, nothing_counts
from tests.fake_registry import fake_registry
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.bundle.export import TYPE, export
from toolchain.bundle.importer import import_bundle
from toolchain.cli.app import app
from toolchain.cli.streams import Terminated
from toolchain.core.cache import Cache
from toolchain.core.errors import RegistryError
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.pipeline import lockfile
from toolchain.pipeline.locking import locked_source
from toolchain.pipeline.plan import plan
from toolchain.sources.resolve import fetch_source, locate


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return full_place(tmp_path, monkeypatch)


def local_archive(place: Place, name: str) -> None:
    """Take LLVM from a file of the user, with the content of the archive that the store already has."""
    (stored,) = (place.request.cache.store / "files").glob("*/an archive.tar")
    archive = shutil.copy(stored, place.root / name)
    place.request = dataclasses.replace(
        place.request, sources={**place.request.sources, **specs({"llvm": str(archive)})}
    )


def test_import_in_another_cache_restores_exported_content(place: Place) -> None:
    done = place.export()
    kinds = [one.kind for one in done.entries]
    assert kinds == ["lock", "base", "record", "patch", *["file"] * 8, "tree", *["blob"] * 3]
    brought = place.import_bundle()
    assert [one.new for one in brought.taken] == [True] * len(kinds)
    there = Cache(place.root / "other")
    lock = lockfile.read(there.root / "toolchain.lock")
    assert lock.complete
    assert lockfile.render(lock) == lockfile.render(done.lock)

    # The request is made from the printed command.
    words = list(brought.command)
    path = place.root / "other" / "toolchain.lock"
    assert words[:6] == ["toolchain", "build", "triton", "--offline", "--lock-file", str(path)]
    triton = next(word for word in words if "triton=stored:" in word)
    patch = next(word for word in words if "triton=/" in word).strip("'")
    request = dataclasses.replace(
        place.request,
        cache=there,
        lock=lock,
        sources={**place.request.sources, **specs({"triton": triton.partition("=")[2]})},
        patches={"triton": (Path(patch.partition("=")[2]),)},
    )
    shutil.rmtree(place.root / "secret place")
    rows = plan(request, "triton")
    before = {"base": rows[0].planned.input_digest}
    assert before["base"] is not None
    assert rows[0].built is not None
    assert rows[0].built.manifest == lock.bases[0].image
    assert all(row.planned.input_digest for row in rows)
    for row in rows:
        for source in row.planned.sources:
            got = fetch_source(source, cache=there, offline=True, patches=request.patches.get(source.name, ()))
            assert got.path is not None
            assert got.path.is_relative_to(there.root)
            if source.name == "triton":
                assert (got.path / "setup.py").read_text() == "fixed\n"
                assert (got.path / "python" / "link").readlink() == Path("tool")
                assert (got.path / "python" / "tool").stat().st_mode & 0o111
                assert (got.path / "empty").is_dir()


def test_archive_that_the_store_has_under_another_name_is_imported(place: Place) -> None:
    local_archive(place, "llvm.tar")
    place.export()
    brought = place.import_bundle()
    assert [row.entry.title for row in brought.taken if row.entry.name == "llvm"] == ["llvm.tar"]


def test_imported_archive_has_the_locked_name_though_the_store_has_another(place: Place) -> None:
    local_archive(place, "llvm.tar")
    place.export()
    there = Cache(place.root / "other")
    (stored,) = (place.request.cache.store / "files").glob("*/an archive.tar")
    (there.store / "files").mkdir(parents=True)
    shutil.copytree(stored.parent, there.store / "files" / stored.parent.name)
    row = place.import_bundle().lock.source("llvm")
    assert row is not None
    request = dataclasses.replace(place.request, cache=there)
    assert locked_source(request, locate("llvm", row.spec, cache=there)).file == row.file == "llvm.tar"


def test_archive_without_latin_letters_in_its_name_is_unpacked_after_import(place: Place) -> None:
    local_archive(place, "архив.tar")
    place.export()
    brought = place.import_bundle()
    there, row = Cache(place.root / "other"), brought.lock.source("llvm")
    assert row is not None
    got = fetch_source(locate("llvm", row.spec, cache=there), cache=there, offline=True)
    assert (row.file, got.path.is_dir()) == ("file.tar", True)


@pytest.mark.parametrize("name", ["Setup.py", "Icon\r", "two\nlines", "not UTF-8 \udcff", "back\\slash"])
def test_checkout_with_unusual_names_is_imported(place: Place, name: str) -> None:
    """A build accepts these names in a folder of the user, although an archive from elsewhere must not have them."""
    (place.root / "secret place" / "triton" / name).write_text("x")
    place.export()
    place.import_bundle()
    assert list((place.root / "other" / "store" / "trees").glob(f"*/{glob.escape(name)}"))


def test_import_to_unwritable_lock_is_refused_before_it_begins(place: Place) -> None:
    place.export()
    (place.root / "file").touch()
    (place.root / "link").symlink_to(place.root.parent / "away.lock")
    for path, id in (("file/toolchain.lock", "output-unwritable"), ("link", "output-is-link")):
        with refused(id):
            import_bundle(place.out, Cache(place.root / "other"), place.root / path)
    nothing_counts(place)
    assert not (place.root / "other" / "store").exists()


def test_inspect_and_verify_find_no_image_in_bundle(place: Place) -> None:
    done = place.export()
    row = json.loads(CliRunner().invoke(app, ["inspect", str(place.out), "--use", "--json"]).stdout)["images"][0]
    assert (row["digest"], row["images"], row["use"]["kind"]) == (done.published.digest, [], "unknown")
    verified = CliRunner().invoke(app, ["verify", str(place.out), "--json"])
    assert verified.exit_code == 17
    assert len(json.loads(verified.stdout)["images"][0]["problems"]) == 1
    assert "bundle import" in verified.stderr, "the verb that verifies a bundle"


def test_import_command_has_gpus_and_no_selection_of_kernels(place: Place) -> None:
    place.request = dataclasses.replace(place.request, gpus=("gfx1100", "gfx942"), select="attn fwd*", limit=3)
    place.export()
    words = [shlex.split(word)[0] for word in place.import_bundle().command]
    given = [tuple(words[at : at + 2]) for at in range(len(words) - 1)]
    path = place.root / "other" / "toolchain.lock"
    # The command omits --select and --limit, because they do not affect the stage and `build` does not take them.
    assert words[:3] == ["toolchain", "build", "triton"]
    assert {("--gpu", "gfx1100,gfx942"), ("--lock-file", str(path))} <= set(given)
    assert not {"--select", "--limit"} & set(words)
    lock = lockfile.read(place.root / "other" / "toolchain.lock")
    assert (lock.request["gpu"], lock.request["limit"]) == (["gfx1100", "gfx942"], 3)


def test_repeated_export_is_identical_and_pushes_nothing(place: Place) -> None:
    first = place.export()
    assert first.published.pushed_bytes > 0
    again = place.export()
    assert again.published.pushed_bytes == 0
    elsewhere = export(place.request, "triton", LayoutRef(place.root / "elsewhere", "x"))
    assert first.published.digest == again.published.digest == elsewhere.published.digest
    place.import_bundle()
    second = place.import_bundle()
    assert [one.entry.kind for one in second.taken if one.new] == ["lock"]
    assert not list(place.request.cache.work.glob("bundle*"))
    assert not list((place.root / "other" / "work").glob("bundle*"))


def test_bundle_contains_no_path_of_host(place: Place) -> None:
    place.export()
    layout = Layout(place.out.path)
    value = layout.read_json(layout.resolve("bundle-triton"))
    assert value["artifactType"] == TYPE
    text = json.dumps(value) + place.content("lock").decode() + place.content("record").decode()
    assert "secret" not in text
    assert str(place.root) not in text


def test_export_to_registry_pushes_tag_last(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(place.root / "no login"))
    monkeypatch.setattr("toolchain.core.web.LONGEST_BACKOFF", 0.0)
    with fake_registry() as registry:
        ref = RegistryRef(registry.host, "some/ns/bundle", "v1")
        done = export(place.request, "triton", ref)
        puts = [line for line in registry.seen if line.startswith("PUT ")]
        assert len(puts) > 10
        assert [put.endswith("/manifests/v1") for put in puts] == [False] * (len(puts) - 1) + [True]
        brought = place.import_bundle(ref=ref)
        assert brought.digest == done.published.digest
        assert all(one.new for one in brought.taken)
        registry.blobs.clear()
        registry.manifests.clear()
        registry.statuses["^PUT .*/manifests/sha256:"] = [400] * 10
        with pytest.raises(RegistryError):
            export(place.request, "triton", ref)
        assert registry.blobs
        assert registry.manifests == {}


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Terminated(signal.SIGTERM)], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted_import_keeps_received_blobs(
    place: Place, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    place.export()

    def stopped(*_: object, **__: object) -> NoReturn:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr("toolchain.bundle.importer.unpack_tar", stopped)
        with pytest.raises(type(stop)):
            place.import_bundle()
    (folder,) = Cache(place.root / "other").work.glob("bundle-import-*")
    assert len(list((folder / "blobs" / "sha256").iterdir())) > 3
    place.import_bundle()
    assert not folder.exists()


def test_imported_base_is_exported_again_without_builder(place: Place) -> None:
    first = json.loads((place.export(), place.content("record"))[1])
    place.import_bundle()
    there = Cache(place.root / "other")
    place.request = dataclasses.replace(place.request, cache=there)
    shutil.copytree(place.root / 'cache "one"' / "store", there.root / "store", dirs_exist_ok=True)
    place.out = LayoutRef(place.root / "second")
    place.export()
    assert json.loads(place.content("record")) == first
    assert not first["tool"]


def test_base_that_was_not_built_here_is_not_exported(place: Place) -> None:
    (path,) = place.request.cache.records.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"taken_from": {"ref": "registry.test/x", "key": "k"}}))
    with refused("base-not-made-here"):
        place.export()
    path.unlink()
    with refused("base-not-built"):
        place.export()
    assert not place.out.path.exists()


# Content that is in the cache already


def test_existing_lock_decides_whether_bundle_is_imported(place: Place) -> None:
    done = place.export()
    there = place.root / "other"
    there.mkdir()
    own = there / "toolchain.lock"
    wheel = next(one for one in done.lock.sources if one.wheel)
    rest = tuple(one for one in done.lock.sources if one is not wheel)
    for sources in (rest, (*rest, dataclasses.replace(wheel, digest="sha256:" + "0" * 64))):
        lockfile.write(dataclasses.replace(done.lock, sources=sources), own)
        before = own.read_bytes()
        with refused("lock-differs", wheel.name):
            place.import_bundle()
        assert own.read_bytes() == before
        assert not (there / "store" / "files").exists()
    # A lock with an open base and a further source allows the import, and is not changed.
    bases = (dataclasses.replace(done.lock.bases[0], state="open", image="", packages_digest="", packages=()),)
    more = (*done.lock.sources, dataclasses.replace(wheel, name="more"))
    lockfile.write(dataclasses.replace(done.lock, sources=more, bases=bases), own)
    before = own.read_bytes()
    place.import_bundle()
    assert own.read_bytes() == before


def test_import_replaces_damaged_content(place: Place) -> None:
    place.export()
    place.import_bundle()
    there = place.root / "other"
    harmed = [next((there / "store" / "files").rglob("*.whl")), next((there / "store" / "trees").rglob("setup.py"))]
    harmed.append(max((there / "images" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size))
    before = [path.read_bytes() for path in harmed]
    for path in harmed:
        path.write_bytes(b"harmed")
    again = place.import_bundle()
    assert sorted(one.entry.kind for one in again.taken if one.new) == ["blob", "file", "lock", "tree"]
    assert [path.read_bytes() for path in harmed] == before


def test_simultaneous_imports_succeed(place: Place) -> None:
    place.export()
    assert failures(place.import_bundle) == []
