"""The command that made an image, out of its provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.request_fixtures import specs
from toolchain.build.record import asked_for
from toolchain.cache import Cache
from toolchain.request import DEFAULT_GLIBC, Request
from toolchain.stages.sysroot import SysrootStage
from toolchain.trust.invocation import invocation

COMMIT = f"https://example.org/triton@{'a' * 40}"


def told(parameters: Any) -> str:
    return invocation({"predicate": {"buildDefinition": {"externalParameters": parameters}}})


def asked(tmp_path: Path, **options: Any) -> dict[str, Any]:
    """What a record says of a request, for a stage that is the same in all of them."""
    request = Request(cache=Cache(tmp_path), **{"glibc": DEFAULT_GLIBC, **options})
    planned = SysrootStage().plan(Request(cache=Cache(tmp_path), glibc=DEFAULT_GLIBC), {})
    return {**asked_for(request, planned), "stage": "llvm"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"triton": "3.6.0"}, " --triton 3.6.0"),
        ({"arch": ("amd64", "arm64")}, " --arch amd64,arm64"),
        ({"glibc": "", "only": "support"}, " --base debian13 --only support"),
        ({"glibc": "2.28", "contract": False}, " --glibc 2.28 --no-contract"),
        ({"keep_going": True, "limit": 3}, " --keep-going --limit 3"),
        ({"allow_binary": ("a", "b")}, " --allow-binary a --allow-binary b"),
        ({"patches": {"llvm": (Path("/home/me/one.patch"),)}}, " --patch llvm=one.patch"),
        ({"sources": {"llvm": "/home/me/llvm-project"}}, " --source llvm=local:llvm-project"),
        ({"sources": {"llvm": "distro:llvm-toolchain-22"}}, " --source llvm=distro:llvm-toolchain-22"),
        ({"sources": {"triton": COMMIT}}, f" --source triton={COMMIT}"),
    ],
)  # fmt: skip
def test_what_was_asked_for_is_said(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    if "sources" in options:
        options = {**options, "sources": specs(options["sources"])}
    assert sorted(told(asked(tmp_path, **options)).split()) == sorted(f"toolchain build llvm{words}".split())


@pytest.mark.parametrize("value", [None, [], "x", {}, {"stage": 1}], ids=repr)
def test_of_another_form(value: Any) -> None:
    assert told(value) == ""


def test_a_stranger_paints_nothing() -> None:
    assert told({"stage": "llvm\x1b[2J; rm -rf x", "triton": "a\nb"}).isprintable()
    assert told({"stage": "llvm; rm -rf x"}) == "toolchain build 'llvm; rm -rf x'"
