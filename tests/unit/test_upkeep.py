"""Tests of the cache, and of `cache prune`, which removes unused entries and the leftovers of killed commands."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, record
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.cli.build_options import make_request
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import LockHeldError
from toolchain.core.locks import alone, in_use
from toolchain.core.record import VERSION
from toolchain.engine.resources import disk_bytes
from toolchain.engine.storage import SCRATCH
from toolchain.oci.image import ImageSpec, add_layer, write_image
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.pipeline import cache_usage
from toolchain.pipeline.cache_usage import DAY, Item, prune, survey
from toolchain.pipeline.plan import find, plan
from toolchain.pipeline.records import image_tag, used_mark, write_record
from toolchain.request.model import Request
from toolchain.sources.store import Store

OTHER = "sha256:" + "cd" * 32
MOUNTS = "work/containers/buildah-cache"


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def pruned(cache: Cache, *, dry: bool = False, later: float = 0) -> list[Item]:
    """Prune the entries that were not used for 30 days, and return them; nothing may fail."""
    done = prune(cache, unused_for=30 * DAY, now=time.time() + later * DAY, dry=dry)
    assert done.failed == ()
    return list(done.gone)


def kind(cache: Cache, item: Item) -> str:
    """Return `image` for an image, `source` for an entry of the store, and `other` for the rest."""
    if item.tag:
        return "image"
    return "source" if cache.store in item.paths[-1].parents else "other"


def add_image(cache: Cache, name: str, digest: str, content: str) -> str:
    """Add a finished image of one layer, and return the digest of the layer's blob."""
    tree = cache.root / "made" / name
    tree.mkdir(parents=True)
    (tree / "file").write_text(content)
    layout = Layout(cache.images).ensure()
    blob = compress(write_layer(tree, cache.root / "made" / "raw.tar"), cache.root / "made" / "blob")
    layer = add_layer(layout, blob)
    manifest = write_image(layout, ImageSpec(arch="amd64", layers=(layer,)))
    layout.tag(manifest, image_tag(name, digest))
    write_record(cache, record(image=name, input_digest=digest, manifest=manifest.digest, inputs={}))
    for path in (cache.images / "blobs" / "sha256").iterdir():
        age(path, 90)
    return layer.descriptor.digest


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache with a base that was used today, and an image that was not used for two months."""
    cache = Cache(tmp_path / "a cache")
    cache.make()
    finished_base(cache, tmp_path / "base")
    add_image(cache, "llvm-triton-old-debian13", OTHER, "old")
    age(cache.record(OTHER), 60)
    return cache


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


def test_image_that_a_build_found_is_not_pruned(cache: Cache) -> None:
    (row,) = plan(Request(cache=cache), "base")
    record = cache.record(str(row.planned.input_digest))
    age(record, 60)
    age(used_mark(record), 60)
    assert len(pruned(cache, dry=True)) == 2
    assert find(cache, row.planned) is not None
    assert [item.name.split()[0] for item in pruned(cache)] == ["llvm-triton-old-debian13"]
    assert not list(cache.records.glob("cd*"))
    assert find(cache, row.planned) is not None


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


def test_untagged_image_is_kept_by_its_record(cache: Cache) -> None:
    (row,) = plan(Request(cache=cache), "base")
    (cache.images / "index.json").unlink()
    Layout(cache.images).ensure()
    for path in (cache.images / "blobs" / "sha256").iterdir():
        age(path, 2)
    pruned(cache)
    assert find(cache, row.planned) is not None


def test_rebuilt_image_has_the_age_of_the_rebuild(cache: Cache) -> None:
    used_mark(cache.record(OTHER)).touch()
    age(used_mark(cache.record(OTHER)), 60)
    cache.record(OTHER).touch()
    assert pruned(cache) == []


def test_sources_and_wheels_of_a_kept_image_are_kept(cache: Cache) -> None:
    """The sources and patches are needed to reproduce the image, and `--archive` writes the wheels."""
    store = Store(cache.store)
    store.partial.mkdir(parents=True)
    files = {"x.whl": b"wheel", "x.patch": b"patch"}
    for name, content in files.items():
        (store.partial / name).write_bytes(content)
    homes = [store.add_file(store.partial / name, sha256_bytes(content)).parent for name, content in files.items()]
    tree = store.tree(sha256_bytes(b"source"), lambda folder: (folder / "text").touch())
    value = json.loads(cache.record(OTHER).read_text())
    value["inputs"] = {
        "sources": [{"name": "llvm", "digest": sha256_bytes(b"source"), "patches": [sha256_bytes(b"patch")]}]
    }
    value["facts"] = {"wheels": [{"file": "x.whl", "digest": sha256_bytes(b"wheel")}]}
    cache.record(OTHER).write_text(json.dumps(value))
    for path in (*homes, tree.with_name(f"{tree.name}.json")):
        age(path, 90)
    assert pruned(cache) == []
    assert any(item.name.startswith("llvm sha256-") for item in survey(cache))
    age(cache.record(OTHER), 60)
    assert {kind(cache, item) for item in pruned(cache)} == {"image", "source"}
    assert not any(path.exists() for path in (*homes, tree))


def test_tree_and_patch_and_tag_of_a_bundle_are_kept_after_use(cache: Cache, tmp_path: Path) -> None:
    store = Store(cache.store)
    store.partial.mkdir(parents=True)
    (store.partial / "p.patch").write_bytes(b"patch")
    patch = store.add_file(store.partial / "p.patch", sha256_bytes(b"patch"))
    tree = store.tree(OTHER, lambda folder: (folder / "text").touch())
    layout = Layout(cache.images)
    layout.tag(layout.resolve(image_tag("llvm-triton-old-debian13", OTHER)), "some-base.bundle")
    age(patch.parent, 60)
    age(tree.with_name(f"{tree.name}.json"), 60)
    assert store.stored_tree(OTHER) == tree
    make_request(cache=cache.root, patch=[f"llvm={patch}"])
    assert [kind(cache, item) for item in pruned(cache)] == ["image"]
    assert {kind(cache, item) for item in pruned(cache, later=40)} == {"image", "source"}
    assert "some-base.bundle" in layout.refs()
    assert layout.has(layout.resolve("some-base.bundle").digest)


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
    left.append(cache.work / "pack-0123456789ab")
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


@pytest.mark.parametrize("named", ["nothing", "CACHEDIR.TAG", "images/oci-layout", "toolchain-cache"])
def test_folder_without_a_valid_mark_is_not_pruned(tmp_path: Path, named: str) -> None:
    """This also holds for another program's cache, and after `Cache.make` was called for the folder."""
    thesis = tmp_path / "work" / "thesis" / "t.tex"
    thesis.parent.mkdir(parents=True)
    thesis.touch()
    (tmp_path / named).parent.mkdir(exist_ok=True)
    (tmp_path / named).write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    age(thesis, 60)
    age(thesis.parent, 60)
    cache = Cache(tmp_path)
    said = CliRunner().invoke(app, ["cache", "prune", "--cache", str(tmp_path)])
    assert (said.exit_code, cache.locks.exists()) == (3, False)
    for dry in (True, False):
        with refused("not-our-cache"):
            prune(cache, unused_for=DAY, dry=dry, unfinished=True)
        cache.make()
        assert not cache.is_ours
    assert thesis.exists()


