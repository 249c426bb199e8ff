"""Tests of `cache prune`, which removes unused entries and the leftovers of killed commands, and of `cache ls`."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cache_fixtures import OTHER, add_image, age, cache, kind, pruned
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.locks import in_use
from toolchain.core.record import VERSION
from toolchain.engine.resources import disk_bytes
from toolchain.engine.storage import SCRATCH
from toolchain.oci.layout import Layout
from toolchain.pipeline import cache_usage
from toolchain.pipeline.cache_usage import DAY, prune
from toolchain.pipeline.plan import plan
from toolchain.pipeline.records import image_tag
from toolchain.request.model import Request
from toolchain.sources.store import Store

__all__ = ["cache"]  # the fixture

MOUNTS = "work/containers/buildah-cache"


def test_unused_image_is_pruned_with_its_tag_and_unshared_blobs(cache: Cache) -> None:
    layout = Layout(cache.images)
    same = add_image(cache, "llvm-triton-same-debian13", "sha256:" + "ee" * 32, "shared by two")
    shared = add_image(cache, "llvm-triton-sharer-debian13", "sha256:" + "ff" * 32, "shared by two")
    assert same == shared
    age(cache.record("sha256:" + "ff" * 32), 60)
    base = plan(Request(cache=cache), "base")[0].built
    assert base is not None
    before = set((cache.images / "blobs" / "sha256").iterdir())
    going = pruned(cache, dry=True)
    assert {item.name.split()[0] for item in going} == {"llvm-triton-old-debian13", "llvm-triton-sharer-debian13"}
    assert set((cache.images / "blobs" / "sha256").iterdir()) == before, "a dry run removes nothing"
    assert [item.name for item in pruned(cache)] == [item.name for item in going]
    gone = before - set((cache.images / "blobs" / "sha256").iterdir())
    assert len(gone) == 3, "manifest, config and layer of the old one; what another image has too stays"
    assert layout.has(shared)
    assert not cache.record(OTHER).exists()
    assert set(layout.refs()) == {
        image_tag("llvm-triton-same-debian13", "sha256:" + "ee" * 32),
        image_tag(base.planned.image, base.input_digest),
    }
    assert plan(Request(cache=cache), "base")[0].built is not None
    assert pruned(cache) == []


def test_tags_of_all_pruned_images_are_removed_with_one_rewrite(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        add_image(cache, f"llvm-triton-{number}-debian13", f"sha256:{number:064x}", f"{number}")
        age(cache.record(f"sha256:{number:064x}"), 60)
    written: list[Path] = []
    monkeypatch.setattr("toolchain.oci.layout.write_atomically", lambda path, *_, **__: written.append(path))
    assert len(pruned(cache)) == 4
    assert written == [cache.images / "index.json"]


def test_image_whose_tag_cannot_be_removed_is_reported(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("toolchain.oci.layout.write_atomically", full)
    done = prune(cache, unused_for=30 * DAY)
    assert ([*done.gone], [why for _, why in done.failed]) == ([], [os.strerror(errno.ENOSPC)])


def test_unused_sources_are_pruned(cache: Cache) -> None:
    store = Store(cache.store)
    store.partial.mkdir(parents=True)
    for name in ("kept.whl", "gone.whl"):
        (store.partial / name).write_bytes(name.encode())
        age(store.add_file(store.partial / name, sha256_bytes(name.encode())).parent, 60)

    def unpack(folder: Path) -> None:
        (folder / "text").write_text("x")

    trees = [store.tree(digest, unpack) for digest in (OTHER, sha256_bytes(b"2"))]
    for tree in trees:
        age(tree.with_name(f"{tree.name}.json"), 60)
    assert store.file(sha256_bytes(b"kept.whl")) is not None
    store.tree(OTHER, lambda _: None)
    assert {item.name for item in pruned(cache) if kind(cache, item) == "source"} == {
        "gone.whl",
        trees[1].name[:24],
    }
    assert store.file(sha256_bytes(b"gone.whl")) is None
    assert trees[0].is_dir()
    assert [path.name for path in trees[1].parent.glob(f"{trees[1].name}*")] == []
    assert list((cache.store / "files").iterdir()) == [cache.store / "files" / sha256_bytes(b"kept.whl")[7:]]


def test_old_work_folders_and_compiler_caches_are_pruned(cache: Cache) -> None:
    names = ("work/llvm-1", f"{MOUNTS}/toolchain-llvm-tree-1", f"{MOUNTS}/toolchain-ccache-01",
             "work/campaign-1", "reproduce/1", "work/llvm-2")  # fmt: skip
    for name in names:
        folder = cache.root / name
        folder.mkdir(parents=True)
        (folder / "file").write_text("x" * 5000)
        age(folder / "file", 60)
        age(folder, 60)
    cache.compiler_caches.mkdir()
    (cache.compiler_caches / "01.json").write_text('{"sources": "an LLVM"}')
    age(cache.compiler_caches / "01.json", 60)
    cache.logs.mkdir(exist_ok=True)
    (cache.logs / "old.log").write_text("x")
    (cache.logs / "new.log").write_text("x")
    age(cache.logs / "old.log", 60)
    # A campaign writes to its ledger, which does not change the mtime of its folder.
    (cache.work / "campaign-1" / "file").write_text("new")
    (cache.work / "llvm-2" / "file").write_text("new")
    gone = {item.name for item in pruned(cache) if not item.tag}
    assert gone == {"llvm-1", "toolchain-llvm-tree-1", "reproduction 1", "old.log", "an LLVM 01"}
    assert [(cache.root / name).is_dir() for name in names] == [False, False, False, True, False, True]
    assert not list(cache.compiler_caches.iterdir())
    assert [path.name for path in cache.logs.iterdir()] == ["new.log"]
    assert not list(cache.root.rglob("*.deleted"))


def test_unfinished_option_prunes_young_work_folders(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (f"{MOUNTS}/toolchain-llvm-tree-1", "work/campaign-1", f"{MOUNTS}/toolchain-ccache-01")
    cache.compiler_caches.mkdir()
    (cache.compiler_caches / "01.json").write_text('{"sources": ""}')
    for name in names:
        (cache.root / name).mkdir(parents=True)
        (cache.root / name / "file").write_text("x" * 5000)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(cache.root))
    run = CliRunner().invoke
    assert run(app, ["cache", "prune", "--unused-for", "365"]).exit_code == 0
    assert all((cache.root / name).is_dir() for name in names)
    dry = json.loads(run(app, ["cache", "prune", "--unused-for", "365", "--unfinished", "--dry-run", "--json"]).stdout)
    assert {row["name"] for row in dry["items"]} == {"toolchain-llvm-tree-1", "campaign-1"}
    assert run(app, ["cache", "prune", "--unused-for", "365", "--unfinished"]).exit_code == 0
    assert [(cache.root / name).is_dir() for name in names] == [False, False, True]
    assert cache.record(OTHER).exists()


def test_damaged_record_or_image_does_not_stop_prune(cache: Cache) -> None:
    (cache.records / ("9" * 64 + ".json")).write_text("{")
    layout = Layout(cache.images)
    layout.blob(layout.resolve(image_tag("llvm-triton-old-debian13", OTHER)).digest).unlink()
    (cache.records / ("8" * 64 + ".json")).write_text('{"image": "x", "input_digest": 5, "manifest": 5}')
    (cache.logs).mkdir(exist_ok=True)
    (cache.logs / "a link").symlink_to("nowhere")
    gone = pruned(cache)
    assert {item.name.split()[0] for item in gone} == {"llvm-triton-old-debian13", "888888888888", "999999999999"}
    assert not (cache.records / ("8" * 64 + ".json")).exists()


def test_image_with_a_record_of_another_format_is_pruned_at_once(cache: Cache) -> None:
    (row,) = plan(Request(cache=cache), "base")
    path = cache.record(str(row.planned.input_digest))
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "version": VERSION - 1}))
    tag = image_tag(row.planned.image, str(row.planned.input_digest))
    assert [item.tag for item in pruned(cache) if item.tag != image_tag("llvm-triton-old-debian13", OTHER)] == [tag]
    assert not path.exists()
    assert tag not in Layout(cache.images).refs()


def test_leftovers_of_a_killed_prune_are_removed(cache: Cache) -> None:
    store = Store(cache.store)
    tree = store.tree(OTHER, lambda folder: (folder / "text").touch())
    half = tree.with_name(f".{tree.name}{'.deleted'}")
    half.mkdir()
    (half / "text").touch()
    left = cache.mounts / "buildah-cache" / ".toolchain-llvm-tree-1.99-0.deleted"
    left.mkdir(parents=True)
    assert {item.paths[-1] for item in pruned(cache) if item.paths[-1].suffix == ".deleted"} == {half, left}
    assert (tree.is_dir(), half.exists(), left.exists()) == (True, False, False)
    age(tree.with_name(f"{tree.name}.json"), 60)
    assert [kind(cache, item) for item in pruned(cache)] == ["source"]


def test_leftovers_of_a_killed_command_are_pruned_at_once(cache: Cache) -> None:
    """For example, a killed `publish` leaves its evidence, which no later command continues."""
    (cache.store / "partial").mkdir(parents=True)
    cache.work.mkdir(exist_ok=True)
    left = [
        Path(tempfile.mkdtemp(dir=place, prefix=f"{kind}-"))
        for place, kinds in ((cache.work, "archive bundle evidence reuse"), (cache.store / "partial", "git pip"))
        for kind in kinds.split()
    ]
    for folder in left:
        (folder / "layout").mkdir()
        (folder / "layout" / "blob").write_text("x")
    for name in ("pack-0123456789ab", "pack-0123456789ab.tar"):
        left.append(cache.work / name)
        left[-1].write_text("x")
    left += [cache.store / "trees" / f".git-{'a' * 40}.partial", cache.store / "files" / f".{'a' * 64}.partial"]
    for folder in left[-2:]:
        folder.mkdir(parents=True)
        (folder / "half").write_text("x")
    stays = [
        cache.work / name for name in ("llvm-1", "bundle-import-0123abcd", "evidence-of-mine", "campaign-12345678")
    ]
    for folder in stays:
        folder.mkdir()
    download = cache.store / "partial" / ("a" * 64)
    download.write_text("x")
    assert {item.paths[-1] for item in pruned(cache, dry=True) if item.paths} >= set(left)
    assert all(path.exists() for path in left)
    pruned(cache)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*stays, download)), "a later invocation goes on with these"


def test_prune_recognises_the_prefix_of_every_temporary_folder() -> None:
    """Otherwise, the folder of a killed command would be kept until it is old."""
    names = {
        name
        for path in Path(cache_usage.__file__).parents[1].rglob("*.py")
        for where in (r'dir=[^,)]+, prefix="([^"]+)"', r'prefix="([^"]+)", dir=')
        for name in re.findall(where, path.read_text())
    }
    assert names >= {"archive-", "bundle-", "evidence-", "git-", "pip-", "reuse-"}
    names -= {"kernels-", "read-back-"}  # these are in the folder of a stage or of a copy, which is removed as a whole
    assert [name for name in sorted(names) if not SCRATCH.fullmatch(f"{name}a1b2c3_d")] == []


def test_prune_reports_failures_and_removes_the_rest(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llvm-1", "llvm-2"):
        (cache.work / name).mkdir(parents=True)
        age(cache.work / name, 60)
    monkeypatch.setattr(
        "toolchain.engine.storage.remove_tree", lambda path: None if "llvm-1" in path.name else shutil.rmtree(path)
    )
    done = prune(cache, unused_for=30 * DAY)
    assert [name for name, _ in done.failed] == ["llvm-1"]
    assert "llvm-2" in {item.name for item in done.gone}
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(cache.root))
    done_ = CliRunner().invoke(app, ["cache", "prune", "--json"])
    assert done_.exit_code == 3
    assert [row["name"] for row in json.loads(done_.stdout)["failed"]]


def test_size_of_a_linked_cache_is_that_of_its_target(cache: Cache, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cache.root)
    done = CliRunner().invoke(app, ["cache", "ls", "--cache", str(link), "--json"])
    assert json.loads(done.stdout) == {"cache": str(link), "bytes": disk_bytes(cache.root)}


def test_cache_verbs_list_and_prune_unless_the_cache_is_in_use(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(cache.root))
    monkeypatch.setenv("COLUMNS", "200")
    run = CliRunner().invoke
    listed = json.loads(run(app, ["cache", "ls", "--json"]).stdout)
    assert listed == {"cache": str(cache.root), "bytes": disk_bytes(cache.root)}
    assert str(cache.root) in run(app, ["cache", "ls"]).stdout
    dry = json.loads(run(app, ["cache", "prune", "--dry-run", "--json"]).stdout)
    assert [row["name"].split()[0] for row in dry["items"]] == ["llvm-triton-old-debian13"]
    with in_use(cache):
        held = run(app, ["cache", "prune"])
        assert (held.exit_code, f"pid {os.getpid()}" in held.stderr) == (14, True)
        done = run(app, ["plan", "base"])
        assert done.exit_code == 0, done.stderr
    assert run(app, ["cache", "prune"]).exit_code == 0
    assert run(app, ["cache", "prune", "--unused-for", "0"]).exit_code == 2
    assert json.loads(run(app, ["cache", "prune", "--json"]).stdout)["items"] == []
    nowhere = run(app, ["cache", "prune", "--cache", str(cache.root / "nowhere"), "--json"])
    assert (nowhere.exit_code, json.loads(nowhere.stdout)["items"]) == (0, [])
    assert not (cache.root / "nowhere").exists()
