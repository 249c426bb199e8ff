"""Tests of the parsers of sources and bases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.catalog.base_ref import BaseRef, parse_base
from toolchain.cli.build_options import make_request
from toolchain.core.errors import SourceError
from toolchain.pipeline.lockfile import LockedSource
from toolchain.request.model import options
from toolchain.sources.spec import SourceSpec, of_github, parse_source_spec

SHA = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
HEX = "a" * 64
WORDS = [
    f"https://example.test/r.git@{SHA}",
    f"ssh://git@example.test/r@{SHA.upper()}",
    f"https://example.test/a.tar.gz#sha256={HEX}",
    f"https://example.test/a.tar.gz@sha256:{HEX}",
    "distro:llvm-toolchain-22",
    "distro:llvm-toolchain-22=22.1.8",
    "pypi:triton",
    "pypi:3.7.1",
    "pypi:triton==3.7.1",
    f"stored:it.is-mine@sha256:{HEX}",
    "../it's a checkout",
    "~/triton-3.7.1-cp313-cp313-linux_x86_64.whl",
]


@pytest.mark.parametrize("text", WORDS)
def test_source_spec_keeps_the_typed_text(text: str) -> None:
    spec = parse_source_spec(text, project="triton")
    assert str(spec) == text
    bare = SourceSpec(kind=spec.kind, where=spec.where, version=spec.version)
    assert bare == spec, "words play no part"
    assert parse_source_spec(str(bare)) == spec, "and what the tool names by itself can be read again"


def test_pypi_version_without_a_project_uses_the_name_of_the_source(tmp_path: Path) -> None:
    request = make_request(cache=tmp_path, source=["triton=pypi:3.7.1", "flash-attn=pypi:2.8.3"])
    assert request.sources["triton"] == SourceSpec(kind="pypi", where="triton", version="3.7.1")
    assert request.sources["flash-attn"] == SourceSpec(kind="pypi", where="flash-attn", version="2.8.3")


@pytest.mark.parametrize("text", ["https://example.test/r@main", "stored:x@sha256:1", "distro:a b", "git@host:r"])
def test_malformed_source_is_refused_when_the_request_is_made(text: str, tmp_path: Path) -> None:
    """The request checks the sources of all stages, because a failure in a later stage would cost hours."""
    with pytest.raises(SourceError):
        make_request(cache=tmp_path, source=[f"aotriton={text}"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"https://host:99999/x@{SHA}", "port"),
        (f"https://host:0/x#sha256={HEX}", "port"),
        (f"https:///x@{SHA}", "host"),
        (f"https://host/x y@{SHA}", "space"),
        (f"git://host/x@{SHA}", "https"),
        (f"HTTP://host/x#sha256={HEX}", "TLS"),
        ("HTTPS://host/x@main", "change"),
        ("distro:", "missing"),
        ("distro:Foo", "'Foo'"),
        ("distro:llvm-toolchain-22=", "version after ="),
        ("pypi:triton=3.7.1", "'triton=3.7.1'"),
        ("pypi:triton==3 7", "'3 7'"),
    ],
)
def test_source_error_names_the_fault(text: str, says: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source_spec(text, project="triton")
    assert says in caught.value.why
    assert says == "port" or caught.value.fix


def test_a_scheme_may_be_in_capitals() -> None:
    where = "https://github.com/a/B"
    assert parse_source_spec(f"HTTPS://github.com/a/B@{SHA}") == SourceSpec(kind="git", where=where, version=SHA)


@pytest.mark.parametrize(
    ("text", "write"),
    [("DISTRO:x", "distro:x"), ("PyPI:3.7.1", "pypi:3.7.1"), (f"https:/host/x@{SHA}", f"https://host/x@{SHA}")],
)
def test_misspelled_source_scheme_is_refused_with_the_correct_text(text: str, write: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        make_request(cache=tmp_path, source=[f"triton={text}"])
    assert caught.value.fix == f"write {write}"


@pytest.mark.parametrize("text", ["oci:", "oci:dir@sha256:12", "oci:dir:no tag"])
def test_malformed_base_is_refused_when_the_request_is_made(text: str, tmp_path: Path) -> None:
    with refused("not-a-reference"):
        make_request(cache=tmp_path, base=text)


def test_base_names_a_recipe_or_an_image() -> None:
    assert parse_base("debian13") == BaseRef(recipe="debian13")
    local = parse_base("oci:/a:b/")
    assert local.image is not None
    assert (local.recipe, local.image.path, local.image.tag, str(local)) == ("", Path("/a:b"), None, "oci:/a:b/")


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("llvm=checkout", "llvm=sub/checkout"),
        ("llvm=some@mirror/a:b", "llvm=sub/some@mirror/a:b"),
        ("llvm=distro:checkout", "llvm=distro:checkout"),
        ("llvm=https://example.test/r@main", "llvm=https://example.test/r@main"),
        ("llvm=/checkout", "llvm=/checkout"),
    ],
)
def test_only_a_relative_path_source_is_joined_to_the_folder_of_its_file(text: str, there: str) -> None:
    source = next(one for one in options() if one.field == "sources")
    assert source.below(Path("sub"), text) == there


def test_locked_source_converts_to_a_source_spec() -> None:
    def locked(kind: str, ref: str, **more: str) -> LockedSource:
        given = {"repository": kind, "digest": f"sha256:{HEX}", **more}
        return LockedSource(name="triton", kind=kind, ref=ref, **given)  # type: ignore[arg-type]

    where = "https://github.com/triton-lang/triton"
    assert locked("git", SHA, repository=where).spec == of_github("triton-lang/triton", SHA)
    assert str(locked("local", "local:mine").spec) == f"stored:mine@sha256:{HEX}"
    for name in ("my llvm", "..", "_x", "a@b", "é"):  # a bundle's command must name a checkout of any name
        spec = locked("local", f"local:{name}").spec
        assert parse_source_spec(str(spec)) == spec
    for ref in ("distro:llvm-toolchain-22=22.1.8", "pypi:triton==3.7.1"):
        assert str(locked(ref.partition(":")[0], ref).spec) == ref