def test_new_folder_is_marked_as_a_cache_by_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "locks" / "locks").mkdir(parents=True)
    (tmp_path / "lists" / "apt").mkdir(parents=True)
    for name in ("new", "empty", "locks", "lists"):
        cache = Cache(tmp_path / name)
        cache.make()
        assert cache.is_ours
        assert (cache.root / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    (tmp_path / "new" / "toolchain-cache").unlink()
    (tmp_path / "new" / "toolchain-cache").symlink_to(tmp_path / "empty" / "toolchain-cache")
    assert not Cache(tmp_path / "new").is_ours


def test_prune_follows_no_link_out_of_the_cache(cache: Cache, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "files" / "x").mkdir(parents=True)
    (outside / "files" / "x" / "mine").touch()
    cache.store.symlink_to(outside)
    cache.work.mkdir(exist_ok=True)
    (cache.work / "link").symlink_to(outside)
    for path in (outside / "files" / "x" / "mine", outside / "files" / "x"):
        age(path, 60)
    assert {item.name.split()[0] for item in pruned(cache, later=60)} >= {"link", "llvm-triton-old-debian13"}
    assert (outside / "files" / "x" / "mine").exists()


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


def test_young_unreferenced_blob_is_kept(cache: Cache) -> None:
    """A build in an empty folder begins without the lock, so a young blob may belong to it."""
    layout = Layout(cache.images)
    blob = layout.put_bytes(b"{}", "application/json")
    assert prune(cache, unused_for=DAY).failed == ()
    assert layout.has(blob.digest)
    age(layout.blob(blob.digest), 2)
    assert prune(cache, unused_for=DAY).failed == ()
    assert not layout.has(blob.digest)


def held(cache: Cache) -> bool:
    """Return whether this process prevents an exclusive lock on the cache."""
    try:
        with alone(cache):
            return False
    except LockHeldError as error:
        return f"by pid {os.getpid()}" in error.what


def test_exclusive_lock_fails_at_once_and_shared_lock_waits(cache: Cache) -> None:
    with in_use(cache), in_use(cache):
        assert held(cache)
    assert not held(cache)
    code = (
        "import sys; from pathlib import Path; from toolchain.core.cache import Cache\n"
        "from toolchain.core.locks import in_use\n"
        "with in_use(Cache(Path(sys.argv[1]))): print('in')"
    )
    with alone(cache):
        child = subprocess.Popen(
            [sys.executable, "-c", code, cache.root], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert child.stderr is not None
        assert f"pid {os.getpid()}" in child.stderr.readline()
    assert child.communicate(timeout=300)[0] == "in\n"


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
