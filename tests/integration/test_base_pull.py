"""Tests of bases whose image is in a registry, such as ubi9 and almalinux8.

The tests must not need the registries of these images, so a registry on loopback has an image of the same form: an
index with an image for each architecture, with OCI's or Docker's media types, and with stand-ins for dnf and rpm.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.enterprise import enterprise_tree
from tests.own_engine import destroy
from tests.places import publish
from tests.registry_fixtures import running_registry
from toolchain.catalog import bases
from toolchain.catalog.architectures import this_machine
from toolchain.catalog.base_ref import parse_base
from toolchain.core.cache import Cache
from toolchain.core.errors import DigestError, RegistryError, ToolchainError, UnreachableError, UnsupportedError
from toolchain.engine.buildah import Buildah
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import ImageSpec, add_layer, write_image, write_index
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.pipeline import run as pipeline
from toolchain.pipeline.records import find_image
from toolchain.request.model import Request

pytestmark = [pytest.mark.engine, pytest.mark.beside]
HERE = this_machine()
AS_DOCKER = {oci: docker for docker, oci in media.AS_OCI.items()}

ROW = """
[standin]
kind = "containerfile"
containerfile = "containerfiles/base/ubi9/Containerfile"
tag = "9"
seen = "2026-11-22"
os_release = {{ id = "rhel", version_id = "9.8" }}
tools = {{ python = "3.9.25" }}
tested = false
note = "for tests"
images = {{ {arch} = "{image}" }}
"""


@dataclass(frozen=True)
class Shelf:
    """Images like those of an Enterprise Linux, before they are pushed."""

    layout: Layout
    oci: Descriptor
    docker: Descriptor
    elsewhere: Descriptor


def write(layout: Layout, tree: Path, work: Path, arch: str) -> Descriptor:
    blob = compress(write_layer(tree, work / f"{arch}.tar"), work / f"{arch}.blob", "gzip", 1)
    layers = (add_layer(layout, blob, created_by="test"),)
    return write_image(layout, ImageSpec(arch=arch, layers=layers, labels={}, annotations={}))


def in_docker_words(layout: Layout, index: Descriptor) -> Descriptor:
    """Write an index of the same images with Docker's media types."""

    def said(part: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in part.items() if key != "annotations"}
        return {**kept, "mediaType": AS_DOCKER[part["mediaType"]]}

    rows = []
    for image in layout.children(index):
        value = layout.read_json(image)
        value = {**said(value), "config": said(value["config"]), "layers": [said(one) for one in value["layers"]]}
        made = layout.put_json(value, media.DOCKER_MANIFEST)
        rows.append(replace(made, platform=image.platform).as_json())
    value = {"schemaVersion": 2, "mediaType": media.DOCKER_INDEX, "manifests": rows}
    return layout.put_json(value, media.DOCKER_INDEX)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    for program in ("buildah", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"NO BASE IS PULLED: {program} is not installed (apt-get install buildah util-linux)")
    work = tmp_path_factory.mktemp("shelf")
    layout = Layout(work / "layout").ensure()
    image = write(layout, enterprise_tree(work / "el"), work, HERE)
    (work / "other").mkdir()
    (work / "other" / "file").write_text("for another machine")
    other = write(layout, work / "other", work, "s390x")
    index = write_index(layout, [image, other], {})
    return Shelf(layout, index, in_docker_words(layout, index), write_index(layout, [other], {}))


@pytest.fixture
def host(tmp_path: Path, shelf: Shelf) -> Iterator[str]:
    with running_registry(tmp_path / "registry") as host:
        for index in (shelf.oci, shelf.docker, shelf.elsewhere):
            publish(shelf.layout, index, RegistryRef(host, "el/ubi"))
        yield host


@pytest.fixture
def request_(tmp_path: Path) -> Iterator[Request]:
    cache = Cache(tmp_path / "the cache")
    yield Request(cache=cache, base=parse_base("standin"), arch=(HERE,))
    destroy(Buildah(cache))


def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, arch: str = HERE) -> None:
    path = tmp_path / "bases.toml"
    path.write_text(ROW.format(image=image, arch=arch))
    monkeypatch.setattr(bases, "DATA", str(path))


