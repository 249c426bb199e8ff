"""Tests that `cache prune` removes nothing outside of a cache of this tool, and nothing that is in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cache_fixtures import OTHER, age, cache, kind, pruned
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.cli.build_options import make_request
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import LockHeldError
from toolchain.core.locks import alone, in_use
from toolchain.oci.layout import Layout
from toolchain.pipeline.cache_usage import DAY, prune, survey
from toolchain.pipeline.plan import find, plan
from toolchain.pipeline.records import image_tag, used_mark
from toolchain.request.model import Request
from toolchain.sources.store import Store

__all__ = ["cache"]  # the fixture


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
