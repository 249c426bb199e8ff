from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.errors import ConfigError
from toolchain.oci.reference import LayoutRef, RegistryRef, parse

HEX = "a" * 64


@pytest.mark.parametrize(
    ("text", "path", "tag", "digest"),
    [
        ("oci:out", "out", None, None),
        ("oci:/a/b:latest", "/a/b", "latest", None),
        ("oci:/with space/it's:v1.0_x-2", "/with space/it's", "v1.0_x-2", None),
        ("oci:/a:b/c:t", "/a:b/c", "t", None),
        ("oci:/a:b/", "/a:b", None, None),
        ("oci:/a:b:t", "/a:b", "t", None),
        (f"oci:/a@sha256:{HEX}", "/a", None, f"sha256:{HEX}"),
        (f"oci:/a:t@sha256:{HEX}", "/a", "t", f"sha256:{HEX}"),
        ("oci:/a@b", "/a@b", None, None),
    ],
)
def test_layout_reference_is_parsed(text: str, path: str, tag: str | None, digest: str | None) -> None:
    assert parse(text) == LayoutRef(Path(path), tag, digest)


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("127.0.0.1:5000/ns", "127.0.0.1:5000", "ns", None, None),
        (
            "127.0.0.1:5000/ns/llvm-triton-10dc3a8e-ubi9:latest",
            "127.0.0.1:5000",
            "ns/llvm-triton-10dc3a8e-ubi9",
            "latest",
            None,
        ),
        ("localhost/a__b/c.d", "localhost", "a__b/c.d", None, None),
        (f"ghcr.io/o/n@sha256:{HEX}", "ghcr.io", "o/n", None, f"sha256:{HEX}"),
        (f"ghcr.io/o/n:t@sha256:{HEX}", "ghcr.io", "o/n", "t", f"sha256:{HEX}"),
        ("[::1]:5000/a", "[::1]:5000", "a", None, None),
        ("r.example/ns/", "r.example", "ns", None, None),
    ],
)
def test_registry_reference_is_parsed(
    text: str, host: str, repository: str, tag: str | None, digest: str | None
) -> None:
    assert parse(text) == RegistryRef(host, repository, tag, digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "oci:",
        "oci:dir:bad tag",
        "oci:dir@sha256:abc",
        "ubuntu",
        "docker://ghcr.io/a/b",
        "ghcr.io",
        "ghcr.io/UPPER/x",
        "ghcr.io/a//b",
        "ghcr.io/a/../b",
        "ghcr.io/a:b:c",
        "ghcr.io/a@sha256:abc",
        f"ghcr.io/a@sha512:{HEX}",
        "ghcr.io/" + "a/" * 140 + "b",
        "-x.io/a",
        "host:port/a",
    ],
)
def test_invalid_reference_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.why


def test_reference_round_trips_through_str() -> None:
    for text in ("oci:/a b:t", f"oci:x@sha256:{HEX}", "h.io/a/b:t", f"h.io/a@sha256:{HEX}"):
        assert str(parse(text)) == text
    assert parse(str(LayoutRef(Path("/a"), "t"))) == LayoutRef(Path("/a"), "t")


def test_reference_gives_the_place_of_each_image() -> None:
    folder, namespace = parse("oci:/some where:t"), parse("h.example/ns:t")
    assert str(folder.image("llvm")) == "oci:/some where:llvm"
    assert str(folder.image("llvm", "0123")) == "oci:/some where:llvm.0123"
    assert str(namespace.image("llvm")) == "h.example/ns/llvm:latest"
    assert str(namespace.image("llvm", "0123")) == "h.example/ns/llvm:0123"
    with pytest.raises(ConfigError):
        namespace.image("No Name")


@pytest.mark.parametrize("host", ["[1:2]:5000", "[:::]", "host.example:99999", "host.example:0"])
def test_invalid_host_is_refused(host: str) -> None:
    with refused("not-a-reference"):
        parse(f"{host}/ns/name")