@pytest.mark.parametrize("words", ["docker", pytest.param("oci", marks=pytest.mark.nightly)])
def test_base_is_pulled_by_digest_and_built_again_without_its_registry(
    shelf: Shelf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_: Request,
    capfd: pytest.CaptureFixture[str],
    words: str,
) -> None:
    index: Descriptor = getattr(shelf, words)
    with running_registry(tmp_path / "registry") as host:
        publish(shelf.layout, index, RegistryRef(host, "el/ubi"))
        pinned(tmp_path, monkeypatch, f"{host}/el/ubi@{index.digest}")
        (built,) = pipeline.build(request_, "base")
    assert f"pulling {host}/el/ubi@{index.digest} (" in capfd.readouterr().err
    assert built.planned.image == "toolchain-base-standin"
    assert built.facts["packages"] == 2
    assert built.facts["start"]["manifest"] == shelf.layout.children(index)[0].digest
    engine = Buildah(request_.cache)
    image = engine.ensure_image("base", request_.cache.images, built.manifest)
    asked = "for one in ninja g++ python3; do command -v $one; done; cat /etc/os-release /dnf-calls"
    said = engine.run(image, ["sh", "-c", asked], capture=True).stdout
    assert "/usr/local/bin/ninja\n/usr/local/bin/g++\n/usr/local/bin/python3\n" in said
    assert 'ID="rhel"' in said
    assert "gcc-toolset-14-gcc-c++" in said
    assert (pipeline.build(request_, "base")[0].reused, capfd.readouterr().err) == (True, "")

    # The base is built again without its registry, because the pulled image is kept.
    for left in (*request_.cache.records.iterdir(), *request_.cache.package_list("x", "x", "x").parent.iterdir()):
        left.unlink()
    (again,) = pipeline.build(request_, "base")
    assert again.manifest == built.manifest
    assert not again.reused
    assert "pulling" not in capfd.readouterr().err


def test_missing_foreign_or_damaged_image_of_a_base_is_refused(
    shelf: Shelf, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    def fails(image: str, kind: type[ToolchainError], *, offline: bool = False) -> str:
        pinned(tmp_path, monkeypatch, image)
        with pytest.raises(kind) as caught:
            pipeline.build(replace(request_, offline=offline), "base")
        assert find_image(request_.cache, "toolchain-base-standin") == []
        return str(caught.value)

    place = f"{host}/el/ubi@"
    missing = fails(f"{place}sha256:{'1' * 64}", RegistryError)
    assert f"base standin cannot be pulled: {host} has no el/ubi@sha256:1111" in missing
    assert "it was 9 on 2026-11-22" in missing
    assert "--base oci:DIR" in missing
    assert f"has no image for linux/{HERE}" in (told := fails(f"{place}{shelf.elsewhere.digest}", RegistryError))
    assert "s390x" in told
    other = shelf.layout.children(shelf.elsewhere)[0].digest
    assert "is for linux/s390x" in fails(f"{place}{other}", UnsupportedError)
    assert "forbids" in fails(f"{place}{shelf.oci.digest}", UnreachableError, offline=True)
    # A layer or a manifest differs, because the registry's disk is damaged or its content is forged.
    data = tmp_path / "registry" / "data"

    def replace_blob(digest: str, content: bytes) -> None:
        (blob,) = data.rglob(f"{digest.removeprefix('sha256:')}/data")
        blob.write_bytes(content)

    manifest = shelf.layout.children(shelf.oci)[0]
    layer = shelf.layout.children(manifest)[1]
    replace_blob(layer.digest, b"x" * layer.size)
    assert "did not send the requested blob" in fails(f"{place}{shelf.oci.digest}", DigestError)
    # The registry itself refuses a manifest that is not JSON, so the forged one names another layer.
    honest = shelf.layout.blob(manifest.digest).read_bytes()
    forged = honest.replace(layer.digest.encode(), shelf.oci.digest.encode())
    assert forged != honest
    replace_blob(manifest.digest, forged)
    assert "did not send the requested manifest" in fails(f"{place}{shelf.oci.digest}", DigestError)


def test_unreachable_registry_of_a_base_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    monkeypatch.setattr("toolchain.core.web.LONGEST_BACKOFF", 0.01)
    with running_registry(tmp_path / "registry") as host:
        pass
    pinned(tmp_path, monkeypatch, f"{host}/el/ubi@sha256:{'1' * 64}")
    with pytest.raises(UnreachableError, match="standin") as caught:
        pipeline.build(request_, "base")
    assert "network" in caught.value.fix
