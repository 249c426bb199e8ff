"""Rules of known registries: hosts, names and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.places import publish
from tests.refusals import refused
from toolchain.core.errors import ConfigError, RegistryError, ToolchainError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import parse
from toolchain.oci.registry import Registry
from toolchain.oci.registry_rules import UNKNOWN, check_sizes, for_host, for_location, known

DOCS = Path(__file__).resolve().parents[2] / "docs" / "registries.md"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("ghcr.io", "GHCR"),
        ("GHCR.io:443", "GHCR"),
        ("docker.io", "Docker Hub"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com", "ECR"),
        ("eu.gcr.io", "gcr.io"),
        ("127.0.0.1:5000", "unknown"),
        ("ghcr.io.example", "unknown"),
    ],
)
def test_registry_is_recognized_by_host(host: str, name: str) -> None:
    assert for_host(host).name == name


def test_docker_registry_is_recognized_by_upload_location() -> None:
    assert for_location("/v2/a/b/blobs/uploads/1?_state=x").upload == "chunks"
    assert for_location("/v2/a/b/blobs/uploads/1") is UNKNOWN
    assert UNKNOWN.upload == "whole"


def test_the_documentation_has_a_row_for_each_registry() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert [one.name for one in known() if page.count(f"\n| {one.name} |") != 2] == []


def artifact(layout: Layout, size: int = 0) -> Descriptor:
    """Return the manifest of an artifact whose layer claims to have `size` bytes."""
    blob = layout.put_bytes(b"blob", media.LAYER)
    layer = {**blob.as_json(), "size": size or blob.size}
    config = layout.put_bytes(b"{}", media.EMPTY).as_json()
    value = {"schemaVersion": 2, "mediaType": media.MANIFEST, "config": config, "layers": [layer]}
    made = layout.put_json(value, media.MANIFEST)
    return Descriptor(made.media_type, made.digest, made.size, artifact_type="test/x")


@pytest.mark.parametrize(
    ("dest", "size", "error", "what"),
    [
        ("docker.io/ns/name/deeper", 0, ConfigError, "repository-name-refused"),
        ("ghcr.io/name", 0, ConfigError, "repository-name-refused"),
        ("europe-docker.pkg.dev/project/name", 0, ConfigError, "repository-name-refused"),
        ("ghcr.io/owner/name", 10_000_000_001, RegistryError, "registry-size-limit"),
        ("public.ecr.aws/alias/name", 10_485_760_001, RegistryError, "registry-size-limit"),
    ],
)
def test_unsupported_name_or_size_is_refused_before_a_request(
    tmp_path: Path, dest: str, size: int, error: type[ToolchainError], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: object, **__: object) -> None:
        pytest.fail("something was sent")

    layout = Layout(tmp_path / "layout").ensure()
    top = artifact(layout, size)
    ref = parse(dest)
    with Registry(str(dest.partition("/")[0]), login="") as registry:
        monkeypatch.setattr(registry, "request", send)
        with pytest.raises(error) as caught:
            publish(layout, top, ref, ["t"], registry=registry)
    assert caught.value.id == what


@pytest.mark.parametrize("tag", ["a" * 129, "-x", "a b", "a:b", ""])
def test_invalid_tag_is_refused_before_a_request(tmp_path: Path, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path / "layout").ensure()
    with Registry("127.0.0.1:1", login="") as registry:
        monkeypatch.setattr(registry, "request", lambda *_, **__: pytest.fail("something was sent"))
        with refused("not-a-tag"):
            publish(layout, artifact(layout), parse("127.0.0.1:1/ns/name"), [tag], registry=registry)


def test_manifest_over_the_limit_is_refused() -> None:
    large = Descriptor(media.MANIFEST, "sha256:" + "0" * 64, 5 << 20)
    with refused("registry-size-limit"):
        check_sizes(for_host("name.azurecr.io"), [large])
    check_sizes(UNKNOWN, [large])
