"""`reproduce`: interrupted reproductions, requests of finished and published images, and the comparison."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import Stand, ed25519_signer, finished_base, finished_llvm, small_image
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.cli.app import app
from toolchain.cli.build_options import make_request
from toolchain.core.cache import Cache
from toolchain.core.errors import DigestError, SourceError
from toolchain.engine.buildah import Buildah
from toolchain.engine.variation import Variation
from toolchain.oci import descriptor as media
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.pipeline.fetching import fetch_for
from toolchain.pipeline.original import _of_provenance, of_reference
from toolchain.pipeline.plan import plan
from toolchain.pipeline.records import read_record, write_record
from toolchain.pipeline.reproduce import Reproduced, _take, clean_cache, content_digest, expected_of, reproduce
from toolchain.request.model import Request
from toolchain.stages.stage import Built
from toolchain.stages.triton_origin import triton_source

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache with a finished base, and with work that a reproduction must not see."""
    cache = Cache(tmp_path / "a cache")
    finished_base(cache, tmp_path / "base")
    (cache.work / "ccache").mkdir(parents=True)
    cache.store.mkdir(exist_ok=True)
    return cache


def test_image_with_config_of_another_layer_is_refused(tmp_path: Path) -> None:
    """The config could name the layer that a rebuild produces, whatever the image contains."""
    stand = Stand(Layout(tmp_path / "lay"), tmp_path / "work")
    evil = small_image(stand.layout, stand.work, files={"usr/lib64/thing/bin/tool": b"evil"})
    manifest = {**stand.layout.read_json(evil), "config": stand.layout.read_json(stand.manifest)["config"]}
    stand.layout.tag(stand.layout.put_json(manifest, media.MANIFEST), "evil")
    done = CliRunner().invoke(app, ["reproduce", f"oci:{stand.layout.root}:evil", "--cache", str(tmp_path / "c")])
    assert done.exit_code == DigestError.code, done.output
    good = CliRunner().invoke(app, ["reproduce", f"oci:{stand.layout.root}:thing", "--cache", str(tmp_path / "c")])
    assert good.exit_code not in {0, DigestError.code}, "it goes further"


