"""A finished image in another compression is packed again: the bytes that a build would end in, and nothing built."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, finished_llvm
from tests.request_fixtures import specs
from toolchain.build import run
from toolchain.build.plan import plan
from toolchain.build.record import read_record, write_record
from toolchain.build.repack import is_twin
from toolchain.cache import Cache
from toolchain.cli.app import app
from toolchain.errors import DigestError, LockHeldError, ResourceError
from toolchain.locks import held
from toolchain.oci import descriptor as media
from toolchain.oci.image import LayerBlob, labels_of, read_layers
from toolchain.oci.labels import INPUT_DIGEST
from toolchain.oci.layer import Blob, compress
from toolchain.oci.layout import Layout
from toolchain.publish import images
from toolchain.record import TakenFrom
from toolchain.request import Request
from toolchain.stages.stage import Built, Planned

PREFIX = "usr/lib64/llvm-triton-22.1.8"
FILES = {f"{PREFIX}/lib/libLLVMSupport.a": b"archive " * 9000, f"{PREFIX}/lib/cmake/mlir/MLIRConfig.cmake": b"x"}
WORDS = ["--source", "llvm=distro:llvm-toolchain-22", "--base", "debian13"]
needs_zstd = pytest.mark.skipif(
    shutil.which("zstd") is None, reason="zstd is NOT INSTALLED: packing again is not tested (apt-get install zstd)"
)
How = Literal["gzip", "zstd"]


class BuiltError(Exception):
    """A stage was built after all."""


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object, **__: object) -> None:
        raise BuiltError

    monkeypatch.setattr(run, "_build_stage", build)
    monkeypatch.setattr(run, "_ready", lambda *_: None)
    monkeypatch.setattr("toolchain.build.prefetch.fetch_for", lambda *_, **__: None)


def _finished(folder: Path, how: How) -> tuple[Request, Built]:
    """A cache in which base and LLVM are finished in a compression."""
    cache = Cache(folder / "cache")
    sources = specs({"llvm": "distro:llvm-toolchain-22"})
    request = Request(cache=cache, sources=sources, compression=how)
    finished_base(cache, folder / "base")
    if how == "zstd":  # the base's own image counts its compressor too
        base = plan(replace(request, compression="gzip"), "base")[0].built
        assert base is not None
        run.build(request, "base")
    return request, finished_llvm(request, folder / "llvm", FILES, {"prefix": f"/{PREFIX}"})


@needs_zstd
@pytest.mark.parametrize(("first", "then"), [("gzip", "zstd"), ("zstd", "gzip")])
def test_it_is_the_image_that_a_build_ends_in(tmp_path: Path, first: How, then: How) -> None:
    request, was = _finished(tmp_path / "here", first)
    killed = request.cache.work / "repack-0123456789ab" / "layer.tar"
    killed.parent.mkdir(parents=True)
    killed.write_bytes(b"half of it")
    _, direct = _finished(tmp_path / "elsewhere", then)
    asked = replace(request, compression=then)
    own = request.cache.work / f"repack-{direct.input_digest[7:19]}" / "layer.tar"
    own.parent.mkdir()
    own.write_bytes(b"what a killed run of this one left")
    *_, found = run.build(asked, "llvm")
    assert (found.input_digest, found.manifest) == (direct.input_digest, direct.manifest)
    assert found.input_digest != was.input_digest
    layout = Layout(request.cache.images)
    config, layer = layout.children(layout.resolve(found.manifest))
    assert labels_of(layout.read_json(config))[INPUT_DIGEST] == found.input_digest
    assert layer.media_type == {"gzip": media.LAYER_GZIP, "zstd": media.LAYER_ZSTD}[then]
    # What is known of it is what its build found; its size is its own.
    record = read_record(request.cache, found.input_digest)
    assert record.facts["prefix"] == f"/{PREFIX}"
    assert record.facts["blob_bytes"] == layer.size
    assert record.facts["packed_from"] == was.input_digest
    assert record.request.get("compression", "gzip") == then
    assert read_record(request.cache, was.input_digest).manifest == was.manifest
    assert killed.exists()  # somebody else's; `cache prune` knows whether they still work
    assert list(request.cache.work.glob("repack-*")) == [killed.parent]
    assert [one.reused for one in run.build(asked, "llvm")] == [True, True]


@needs_zstd
def test_the_plan_says_so(tmp_path: Path) -> None:
    request, was = _finished(tmp_path, "gzip")
    words = [*WORDS, "--cache", str(request.cache.root), "--compression", "zstd"]
    done = CliRunner().invoke(app, ["plan", "llvm", *words])
    assert done.exit_code == 0, done.output
    assert "to pack" in done.stdout
    assert "still to build" not in done.stdout
    value = json.loads(CliRunner().invoke(app, ["plan", "llvm", "--json", *words]).stdout)
    schema = json.loads((Path(__file__).resolve().parents[2] / "docs" / "json.schema.json").read_text())
    assert list(Draft202012Validator({**schema, "$ref": "#/$defs/plan"}).iter_errors(value)) == []
    rows = value["stages"]
    assert [row["reused"] for row in rows] == [False, False]
    assert rows[1]["packed_from"] == was.input_digest
    done = CliRunner().invoke(app, ["build", "llvm", *words, "--no-contract"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("packed again") == 2


@needs_zstd
def test_what_is_not_the_same_is_built(tmp_path: Path) -> None:
    request, _ = _finished(tmp_path, "gzip")
    patch = tmp_path / "a.patch"
    patch.write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    for other in (
        replace(request, compression="zstd", patches={"llvm": (patch,)}),
        replace(request, compression="zstd", only="mlir-tblgen"),
        replace(request, only="mlir-tblgen"),
    ):
        with pytest.raises(BuiltError):
            run.build(other, "llvm")


@needs_zstd
def test_what_others_built_is_not_packed_again(tmp_path: Path) -> None:
    request, was = _finished(tmp_path, "gzip")
    taken = replace(read_record(request.cache, was.input_digest), taken_from=TakenFrom("registry/x", "a key"))
    write_record(request.cache, taken)
    with pytest.raises(BuiltError):
        run.build(replace(request, compression="zstd"), "llvm")


@needs_zstd
def test_what_nobody_tried_is_built_where_it_is_to_be_tried(tmp_path: Path) -> None:
    request, was = _finished(tmp_path, "gzip")
    record = read_record(request.cache, was.input_digest)
    write_record(request.cache, replace(record, request={**record.request, "contract": False}))
    asked = replace(request, compression="zstd")
    with pytest.raises(BuiltError):
        run.build(asked, "llvm")
    *_, found = run.build(replace(asked, contract=False), "llvm")
    assert not read_record(request.cache, found.input_digest).contract  # nobody tried this one either
    with pytest.raises(BuiltError):
        run.build(asked, "llvm")


@needs_zstd
@pytest.mark.parametrize("bad", ["cut", "other"])
def test_a_damaged_layer(tmp_path: Path, bad: str) -> None:
    request, was = _finished(tmp_path, "gzip")
    layout = Layout(request.cache.images)
    (layer,) = read_layers(layout, layout.resolve(was.manifest))
    blob = layout.blob(layer.descriptor.digest)
    content = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(content[:-20] if bad == "cut" else gzip.compress(b"something else"))
    asked = replace(request, compression="zstd")
    with pytest.raises(DigestError, match="is damaged") as error:
        run.build(asked, "llvm")
    assert str(blob) in error.value.fix
    assert not list(request.cache.work.glob("repack-*"))
    assert plan(asked, "llvm")[-1].built is None
    blob.unlink()  # as it says
    with pytest.raises(BuiltError):
        run.build(asked, "llvm")


@needs_zstd
def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, was = _finished(tmp_path, "gzip")
    monkeypatch.setattr("toolchain.engine.resources.disk_free", lambda _: was.facts["unpacked_bytes"])
    with pytest.raises(ResourceError, match="too little disk"):
        run.build(replace(request, compression="zstd"), "llvm")
    assert not list(request.cache.work.glob("repack-*"))


@needs_zstd
def test_published_beside(tmp_path: Path) -> None:
    request, was = _finished(tmp_path, "gzip")
    out = tmp_path / "out"
    words = ["--stage", "llvm", *WORDS, "--cache", str(request.cache.root), "--json"]
    hows: tuple[How, ...] = ("gzip", "zstd")
    for how in hows:
        run.build(replace(request, compression=how), "llvm")
        done = CliRunner().invoke(app, ["publish", f"oci:{out}", *words, "--compression", how])
        assert done.exit_code == 0, done.output
    tags = set(Layout(out).refs())
    name = was.planned.image
    assert {name, f"{name}.zstd", f"{name}.{was.input_digest[7:19]}"} <= tags


def test_twins() -> None:
    def planned(**inputs: object) -> Planned:
        return Planned(name="llvm", image="x", inputs=inputs)

    one, two = planned(compressor="a", base="sha256:1", goal="x"), planned(compressor="b", base="sha256:2", goal="x")
    assert is_twin(one, two, {"sha256:1": "sha256:2"})
    assert not is_twin(one, two, {})
    assert not is_twin(one, one, {})
    assert not is_twin(one, planned(compressor="b", base="sha256:2", goal="y"), {"sha256:1": "sha256:2"})
    assert not is_twin(one, replace(two, inputs=None), {"sha256:1": "sha256:2"})


def a_plain_layer(folder: Path, content: bytes) -> tuple[Request, Layout, LayerBlob]:
    request = Request(cache=Cache(folder / "cache"))
    layout = Layout(request.cache.images).ensure()
    stored = layout.put_bytes(content, media.LAYER)
    return request, layout, LayerBlob(stored, stored.digest)


def test_a_note_of_a_packing_that_cannot_be_read_is_written_again(tmp_path: Path) -> None:
    request, layout, layer = a_plain_layer(tmp_path, b"a tar")
    first = images._packed(request, layout, layer)
    (note,) = (layout.root / "packed").iterdir()
    written = note.read_bytes()
    note.write_text("{}")
    assert images._packed(request, layout, layer) == first
    assert note.read_bytes() == written


def test_one_packs_a_layer_while_the_other_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, layout, layer = a_plain_layer(tmp_path, b"a tar")
    monkeypatch.setenv("TOOLCHAIN_LOCK_TIMEOUT", "0")
    lock = request.cache.locks / f"pack-{layer.diff_id.removeprefix('sha256:')[:12]}.lock"
    with held(lock, what="packing it"), pytest.raises(LockHeldError):
        images._packed(request, layout, layer)


def test_a_plain_layer_is_packed_for_the_first_publication_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"a tar of a gigabyte" * 1000
    request, layout, layer = a_plain_layer(tmp_path, content)
    counted: list[str] = []

    def counting(*words: Any) -> Blob:
        counted.append(words[2])
        return compress(*words)

    monkeypatch.setattr(images, "compress", counting)
    first = images._packed(request, layout, layer)
    assert gzip.decompress(layout.blob(first.descriptor.digest).read_bytes()) == content
    assert images._packed(request, layout, layer) == first
    assert counted == ["gzip"]
    layout.blob(first.descriptor.digest).write_bytes(b"decayed")
    assert images._packed(request, layout, layer) == first
    layout.forget(first.descriptor.digest)
    assert images._packed(request, layout, layer) == first
    assert counted == ["gzip", "gzip", "gzip"]
