"""catalog.aotriton_generations: the plans and packs of each AOTriton release, and refusals before a fetch."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.catalog.aotriton_generations import (
    buildable,
    check_databases,
    databases_of,
    foreign_in,
    generation_of,
    generator_in,
    git_id,
    refuse,
    refuse_gpus_not_in,
)
from toolchain.catalog.gpus import known_gpus, parse_gpus
from toolchain.catalog.release_data import AotritonRelease, aotriton_releases
from toolchain.cli.build_options import make_request
from toolchain.core.errors import SourceError, UnsupportedError
from toolchain.pipeline.fetching import fetch_for
from toolchain.request.model import option_named
from toolchain.stages.aotriton import AotritonStage, gpus_by_pack, lacking
from toolchain.stages.aotriton_library import database_source, require_aotriton

RELEASES = aotriton_releases()


@pytest.mark.parametrize("row", RELEASES, ids=lambda row: row.name)
def test_each_release_has_generation_and_is_buildable_or_refused(row: AotritonRelease) -> None:
    name, gpus = row.name, row.gpus
    generation = generation_of(name)
    assert set(gpus) <= set(generation.gpus) <= set(known_gpus())
    assert bool(generation.packs) == (generation.layout != "library")
    assert {parse_gpus(word) for word in generation.words if word != "Unidentified"} <= {
        (gpu,) for gpu in generation.words.values()
    }
    packed = [gpu for pack in generation.packs.values() for gpu in pack]
    assert len(packed) == len(set(packed))
    if generation.refused:
        with pytest.raises(UnsupportedError) as caught:
            refuse(name, gpus[:1])
        assert (caught.value.why, caught.value.code) == (generation.refused, UnsupportedError.code)
    else:
        plain = [gpu for gpu in gpus if gpu not in generation.triton_for]
        refuse(name, plain, without=generation.foreign)
        refuse(name, gpus, own_triton=True, without=generation.foreign)
        assert (name in buildable()) == bool(row.commit and row.triton)
        if plain != list(gpus):
            with refused("aotriton-two-tritons") as refusal:
                refuse(name, gpus)
            assert set(refusal.value.why.split()) & set(generation.triton_for.values())
    # The databases of a release are unknown if its tag is not verified, because its tree was never read.
    assert bool(databases_of(name)) == (row.tag_certainty == "verified")


def test_foreign_kernels_must_be_excluded_by_name(tmp_path: Path) -> None:
    with refused("aotriton-other-compiler"):
        refuse("0.14b", ("gfx942",))
    refuse("0.14b", ("gfx942",), without=("flydsl",))
    with refused("nothing-left-out"):
        refuse("0.13b", ("gfx942",), without=("flydsl",))
    with refused("unknown-value"):
        option_named("without").value("cutlass")
    assert foreign_in(tmp_path) == ()
    (tmp_path / "third_party" / "FlyDSL").mkdir(parents=True)
    assert foreign_in(tmp_path) == ("flydsl",)


def test_generation_has_number_of_kernels_of_each_gpu() -> None:
    assert generation_of("0.11b").kernels(("gfx942",)) == 15647
    assert generation_of("0.13b").kernels(("gfx942", "gfx1201")) == 19001 + 23883
    assert generation_of("0.8b").kernels(("gfx942",)) is None, "its generator was not counted"


def test_gpu_that_release_does_not_support_is_refused() -> None:
    with refused("gpu-not-in-aotriton", "gfx1201"):
        refuse("0.7.1b", ("gfx942", "gfx1201"))
    with pytest.raises(UnsupportedError) as left_out:
        refuse("0.7.1b", ("gfx1101",))
    assert "gfx1101" in left_out.value.why


# --- a tree and its database ---


def tree_of(path: Path, *files: str) -> Path:
    for name in ("CMakeLists.txt", *files):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    return path


VERSION = """set(AOTRITON_VERSION_MAJOR_INT 0)
set(AOTRITON_VERSION_MINOR_INT {minor})
set(AOTRITON_VERSION_PATCH_INT {patch})
"""


def test_generation_is_found_by_generator_and_version_of_tree(tmp_path: Path) -> None:
    old = tree_of(tmp_path / "old", "v2src/CMakeLists.txt", "v2python/generate_compile.py", "tritonsrc/flash.py")
    assert generator_in(old) == "v2python"
    with pytest.raises(UnsupportedError) as caught:
        require_aotriton(old)
    assert "0.5b" in caught.value.why
    for file in ("v3src/CMakeLists.txt", "v3python/generate.py"):
        tree_of(old, file)
        (old / "CMakeLists.txt").write_text(VERSION.format(minor=11, patch=2))
    assert require_aotriton(old) == generation_of("0.11.2b")
    (old / "CMakeLists.txt").write_text(VERSION.format(minor=12, patch=7))
    assert require_aotriton(old).fields == 10
    with refused("aotriton-other-release", "0.13b"):
        require_aotriton(old, "0.13b")
    assert require_aotriton(old, "0.12.1b") == generation_of("0.12.1b")
    (old / "CMakeLists.txt").write_text("")
    with refused("aotriton-other-release", "0.13b"):
        require_aotriton(old, "0.13b")
    new = tree_of(
        tmp_path / "new", "v3src/CMakeLists.txt", "python/generate.py", "python/gpu_targets.py", "modules/flash/a.py"
    )
    assert generator_in(new) == "aotriton"
    require_aotriton(new)
    with pytest.raises(SourceError) as lacking:
        require_aotriton(tree_of(tmp_path / "cut", "python/gpu_targets.py"))
    assert "v3src/CMakeLists.txt" in lacking.value.what


def test_missing_empty_or_foreign_database_is_refused(tmp_path: Path) -> None:
    tree_of(tmp_path, "v2python/generate_compile.py", "v2python/autotune_config.py")
    (row,) = databases_of("0.7.1b")
    with pytest.raises(SourceError) as missing:
        check_databases(tmp_path, "0.7.1b")
    assert row.id in missing.value.fix
    place = tmp_path / row.path
    place.parent.mkdir(parents=True)
    place.touch()
    for release in ("0.7.1b", ""):
        with refused("tuning-empty"):
            check_databases(tmp_path, release)
    place.write_text("a database")
    check_databases(tmp_path, "")
    with pytest.raises(SourceError) as refusal:
        check_databases(tmp_path, "0.7.1b")
    assert git_id(place) in refusal.value.why


def test_given_database_replaces_database_of_tree(tmp_path: Path) -> None:
    tree = tree_of(tmp_path / "t", "v2python/generate_compile.py", "v2python/autotune_config.py")
    given = tmp_path / "given.sqlite3"
    given.write_text("a database")
    (row,) = databases_of("0.7.1b")
    assert check_databases(tree, "", given) == row
    for release, text in (("0.7.1b", str(given)), ("0.11b", "AOTriton 0.11b does not use")):
        with pytest.raises(SourceError) as refusal:
            check_databases(tree, release, given)
        assert text in refusal.value.what
        assert git_id(given) in refusal.value.why
    given.write_text("")
    with refused("tuning-empty"):
        check_databases(tree, "", given)


def test_unreleased_tree_must_contain_databases_that_it_needs(tmp_path: Path) -> None:
    tree = tree_of(tmp_path / "t", "v3python/generate.py", "v3python/rules/tuning_database.sqlite3")
    cmake = tree / "CMakeLists.txt"
    cmake.write_text(VERSION.format(minor=11, patch=0))
    (tree / "v3python/rules/tuning_database.sqlite3").write_text("rows")
    assert check_databases(tree, "") is None
    cmake.write_text(f"{cmake.read_text()}unpack(op_database)\n")
    with refused("tuning-missing"):
        check_databases(tree, "")
    (tree / "v3python/rules/tuning_database.sqlite3").unlink()
    cmake.write_text(cmake.read_text().replace("op_database", ""))
    with refused("tuning-missing"):
        check_databases(tree, "")


def test_plan_refuses_database_of_another_release(tmp_path: Path) -> None:
    given = tmp_path / "given.sqlite3"
    given.write_bytes(b"SQLite format 3\0")
    request = make_request(
        aotriton="0.7.1b", gpu="gfx942", source=[f"aotriton-database={given}"], cache=tmp_path / "cache"
    )
    with refused("tuning-mismatch", "0.7.1b"):
        AotritonStage().plan(request, {})


def test_fetch_does_not_unpack_packed_database(tmp_path: Path) -> None:
    given = tmp_path / "tuning_database.sqlite3.tar.xz"
    with tarfile.open(given, "w:xz") as archive:
        archive.add(tree_of(tmp_path / "t") / "CMakeLists.txt", "tuning_database.sqlite3")
    request = make_request(source=[f"aotriton-database={given}"], cache=tmp_path / "cache")
    source = database_source(request)
    assert source is not None
    assert git_id(fetch_for(request, source).path) == git_id(given)


def test_gpu_that_unreleased_tree_does_not_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v3python").mkdir()
    refuse_gpus_not_in(tmp_path, "v3python", ("gfx1103",))
    (tmp_path / "v3python/gpu_targets.py").write_text("GPUS = ('gfx942_mod0', 'gfx1100_mod0', 'gfx11030')\n")
    refuse_gpus_not_in(tmp_path, "v3python", ("gfx942", "gfx1100"))
    with refused("gpu-not-in-aotriton", "gfx1103"):
        refuse_gpus_not_in(tmp_path, "v3python", ("gfx942", "gfx1103"))


def test_git_id_equals_id_of_git_write_tree(tmp_path: Path) -> None:
    top = tmp_path / "t"
    tree_of(top, "a.b/file", "a/deep/file", "a-b")
    (top / "run").write_text("#!/bin/sh\n")
    (top / "run").chmod(0o755)
    (top / "link").symlink_to("run")
    expected = git_id(top)
    git = ["git", "-C", str(top), "-c", "core.fileMode=true"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    of_git = subprocess.run([*git, "write-tree"], check=True, capture_output=True, text=True).stdout.strip()
    shutil.rmtree(top / ".git")
    assert git_id(top) == of_git == expected


def test_packs_follow_generation_and_not_gpu_table() -> None:
    """AOTriton 0.11b has one pack for gfx1100 and gfx1150; later releases have two."""
    old = generation_of("0.11b")
    assert gpus_by_pack(("gfx1100", "gfx1150"), old) == {"amd-gfx11xx": ["gfx1100", "gfx1150"]}
    every = tuple(sorted(gpu for gpus in old.packs.values() for gpu in gpus))
    assert lacking(every, old) == {}
    assert lacking(("gfx1100",), generation_of("0.13b")) == {"amd-gfx110x": ("gfx1101", "gfx1102", "gfx1103")}