def test_interrupted_reproduction_continues(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    dependencies = plan(Request(cache=cache), "base")

    def cut_off() -> None:
        with clean_cache(cache, dependencies, DIGEST) as fresh:
            assert not fresh.work.exists()
            assert plan(Request(cache=fresh), "base")[0].built is not None, "the base is there"
            fresh.work.mkdir()
            (fresh.work / "object").write_text("compiled")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    assert "continuing" not in capsys.readouterr().err
    with clean_cache(cache, dependencies, OTHER) as second:
        assert not second.work.exists(), "other inputs begin anew"
    assert "continuing" not in capsys.readouterr().err
    with clean_cache(cache, dependencies, DIGEST) as again:
        assert (again.work / "object").read_text() == "compiled"
        assert plan(Request(cache=again), "base")[0].built is not None
    errors = capsys.readouterr().err.replace("\n", "")
    assert f"continuing the interrupted reproduction ({again.root})" in errors
    assert list((cache.root / "reproduce").iterdir()) == [], "once compared it is gone"


def test_interrupted_reproduction_in_a_moved_cache_reads_the_store_there(cache: Cache) -> None:
    def cut_off() -> None:
        with clean_cache(cache, plan(Request(cache=cache), "base"), DIGEST):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    moved = Cache(cache.root.rename(cache.root.with_name("moved")))
    (moved.store / "file").touch()
    with clean_cache(moved, plan(Request(cache=moved), "base"), DIGEST) as again:
        assert [path.name for path in again.store.iterdir()] == ["file"]


def test_reproduction_starts_from_cache_without_store(cache: Cache) -> None:
    cache.store.rmdir()
    with clean_cache(cache, plan(Request(cache=cache), "base"), DIGEST) as fresh:
        fresh.make()
        assert fresh.store.is_dir()


def test_interrupted_build_with_other_seed_is_not_continued(cache: Cache) -> None:
    dependencies = plan(Request(cache=cache), "base")

    def cut_off(seed: int | None) -> None:
        with clean_cache(cache, dependencies, DIGEST, seed=seed) as fresh:
            (fresh.root / f"of-{seed}").touch()
            assert [file.name for file in fresh.root.glob("of-*")] == [f"of-{seed}"]
            raise KeyboardInterrupt

    for seed in (None, 1, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            cut_off(seed)


def test_workers_that_start_at_once_preload_the_same_libraries(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def run(*_: object, **__: object) -> SimpleNamespace:
        built.append(1)
        time.sleep(0.1)
        return SimpleNamespace(stdout="heap\nstatic\n")

    monkeypatch.setattr(Buildah, "run", run)
    variation = Variation(1)
    engine = Buildah(cache, variation=variation)
    with ThreadPoolExecutor(4) as pool:
        mounts = list(pool.map(engine._preloaded, ["image"] * 4))
    assert len(built) == 1
    assert mounts[1:] == mounts[:1] * 3
    told = variation.as_json()
    assert "file-order" in told["unchanged"].keys() - told["changed"].keys(), "no source tree was mounted"


def test_partly_deleted_folder_is_not_continued(cache: Cache) -> None:
    left = cache.root / "reproduce" / (f".{'ab' * 6}.9-0.deleted")
    (left / "work").mkdir(parents=True)
    (left / "work" / "half").touch()
    with clean_cache(cache, plan(Request(cache=cache), "base"), DIGEST) as fresh:
        assert not fresh.work.exists()
        assert not left.exists()


def test_request_of_finished_image_is_reused_and_can_be_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = specs({"llvm": "distro:llvm-toolchain-22"})
    request = Request(cache=Cache(tmp_path / "cache"), sources=sources, only="support")
    finished_base(request.cache, tmp_path / "base")
    llvm = finished_llvm(request, tmp_path / "llvm", {"usr/lib64/x/a": b"x"})
    seen: list[tuple[Request, str, Any]] = []

    def noting(request: Request, target: str, expected: Any, **_: object) -> None:
        seen.append((request, target, expected))
        raise SourceError("test-error", "seen", fix="-")

    monkeypatch.setattr("toolchain.cli.reproduce_cmd.reproduce", noting)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    # Neither a pin file in the current folder nor a variable may change the recorded request.
    Path("llvm-hash.txt").write_text("f6ded0be897e2878612dd903f7e8bb85448269e5")
    monkeypatch.setenv("TOOLCHAIN_ONLY", "tablegen")
    home = ("--cache", str(request.cache.root))
    done = CliRunner().invoke(app, ["reproduce", "llvm-triton", *home])
    assert done.exit_code == 5, done.output
    made_by = "toolchain build llvm --base debian13 --source llvm=distro:llvm-toolchain-22=22.1.8 --only support"
    assert made_by in done.stderr
    request, target, expected = seen.pop()
    assert (target, request.only, request.glibc, str(request.base)) == ("llvm", "support", "", "debian13")
    assert plan(request, "llvm")[-1].planned.input_digest == llvm.input_digest == expected["input_digest"]
    CliRunner().invoke(app, ["reproduce", "llvm-triton", *home, "--only", "tablegen", "--jobs", "3"])
    request, *_ = seen.pop()
    assert (request.only, request.jobs) == ("tablegen", 3)
    assert CliRunner().invoke(app, ["reproduce", "toolchain-base", *home]).exit_code == 7
    done = CliRunner().invoke(app, ["reproduce", "llvm-triton", *home, "--vary"])
    variation = seen.pop()[0].variation
    assert variation is not None
    assert f"--seed {variation.seed}" in done.stderr, "an interrupted build would not name it"
    assert variation.as_json()["changed"] == {}, "nothing was started under the conditions"
    done = CliRunner().invoke(app, ["reproduce", "llvm-triton", *home, "--vary", "--runner", "docker", "--json"])
    assert json.loads(done.stdout)["id"] == "vary-elsewhere", done.output
    (tmp_path / "store").mkdir()
    store = {"TOOLCHAIN_KERNEL_STORE": str(tmp_path / "store")}
    CliRunner().invoke(app, ["reproduce", "llvm-triton", *home], env=store)
    assert seen.pop()[0].kernel_store is None, "a rebuild would take kernels instead of compiling them"


def test_missing_source_is_named_before_the_rebuild(tmp_path: Path) -> None:
    """The user of `reproduce` gave no --offline, so the advice must not be to omit it."""
    request = Request(
        cache=Cache(tmp_path / "cache"), sources=specs({"llvm": "distro:llvm-toolchain-22"}), only="support"
    )
    finished_base(request.cache, tmp_path / "base")
    finished_llvm(request, tmp_path / "llvm", {"usr/lib64/x/a": b"x"})
    done = CliRunner().invoke(app, ["reproduce", "llvm-triton", "--cache", str(request.cache.root), "--json"])
    error = json.loads(done.stdout)
    assert (error["exit_code"], error["id"]) == (5, "not-stored"), done.output
    assert "toolchain fetch llvm" in error["fix"]
    assert not (request.cache.root / "reproduce").exists()


def test_checkout_that_pinned_llvm_is_read_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout, seen = tmp_path / "my triton", list[Request]()
    (checkout / "cmake").mkdir(parents=True)
    (checkout / "setup.py").touch()
    (checkout / "cmake" / "llvm-hash.txt").write_text("f6ded0be897e2878612dd903f7e8bb85448269e5\n")
    request = make_request(target="llvm", triton=str(checkout), base="debian13", cache=str(tmp_path / "cache"))
    finished_base(request.cache, tmp_path / "base")
    llvm = finished_llvm(request, tmp_path / "llvm", {"usr/lib64/x/a": b"x"})
    fetch_for(request, triton_source(request))
    shutil.rmtree(checkout)

    def noting(request: Request, *_: object) -> None:
        seen.append(request)
        raise SourceError("test-error", "seen", fix="-")

    monkeypatch.setattr("toolchain.cli.reproduce_cmd.reproduce", noting)
    words = ["reproduce", llvm.planned.image, "--cache", str(request.cache.root), "--json"]
    done = CliRunner().invoke(app, words)
    assert json.loads(done.stdout)["id"] == "test-error", done.output
    assert [plan(each, "llvm")[-1].planned.input_digest for each in seen] == [llvm.input_digest]
    shutil.rmtree(request.cache.store / "trees")
    with refused("not-stored"):
        plan(seen.pop(), "llvm")


def test_published_image_requires_the_key_of_its_signer(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "lay"), tmp_path / "work")
    stand.say_all()
    ref, home = f"oci:{stand.layout.root}:thing", ("--cache", str(tmp_path / "c"))
    done = CliRunner().invoke(app, ["reproduce", ref, *home])
    assert (done.exit_code, "--public-key" in done.stderr) == (3, True)
    for signer, code in ((stand.signer, 5), (ed25519_signer(), 17)):
        key = tmp_path / f"{code}.pub"
        key.write_bytes(signer.public.pem())
        done = CliRunner().invoke(app, ["reproduce", ref, *home, "--public-key", str(key)])
        assert done.exit_code == code, done.output


def test_rebuild_is_attested_for_an_index_only_if_it_lists_no_other_image(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "lay"), tmp_path / "work")
    stand.say_all()
    other = small_image(stand.layout, tmp_path / "work", label=OTHER, arch="arm64")
    alone, index, image = stand.index, write_index(stand.layout, [stand.manifest, other]), stand.manifest.digest
    for named, published in ((alone, [image, alone.digest]), (index, [image]), (stand.manifest, [image])):
        ref, cache = f"oci:{stand.layout.root}@{named.digest}", Cache(tmp_path / "cache")
        original = of_reference(cache, ref, "amd64", stand.signer.public, tmp_path / "scratch")
        assert original.expected["published"] == published


def test_a_signed_provenance_without_a_request_is_malformed() -> None:
    with refused("statement-malformed"):
        _of_provenance("x", {"predicate": {"buildDefinition": {"resolvedDependencies": []}}}, {})


def test_provenance_names_patches_of_lower_stages() -> None:
    def row(name: str, stage: str, *patches: str) -> dict[str, Any]:
        listed = [{"name": patch, "digest": f"of {patch}"} for patch in patches]
        return {"name": name, "annotations": {"stage": stage, "patches": listed}}

    rows = [row("llvm", "llvm", "own.patch", "shipped.toml"), row("triton", "triton")]
    parameters = {"stage": "triton", "patches": {"llvm": ["own.patch"]}}
    definition = {"externalParameters": parameters, "resolvedDependencies": rows}
    original = _of_provenance("x", {"predicate": {"buildDefinition": definition}}, {})
    assert original.patches == {"llvm": ("of own.patch",)}


def test_equal_layer_with_different_config_is_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher could add a layer below or preload a library, and each rebuilder would confirm the image."""
    sources = specs({"llvm": "distro:llvm-toolchain-22"})
    request = Request(cache=Cache(tmp_path / "cache"), sources=sources, only="support", contract=False)
    finished_base(request.cache, tmp_path / "base")
    llvm = finished_llvm(request, tmp_path / "llvm", {"usr/lib64/x/a": b"x"})

    def honest(asked: Request, _: str) -> list[Built]:
        _take(request.cache, asked.cache, llvm)
        return [llvm]

    monkeypatch.setattr("toolchain.pipeline.reproduce.build", honest)
    monkeypatch.setattr("toolchain.pipeline.reproduce.stored_for", lambda *_, **__: True)
    expected = expected_of(request.cache, read_record(request.cache, llvm.input_digest))
    assert reproduce(request, "llvm", expected).equal
    layout = Layout(request.cache.images)
    config = layout.read_json(layout.children(layout.resolve(llvm.manifest))[0])
    assert content_digest(config) == expected["content"]
    preloaded = {**config, "config": {**config["config"], "Env": ["LD_PRELOAD=/evil.so"]}}
    below = {**config, "rootfs": {**config["rootfs"], "diff_ids": [OTHER, *config["rootfs"]["diff_ids"]]}}
    for other in (preloaded, below, {**config, "architecture": "arm64"}):
        found = reproduce(request, "llvm", {**expected, "content": content_digest(other)})
        assert (found.equal, found.same_layer) == (False, True)


def test_wheel_that_is_not_in_the_image_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of Triton contains the wheel for the Python of its base, and `publish --files` publishes all wheels."""
    sources = specs({"llvm": "distro:llvm-toolchain-22"})
    request = Request(cache=Cache(tmp_path / "cache"), sources=sources, only="support", contract=False)
    finished_base(request.cache, tmp_path / "base")
    llvm = finished_llvm(request, tmp_path / "llvm", {"usr/lib64/x/a": b"x"})
    record = read_record(request.cache, llvm.input_digest)
    monkeypatch.setattr("toolchain.pipeline.reproduce.stored_for", lambda *_, **__: True)

    def rebuilt(**wheels: str) -> Reproduced:
        def build(asked: Request, _: str) -> list[Built]:
            _take(request.cache, asked.cache, llvm)
            rows = [{"file": f"{name}.whl", "digest": digest, "bytes": 1} for name, digest in wheels.items()]
            write_record(asked.cache, replace(record, facts={**record.facts, "wheels": rows}))
            return [llvm]

        monkeypatch.setattr("toolchain.pipeline.reproduce.build", build)
        return reproduce(request, "llvm", {**expected_of(request.cache, record), "wheels": {"a.whl": DIGEST}})

    assert rebuilt(a=DIGEST).equal
    for other, what in ((rebuilt(a=OTHER), "content"), (rebuilt(), "only in the first")):
        assert (other.equal, other.same_layer) == (False, True)
        assert [(file.path, file.what) for file in other.differing] == [("a.whl", what)]
    assert [file.path for file in rebuilt(a=DIGEST, b=DIGEST).differing] == ["b.whl"]


def test_label_that_is_not_a_digest_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "lay").ensure()
    layout.tag(small_image(layout, tmp_path / "work", label="a\0b"), "t")
    done = CliRunner().invoke(app, ["reproduce", f"oci:{layout.root}:t", "--cache", str(tmp_path / "c"), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["id"]) == (7, "not-our-image")
