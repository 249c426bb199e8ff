"""Tests of the command that made an image, which is derived from its provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.request_fixtures import specs
from toolchain.core.cache import Cache
from toolchain.pipeline.records import asked_for
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.stages.unpacked import UnpackedStage
from toolchain.trust.invocation import request_command


def asked(tmp_path: Path, **options: Any) -> dict[str, Any]:
    """Return what a record contains about a request; the stage is the same for every request."""
    request = Request(cache=Cache(tmp_path), **{"glibc": DEFAULT_GLIBC, **options})
    planned = UnpackedStage("sysroot").plan(Request(cache=Cache(tmp_path), glibc=DEFAULT_GLIBC), {})
    return {**asked_for(request, planned), "stage": "llvm"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"arch": ("arm64",)}, " --arch arm64"),
        ({"glibc": "", "only": "support"}, " --base debian13 --only support"),
        ({"contract": False}, " --no-contract"),
        ({"allow_binary": ("a", "b")}, " --allow-binary a --allow-binary b"),
        ({"patches": {"llvm": (Path("/home/me/one.patch"),)}}, " --patch llvm=one.patch"),
        ({"sources": {"llvm": "/home/me/llvm-project", "triton": "https://example.org/triton@" + "a" * 40}}, ""),
    ],
)  # fmt: skip
def test_command_contains_the_options_of_the_request(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    if "sources" in options:
        options = {**options, "sources": specs(options["sources"])}
    assert request_command(asked(tmp_path, **options)) == f"toolchain build llvm{words}"


def test_options_of_campaigns_are_only_in_the_command_for_kernels() -> None:
    limited = {"keep_going": True, "limit": 3, "select": "attn fwd*", "shard": [1, 16]}
    told_of = " --select 'attn fwd*' --limit 3 --keep-going --shard 1/16"
    assert request_command({"stage": "kernels", **limited}) == f"toolchain kernels run kernels{told_of}"
    # An LLVM below the kernels does not depend on them, and `build` has no such option.
    assert request_command({"stage": "llvm", **limited, "triton": "3.6.0"}) == "toolchain build llvm --triton 3.6.0"


def test_command_names_sources_as_the_record_does() -> None:
    sources = {"llvm": "distro:llvm-toolchain-22=22.1.8", "triton": "local:x.tar.gz"}
    words = (
        "toolchain build llvm --base oci: --source llvm=distro:llvm-toolchain-22=22.1.8 --source triton=local:x.tar.gz"
    )
    assert request_command({"stage": "llvm", "base": "oci:", "sources": sources}) == words


@pytest.mark.parametrize("value", [None, [], "x", {}, {"stage": 1}], ids=repr)
def test_malformed_record_gives_no_command(value: Any) -> None:
    assert request_command(value) == ""


def test_hostile_values_are_escaped_or_give_no_command() -> None:
    assert request_command({"stage": "llvm\x1b[2J; rm -rf x", "triton": "a\nb"}).isprintable()
    assert request_command({"stage": "llvm\u202e"}) == ""
    assert request_command({"stage": "llvm", "triton": "x" * 10**6}) == ""
    assert request_command({"stage": "llvm; rm -rf x"}) == "toolchain build 'llvm; rm -rf x'"
