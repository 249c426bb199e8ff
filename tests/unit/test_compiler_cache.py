"""Tests of compiler caches: which builds share a cache, and when caches are removed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.request_fixtures import request_of
from toolchain.core.cache import Cache
from toolchain.core.errors import LimitError
from toolchain.core.recipe import Recipe
from toolchain.pipeline.compiler_cache import NONE, compiler_caches, key_of, remove_unused, trim, using
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.stage import Built, Planned

SOURCE = Source(
    name="llvm", kind="archive", where="a", version="1", digest="sha256:" + "1" * 64, path=None, locked=True
)


def _planned(source: Source = SOURCE) -> Planned:
    return Planned(name="llvm", image="llvm", inputs={}, sources=(source,))


def _below(name: str, digit: str) -> Built:
    return Built(planned=Planned(name=name, image=name, inputs={}), input_digest=digit * 64, manifest="", layers=())


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return request_of(cache=Cache(tmp_path / "cache"))


def test_cache_key_depends_on_sources_locks_patches_base_and_built_stages(request_: Request, tmp_path: Path) -> None:
    patch = tmp_path / "p"
    patch.write_text("x")
    base, sysroot = _below("base", "2"), _below("sysroot", "3")
    below = {"base": base, "sysroot": sysroot}
    keys = [
        key_of(request_, _planned(), below),
        key_of(request_, _planned(replace(SOURCE, digest="sha256:" + "9" * 64)), below),
        key_of(request_, _planned(replace(SOURCE, locked=False)), below),
        key_of(replace(request_, patches={"llvm": (patch,)}), _planned(), below),
        key_of(request_, _planned(), {**below, "base": _below("base", "4")}),
        key_of(request_, _planned(), {**below, "llvm": _below("llvm", "5")}),
    ]
    assert len(set(keys)) == len(keys)
    other_system = {**below, "sysroot": _below("sysroot", "6")}
    assert key_of(replace(request_, only="support"), _planned(), other_system) == keys[0], "a part, for another system"


def test_fresh_build_or_source_without_digest_uses_no_compiler_cache(request_: Request) -> None:
    assert key_of(replace(request_, fresh=True), _planned(), {}) == NONE
    assert key_of(request_, _planned(replace(SOURCE, digest=None)), {}) == NONE


def test_trim_removes_the_least_recently_used_caches_above_the_limit(request_: Request) -> None:
    cache = request_.cache
    for number, key in enumerate(("old", "young", "own")):
        with using(cache, key, [SOURCE]):
            pass
        folder = cache.mounts / "buildah-cache" / f"toolchain-ccache-{key}"
        folder.mkdir(parents=True)
        (folder / "object").write_bytes(os.urandom(50_000))
        os.utime(cache.compiler_caches / f"{key}.json", (number, number))
    os.utime(cache.compiler_caches / "own.json", (0, 0))
    assert [known.key for known in trim(cache, keep="own", limit=120_000)] == ["old"]
    assert [known.key for known in compiler_caches(cache)] == ["own", "young"]
    assert [known.key for known in trim(cache, keep="own", limit=1)] == ["young"]
    assert [path.name for path in (cache.mounts / "buildah-cache").iterdir()] == ["toolchain-ccache-own"]


def test_compiler_cache_in_use_is_not_removed(request_: Request) -> None:
    """Each compilation of the other build would fail without the folder of its cache."""
    cache = request_.cache
    with using(cache, "theirs", [SOURCE]), using(cache, "own", [SOURCE]):
        folder = cache.mounts / "buildah-cache" / "toolchain-ccache-theirs"
        folder.mkdir(parents=True)
        (folder / "object").write_bytes(os.urandom(50_000))
        assert trim(cache, keep="own", limit=1) == []
        remove_unused(cache, "theirs")
        assert (folder / "object").is_file()
    assert [known.key for known in trim(cache, keep="own", limit=1)] == ["theirs"]


def test_unused_compiler_cache_is_removed(request_: Request) -> None:
    folder = request_.cache.mounts / "buildah-cache" / "toolchain-ccache-own"
    folder.mkdir(parents=True)
    remove_unused(request_.cache, "own")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("discards", "used", "stays"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_build_at_a_disk_limit_removes_its_compiler_cache_unless_in_use(
    request_: Request, discards: bool, used: bool, stays: bool
) -> None:
    folder = request_.cache.mounts / "buildah-cache" / "toolchain-ccache-own"
    folder.mkdir(parents=True)

    def build(*_: Any, **__: Any) -> None:
        error = LimitError("container-limit", "x", fix="y")
        error.discards = discards
        raise error

    fake: Any = SimpleNamespace(weigh=lambda *_, **__: None, build=build)
    workspace = BuildWorkspace(request_, request_.cache.root / "log", fake, "llvm", fake, "own", _engine=fake)
    with contextlib.ExitStack() as stack:
        if used:
            stack.enter_context(using(request_.cache, "own", [SOURCE]))
        with pytest.raises(LimitError):
            workspace.build(Recipe(name="llvm", containerfile="containerfiles/llvm/Containerfile", base="b"))
        assert folder.exists() == stays


def test_compiler_cache_that_cannot_be_removed_is_still_listed(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = request_.cache
    with using(cache, "own", [SOURCE]):
        pass
    (cache.mounts / "buildah-cache" / "toolchain-ccache-own").mkdir(parents=True)
    monkeypatch.setattr("toolchain.engine.storage.discard", lambda _: False)
    assert not remove_unused(cache, "own")
    assert [known.key for known in compiler_caches(cache)] == ["own"]
