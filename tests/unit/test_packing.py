"""Tests of the compression of finished images with gzip or zstd when they are published."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, finished_llvm
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.cli.app import app
from toolchain.core.amounts import reporting_to
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.errors import DigestError, ResourceError
from toolchain.core.record import Record
from toolchain.oci import descriptor as media
from toolchain.oci.image import LayerBlob, read_layers
from toolchain.oci.layer import Blob, Layer, compress
from toolchain.oci.layout import Layout
from toolchain.oci.reference import parse
from toolchain.oci.transport import Body, Traffic
from toolchain.pipeline.records import read_record, write_record
from toolchain.publish import packing
from toolchain.publish.images import deliver
from toolchain.publish.packing import packed_image
from toolchain.request.model import Request
from toolchain.stages.stage import Built
from toolchain.trust import attest
from toolchain.trust.attest import Statement
from toolchain.trust.keys import new_key

PREFIX = "usr/lib64/llvm-triton-22.1.8"
FILES = {f"{PREFIX}/lib/libLLVMSupport.a": b"archive " * 9000, f"{PREFIX}/lib/cmake/mlir/MLIRConfig.cmake": b"x"}
WORDS = ["--source", "llvm=distro:llvm-toolchain-22", "--base", "debian13"]
needs_zstd = pytest.mark.skipif(
    shutil.which("zstd") is None, reason="zstd is NOT INSTALLED: zstd layers are not tested (apt-get install zstd)"
)


@pytest.fixture
def llvm(tmp_path: Path) -> tuple[Request, Built]:
    """Return a request whose cache contains a finished base and LLVM, and the result for the LLVM."""
    request = Request(cache=Cache(tmp_path / "cache"), sources=specs({"llvm": "distro:llvm-toolchain-22"}))
    finished_base(request.cache, tmp_path / "base")
    return request, finished_llvm(request, tmp_path / "llvm", FILES, {"prefix": f"/{PREFIX}"})


def call(request: Request, verb: str, *words: str) -> dict[str, Any]:
    asked = WORDS if verb == "plan" else []
    done = CliRunner().invoke(app, [verb, *words, *asked, "--cache", str(request.cache.root), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def own_layer(request: Request, built: Built) -> LayerBlob:
    layout = Layout(request.cache.images)
    return read_layers(layout, layout.resolve(built.manifest))[-1]


def test_another_zlib_does_not_change_finished_images(
    llvm: tuple[Request, Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, built = llvm
    monkeypatch.setattr(zlib, "ZLIB_RUNTIME_VERSION", "9.9.9")
    rows = call(request, "plan", "llvm")["stages"]
    assert [(row["reused"], row["input_digest"]) for row in rows][1:] == [(True, built.input_digest)]
    assert rows[0]["reused"]
    new_key(tmp_path / "key")
    (sent,) = call(request, "publish", f"oci:{tmp_path / 'out'}", "llvm-triton", "--key", str(tmp_path / "key"))[
        "published"
    ]
    # The blob was written by the earlier zlib, which the record names.
    assert Layout(tmp_path / "out").has(own_layer(request, built).descriptor.digest)
    assert not read_record(request.cache, built.input_digest).compressor.startswith("gzip/zlib-9.9.9")
    assert sent["refs"][1].endswith(built.input_digest[7:19])


@needs_zstd
def test_gzip_and_zstd_images_are_published_under_different_tags(llvm: tuple[Request, Built], tmp_path: Path) -> None:
    request, built = llvm
    out, name = tmp_path / "out", built.planned.image
    for how in ("gzip", "zstd", "zstd"):
        call(request, "publish", f"oci:{out}", "llvm-triton", "--compression", how)
    short = built.input_digest[7:19]
    layout = Layout(out)
    assert {name, f"{name}.{short}", f"{name}.zstd", f"{name}.{short}-zstd"} <= set(layout.refs())
    record = read_record(request.cache, built.input_digest)
    plain, small = (packed_image(request.cache, record, how) for how in packing.PACKINGS)
    assert plain.manifest.digest == built.manifest
    assert [one.layer.diff_id for one in small.layers] == [one.layer.diff_id for one in plain.layers]
    assert small.layers[0].layer.descriptor.media_type == media.LAYER_ZSTD
    assert list(small.compressors) == [small.layers[0].layer.descriptor.digest]
    assert small.layers[0].compressor.startswith("zstd/zstd-")
    assert plain.layers[0].compressor.startswith("gzip/zlib-")
    assert call(request, "plan", "llvm")["stages"][1]["reused"]


@needs_zstd
def test_provenance_names_the_compressor_of_a_blob(
    llvm: tuple[Request, Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, _ = llvm
    said: list[dict[str, str]] = []
    whole = attest.provenance

    def listening(*given: Any) -> Statement:
        statement = whole(*given)
        said.append(statement["predicate"]["buildDefinition"]["internalParameters"]["compressors"])
        return statement

    monkeypatch.setattr(attest, "provenance", listening)
    key = tmp_path / "key"
    new_key(key)
    for how in packing.PACKINGS:
        call(request, "publish", f"oci:{tmp_path / 'out'}", "llvm-triton", "--compression", how, "--key", str(key))
    assert [text.partition("/")[0] for one in said for text in one.values()] == ["gzip", "zstd"]


@needs_zstd
@pytest.mark.parametrize("bad", ["cut", "other"])
def test_damaged_layer_is_refused(llvm: tuple[Request, Built], bad: str) -> None:
    request, built = llvm
    blob = Layout(request.cache.images).blob(own_layer(request, built).descriptor.digest)
    content = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(content[:-20] if bad == "cut" else gzip.compress(b"something else"))
    with pytest.raises(DigestError) as error:
        packed_image(request.cache, read_record(request.cache, built.input_digest), "zstd")
    assert str(blob) in error.value.fix
    assert not list(request.cache.work.glob("pack-*"))


@needs_zstd
def test_packing_without_enough_free_space_is_refused(
    llvm: tuple[Request, Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, built = llvm
    monkeypatch.setattr("toolchain.engine.resources.disk_free", lambda _: built.facts["unpacked_bytes"])
    with pytest.raises(ResourceError):
        packed_image(request.cache, read_record(request.cache, built.input_digest), "zstd")


def a_plain_layer(folder: Path, content: bytes) -> tuple[Cache, Layout, LayerBlob]:
    cache = Cache(folder / "cache")
    layout = Layout(cache.images).ensure()
    stored = layout.put_bytes(content, media.LAYER)
    return cache, layout, LayerBlob(stored, stored.digest)


def test_malformed_note_of_a_packed_layer_is_written_again(tmp_path: Path) -> None:
    cache, layout, layer = a_plain_layer(tmp_path, b"a tar")
    first = packing._packed(cache, layer, "gzip", None)
    (note,) = (layout.root / "packed").iterdir()
    written = note.read_bytes()
    note.write_text("{}")
    assert packing._packed(cache, layer, "gzip", None) == first
    assert note.read_bytes() == written


def test_plain_layer_is_packed_again_only_if_its_blob_is_damaged_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"a tar of a gigabyte" * 1000
    cache, layout, layer = a_plain_layer(tmp_path, content)
    counted: list[str] = []

    def counting(*words: Any) -> Blob:
        counted.append(words[2])
        return compress(*words)

    monkeypatch.setattr(packing, "compress", counting)
    first = packing._packed(cache, layer, "gzip", None)
    blob = first.layer.descriptor.digest
    assert gzip.decompress(layout.blob(blob).read_bytes()) == content
    # A later zlib changes neither the blob nor the recorded compressor.
    monkeypatch.setattr(zlib, "ZLIB_RUNTIME_VERSION", "9.9.9")
    assert packing._packed(cache, layer, "gzip", None) == first
    assert counted == ["gzip"]
    layout.blob(blob).write_bytes(b"decayed")
    assert packing._packed(cache, layer, "gzip", None).layer == first.layer
    layout.forget(blob)
    assert packing._packed(cache, layer, "gzip", None).layer == first.layer
    assert counted == ["gzip", "gzip", "gzip"]


def test_compressed_layer_of_a_base_is_not_packed_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    layout = Layout(cache.images).ensure()
    stored = layout.put_bytes(gzip.compress(b"a tar"), media.LAYER_GZIP)
    layer = LayerBlob(stored, f"sha256:{'1' * 64}")
    assert packing._packed(cache, layer, "zstd", None) == packing.PackedLayer(layer, "")
    # The stage's own layer is packed again. Here, unpacking finds that it does not match its diff_id.
    record = Record(stage="llvm", image="x", input_digest="sha256:1", manifest="sha256:2", facts={"unpacked_bytes": 5})
    write_record(cache, record)
    with pytest.raises(DigestError):
        packing._packed(cache, layer, "zstd", record)


def test_progress_of_large_layers_is_reported(tmp_path: Path) -> None:
    tar, small = tmp_path / "tar", tmp_path / "small"
    tar.write_bytes(os.urandom(3 << 20))
    small.write_bytes(b"little")
    seen: list[tuple[str, int, int]] = []
    with reporting_to(lambda *row: seen.append(row)):
        for path in (tar, small):
            layer = Layer(sha256_file(path), path.stat().st_size, path)
            compress(layer, tmp_path / f"{path.name}.gz")
            with path.open("rb") as stream:
                assert b"".join(Body(stream, 0, layer.size, Traffic(), "registry.example")) == path.read_bytes()
    whole = 3 << 20
    assert {what for what, *_ in seen} == {"compressing a layer", "sending to registry.example"}
    assert [done for what, done, total in seen if what.startswith("sending")] == [
        1 << 20, 2 << 20, whole
    ]  # fmt: skip
    assert seen[2] == ("compressing a layer", whole, whole)


def test_triton_cache_cannot_be_published_with_zstd(llvm: tuple[Request, Built], tmp_path: Path) -> None:
    request, built = llvm
    record = replace(read_record(request.cache, built.input_digest), stage="triton-cache")
    with refused("compression-not-for-cache"):
        deliver(request.cache, [record], parse(f"oci:{tmp_path}/out"), compression="zstd")
    assert not (tmp_path / "out").exists()
