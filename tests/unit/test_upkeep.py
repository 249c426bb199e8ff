"""upkeep: what the cache holds, and that only what nobody used for long goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base
from toolchain.cli.app import app
from toolchain.digest import sha256_bytes
from toolchain.errors import LockHeldError
from toolchain.oci.image import ImageSpec, add_layer, write_image
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.pipeline import find, plan
from toolchain.settings import EPOCH, Cache, Request
from toolchain.shop import image_tag, record_path, used_mark
from toolchain.sources.lock import alone, in_use
from toolchain.sources.store import Store
from toolchain.upkeep import DAY, prune, survey

OTHER = "sha256:" + "cd" * 32


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def add_image(cache: Cache, name: str, digest: str, content: str) -> str:
    """A finished image of one layer; the digest of that layer's blob."""
    tree = cache.root / "made" / name
    tree.mkdir(parents=True)
    (tree / "file").write_text(content)
    layout = Layout(cache.images).ensure()
    blob = compress(write_layer(tree, cache.root / "made" / "raw.tar", epoch=EPOCH), cache.root / "made" / "blob")
    layer = add_layer(layout, blob)
    manifest = write_image(layout, ImageSpec(arch="amd64", layers=(layer,), epoch=EPOCH))
    layout.tag(manifest, image_tag(name, digest))
    record = {"image": name, "input_digest": digest, "manifest": manifest.digest, "layers": [], "facts": {}}
    record_path(cache, digest).write_text(json.dumps(record))
    for path in (cache.images / "blobs" / "sha256").iterdir():
        age(path, 90)
    return layer.descriptor.digest


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A base that was used today, and an image that nobody wanted for two months."""
    cache = Cache(tmp_path / "a cache")
    finished_base(cache, tmp_path / "base")
    add_image(cache, "llvm-triton-old-debian13", OTHER, "old")
    age(record_path(cache, OTHER), 60)
    return cache


def test_an_image_that_nobody_used_goes_with_its_blobs_and_name(cache: Cache) -> None:
    layout = Layout(cache.images)
    same = add_image(cache, "llvm-triton-same-debian13", "sha256:" + "ee" * 32, "shared by two")
    shared = add_image(cache, "llvm-triton-sharer-debian13", "sha256:" + "ff" * 32, "shared by two")
    assert same == shared
    age(record_path(cache, "sha256:" + "ff" * 32), 60)
    base = plan(Request(cache=cache), "base")[0].built
    assert base is not None
    before = set((cache.images / "blobs" / "sha256").iterdir())
    going = prune(cache, unused_for=30 * DAY, dry=True)
    assert {one.name.split()[0] for one in going} == {"llvm-triton-old-debian13", "llvm-triton-sharer-debian13"}
    assert set((cache.images / "blobs" / "sha256").iterdir()) == before, "a dry run removes nothing"
    assert [one.name for one in prune(cache, unused_for=30 * DAY)] == [one.name for one in going]
    gone = before - set((cache.images / "blobs" / "sha256").iterdir())
    assert len(gone) == 3, "manifest, config and layer of the old one; what another image has too stays"
    assert layout.has(shared)
    assert not record_path(cache, OTHER).exists()
    assert set(layout.refs()) == {
        image_tag("llvm-triton-same-debian13", "sha256:" + "ee" * 32),
        image_tag(base.planned.image, base.input_digest),
    }
    assert plan(Request(cache=cache), "base")[0].built is not None
    assert prune(cache, unused_for=30 * DAY) == []


def test_what_a_build_asked_for_is_used(cache: Cache) -> None:
    (row,) = plan(Request(cache=cache), "base")
    record = record_path(cache, str(row.planned.input_digest))
    age(record, 60)
    age(used_mark(record), 60)
    assert len(prune(cache, unused_for=30 * DAY, dry=True)) == 2
    assert find(cache, row.planned) is not None
    assert [one.name.split()[0] for one in prune(cache, unused_for=30 * DAY)] == ["llvm-triton-old-debian13"]
    assert not list(cache.records.glob("cd*"))
    assert find(cache, row.planned) is not None


def test_sources_go_unless_they_were_asked_for(cache: Cache) -> None:
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
    assert {one.name for one in prune(cache, unused_for=30 * DAY) if one.kind == "source"} == {
        "gone.whl",
        trees[1].name[:24],
    }
    assert store.file(sha256_bytes(b"gone.whl")) is None
    assert trees[0].is_dir()
    assert [path.name for path in trees[1].parent.glob(f"{trees[1].name}*")] == []
    assert list((cache.store / "files").iterdir()) == [cache.store / "files" / sha256_bytes(b"kept.whl")[7:]]


def test_unfinished_work_goes_but_the_compiler_cache_stays(cache: Cache) -> None:
    names = ("work/llvm-1", "work/buildah-cache/toolchain-llvm-tree-1", "work/buildah-cache/toolchain-ccache",
             "work/campaign-1", "reproduce/1", "work/llvm-2")  # fmt: skip
    for name in names:
        folder = cache.root / name
        folder.mkdir(parents=True)
        (folder / "file").write_text("x" * 5000)
        age(folder / "file", 60)
        age(folder, 60)
    cache.logs.mkdir(exist_ok=True)
    (cache.logs / "old.log").write_text("x")
    (cache.logs / "new.log").write_text("x")
    age(cache.logs / "old.log", 60)
    # The ledger of a campaign is written to while its folder stays as it is.
    (cache.work / "campaign-1" / "file").write_text("new")
    (cache.work / "llvm-2" / "file").write_text("new")
    kinds = {one.name: one.kind for one in survey(cache)}
    assert kinds["toolchain-ccache"] == "compiler cache"
    gone = {one.name for one in prune(cache, unused_for=30 * DAY) if one.kind != "image"}
    assert gone == {"llvm-1", "toolchain-llvm-tree-1", "reproduction 1", "old.log"}
    assert [(cache.root / name).is_dir() for name in names] == [False, False, True, True, False, True]
    assert [path.name for path in cache.logs.iterdir()] == ["new.log"]
    assert not list(cache.root.rglob("*.deleted"))


def test_a_broken_record_or_image_does_not_stop_it(cache: Cache) -> None:
    (cache.records / ("9" * 64 + ".json")).write_text("{")
    layout = Layout(cache.images)
    layout.blob(layout.resolve(image_tag("llvm-triton-old-debian13", OTHER)).digest).unlink()
    assert [one.key for one in prune(cache, unused_for=30 * DAY)] == [OTHER.removeprefix("sha256:")]


def test_what_is_young_and_has_no_name_yet_stays(cache: Cache) -> None:
    """A build in an empty folder begins without the lock."""
    layout = Layout(cache.images)
    blob = layout.put_bytes(b"{}", "application/json")
    prune(cache, unused_for=DAY)
    assert layout.has(blob.digest)
    age(layout.blob(blob.digest), 2)
    prune(cache, unused_for=DAY)
    assert not layout.has(blob.digest)


def test_it_waits_for_nobody_and_others_wait_for_it(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    with in_use(cache.use), in_use(cache.use), pytest.raises(LockHeldError, match=f"by pid {os.getpid()}"), alone(
        cache.use, what="the cache"
    ):  # fmt: skip
        pass
    code = (
        "import sys; from pathlib import Path; from toolchain.sources.lock import in_use\n"
        "with in_use(Path(sys.argv[1])): print('in')"
    )
    with alone(cache.use, what="the cache"):
        child = subprocess.Popen(
            [sys.executable, "-c", code, cache.use], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert child.stderr is not None
        assert f"waiting for pid {os.getpid()}, which tidies up" in child.stderr.readline()
    assert child.communicate(timeout=60)[0] == "in\n"
    # A folder that is not there is not made for it.
    with in_use(Cache(cache.root / "nowhere").use):
        assert not (cache.root / "nowhere").exists()


def test_the_verbs(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(cache.root))
    monkeypatch.setenv("COLUMNS", "200")
    run = CliRunner().invoke
    said = json.loads(run(app, ["cache", "ls", "--json"]).stdout)
    assert said["bytes"] == sum(row["bytes"] for row in said["items"])
    assert {row["kind"] for row in said["items"]} == {"image"}
    assert "llvm-triton-old-debian13" in run(app, ["cache", "ls"]).stdout
    dry = json.loads(run(app, ["cache", "prune", "--dry-run", "--json"]).stdout)
    assert [row["name"].split()[0] for row in dry["items"]] == ["llvm-triton-old-debian13"]
    with in_use(cache.use):
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
