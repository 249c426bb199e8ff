"""publish.plain_files: archives and wheels from the cache, and their names."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import record
from tests.refusals import refused
from toolchain.catalog.gpus import known_gpus, short_list
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.record import Record, RecordedSource
from toolchain.oci.image import ImageSpec, add_layer, write_image
from toolchain.oci.layer import compress, write_layer, write_tar_gz
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import write_record
from toolchain.publish.plain_files import check_folder, write_archives
from toolchain.request.model import Request
from toolchain.sources.commit_archives import commit_archives
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store
from toolchain.sources.tree import tree_digest

SHA1 = "30ae96716b3e7a1bf0d7892ce3b8288244f8ebec"
GOOD = {"done": 9, "failed": 0, "timed_out": 0}
ALL = short_list(known_gpus())


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(cache=Cache(tmp_path / "cache"))


def built(request: Request, name: str, image: str, files: Mapping[str, str], facts: Mapping[str, Any]) -> Record:
    """Return the record of a finished stage with one layer on a base."""
    tree = request.cache.root / "made" / name
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    layout = Layout(request.cache.images).ensure()
    blob = compress(write_layer(tree, request.cache.root / "raw.tar"), request.cache.root / "blob")
    layer = add_layer(layout, blob)
    manifest = write_image(layout, ImageSpec(arch="amd64", layers=(layer,)))
    base = record(stage="base", image="toolchain-base-debian13", inputs={"base": "debian13"})
    write_record(request.cache, base)
    return record(
        stage=name,
        image=image,
        inputs={"base": base.input_digest},
        manifest=manifest.digest,
        layers=[layer.descriptor.as_json()],
        facts=dict(facts),
    )


def members(path: Path) -> set[str]:
    with tarfile.open(path) as tar:
        return {one.name for one in tar if one.isfile()}


def aotriton(
    request: Request, kernels: Mapping[str, int] = GOOD, *, limit: int | None = None, kind: str = "git"
) -> Record:
    top = "usr/lib64/aotriton-30ae9671"
    files = {
        f"{top}/lib/libaotriton_v2.so": "so",
        f"{top}/include/aotriton/config.h": "h",
        f"{top}/lib/cmake/aotriton/aotriton-config.cmake": "c",
        f"{top}/lib/aotriton.images/amd-gfx942/flash/attn_fwd.zip": "zip",
        f"{top}/lib/aotriton.images/amd-gfx942/__signature__": "{}",
        f"{top}/lib/aotriton.images/amd-gfx110x/flash/attn_fwd.zip": "zip",
    }
    facts = {
        "prefix": f"/{top}",
        "sha1": SHA1,
        "hip": "5.7.31921",
        "kernels": kernels,
        "packs": ["amd-gfx110x", "amd-gfx942"],
        "gpus": list(known_gpus()),
    }
    source = RecordedSource(name="aotriton", ref="30ae9671", repository="", kind=kind, locked=True)
    made = built(request, "aotriton", "aotriton-30ae9671-debian13", files, facts)
    return replace(made, inputs={**made.inputs, "select": "", "limit": limit}, sources=(source,))


def test_llvm_archive_is_named_as_upstream(request_: Request, tmp_path: Path) -> None:
    prefix = "/usr/lib64/llvm-triton-10dc3a8e"
    one = built(
        request_, "llvm", "llvm-triton-10dc3a8e-debian13", {f"{prefix[1:]}/bin/FileCheck": "x"}, {"prefix": prefix}
    )
    (path,) = write_archives(request_.cache, [one], tmp_path / "out dir")
    assert path.name == "llvm-10dc3a8e-debian13-x64.tar.gz"
    assert members(path) == {"llvm-10dc3a8e-debian13-x64/bin/FileCheck"}


def test_existing_archives_are_not_packed_again(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, out = aotriton(request_), tmp_path / "out"
    first = write_archives(request_.cache, [one], out)
    content = [path.read_bytes() for path in first]
    packed: list[str] = []

    def counted(tree: Path, out: Path, **how: Any) -> str:
        packed.append(out.name)
        return write_tar_gz(tree, out, **how)

    monkeypatch.setattr("toolchain.publish.plain_files.write_tar_gz", counted)
    assert write_archives(request_.cache, [one], out) == first
    assert packed == []
    # If one file is missing or was changed, all are packed again.
    first[1].unlink()
    assert write_archives(request_.cache, [one], out) == first
    first[0].write_bytes(content[0][:-1] + b"x")
    write_archives(request_.cache, [one], out)
    for note in (request_.cache.root / "archives").iterdir():
        note.write_text("{")
    write_archives(request_.cache, [one], out)
    assert packed == [path.name for path in first] * 3
    assert [path.read_bytes() for path in first] == content


def test_aotriton_gets_archive_of_library_and_one_per_pack(request_: Request, tmp_path: Path) -> None:
    paths = write_archives(request_.cache, [aotriton(request_)], tmp_path)
    assert [path.name for path in paths] == [
        f"aotriton-30ae96716b3e-debian13_x86_64-hip5.7-{ALL}-shared.tar.gz",
        "aotriton-30ae96716b3e-images-amd-gfx110x.tar.gz",
        "aotriton-30ae96716b3e-images-amd-gfx942.tar.gz",
    ]
    assert members(paths[0]) == {
        "aotriton/lib/libaotriton_v2.so",
        "aotriton/include/aotriton/config.h",
        "aotriton/lib/cmake/aotriton/aotriton-config.cmake",
    }
    assert members(paths[2]) == {
        "aotriton/lib/aotriton.images/amd-gfx942/flash/attn_fwd.zip",
        "aotriton/lib/aotriton.images/amd-gfx942/__signature__",
    }


def test_portable_library_gets_one_archive_per_rocm(request_: Request, tmp_path: Path) -> None:
    top, facts = "usr/lib64/aotriton-30ae9671", aotriton(request_).facts
    files = {f"{top}/rocm{one}/lib/libaotriton_v2.so": one for one in "67"}
    files |= {f"{top}/lib/aotriton.images/{pack}/__signature__": "{}" for pack in facts["packs"]}
    made = built(request_, "aotriton", "aotriton-30ae9671", files, {**facts, "rocm": {"6": {}, "7": {}}})
    one = replace(made, inputs={**made.inputs, "glibc": "2.31"}, sources=aotriton(request_).sources)
    paths = write_archives(request_.cache, [one], tmp_path)
    assert [path.name for path in paths] == [
        f"aotriton-30ae96716b3e-glibc_2_31_x86_64-rocm6-{ALL}-shared.tar.gz",
        f"aotriton-30ae96716b3e-glibc_2_31_x86_64-rocm7-{ALL}-shared.tar.gz",
        "aotriton-30ae96716b3e-images-amd-gfx110x.tar.gz",
        "aotriton-30ae96716b3e-images-amd-gfx942.tar.gz",
    ]
    assert members(paths[1]) == {"aotriton/lib/libaotriton_v2.so"}
    assert all(one.startswith("aotriton/lib/aotriton.images/amd-gfx942/") for one in members(paths[3]))


def test_name_shows_partial_build_and_known_bad_kernels(request_: Request, tmp_path: Path) -> None:
    one = aotriton(request_, {"done": 7, "failed": 1, "timed_out": 1}, limit=7)
    paths = write_archives(request_.cache, [one], tmp_path)
    assert paths[2].name == "aotriton-30ae96716b3e-images-partial-knownbad2-amd-gfx942.tar.gz"
    # The library of an old release holds its kernels and has no packs.
    (path,) = write_archives(request_.cache, [replace(one, facts={**one.facts, "packs": []})], tmp_path)
    assert path.name == f"aotriton-30ae96716b3e-debian13_x86_64-hip5.7-{ALL}-partial-knownbad2-shared.tar.gz"


def test_name_of_pack_without_all_gpus_lists_its_gpus(request_: Request, tmp_path: Path) -> None:
    one = aotriton(request_)
    more = {
        "gpus": ["gfx1100", "gfx1102", "gfx942"],
        "lacking": {"amd-gfx110x": ["gfx1101", "gfx1103"]},
        "gpus_by_pack": {"amd-gfx110x": ["gfx1100", "gfx1102"]},
    }
    one = replace(one, facts={**one.facts, **more})
    assert [path.name for path in write_archives(request_.cache, [one], tmp_path)] == [
        "aotriton-30ae96716b3e-debian13_x86_64-hip5.7-gfx1100-gfx1102-gfx942-shared.tar.gz",
        "aotriton-30ae96716b3e-images-partial-gfx1100-gfx1102-amd-gfx110x.tar.gz",
        "aotriton-30ae96716b3e-images-amd-gfx942.tar.gz",
    ]


def test_known_bad_kernels_are_in_name_of_their_pack_only(request_: Request, tmp_path: Path) -> None:
    one = aotriton(request_, {"done": 7, "failed": 2, "timed_out": 0})
    one = replace(one, facts={**one.facts, "known_bad_by_pack": {"amd-gfx110x": 2}})
    assert [path.name for path in write_archives(request_.cache, [one], tmp_path)][1:] == [
        "aotriton-30ae96716b3e-images-knownbad2-amd-gfx110x.tar.gz",
        "aotriton-30ae96716b3e-images-amd-gfx942.tar.gz",
    ]


def test_archive_of_checkout_is_named_by_its_tree(request_: Request, tmp_path: Path) -> None:
    paths = write_archives(request_.cache, [aotriton(request_, kind="local")], tmp_path)
    assert paths[2].name == "aotriton-tree30ae96716b3e-images-amd-gfx942.tar.gz"


def test_an_archive_of_a_known_commit_has_the_commit_in_its_name(request_: Request, tmp_path: Path) -> None:
    known, one = commit_archives()[0], aotriton(request_, kind="archive")
    one = replace(
        one,
        sources=(replace(one.sources[0], digest=known.digest),),
        facts={**one.facts, "sha1": known.sha256[:40]},
    )
    paths = write_archives(request_.cache, [one], tmp_path)
    assert paths[2].name == f"aotriton-{known.commit[:12]}-images-amd-gfx942.tar.gz"


def test_built_wheel_is_written_and_wheel_of_pypi_is_not(request_: Request, tmp_path: Path) -> None:
    wheel = tmp_path / "triton-3.6.0-cp313-cp313-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    digest = sha256_file(wheel)
    store = Store(request_.cache.store)
    store.partial.mkdir(parents=True)
    facts = {"wheels": [{"file": wheel.name, "digest": digest, "bytes": 5}]}
    one = built(request_, "triton", "triton-d8da7c99-debian13", {"usr/lib/x": "x"}, facts)
    with refused("stored-wheel-missing"):
        write_archives(request_.cache, [one], tmp_path / "out")
    store.add_file(wheel, digest, name=wheel.name)
    (path,) = write_archives(request_.cache, [one], tmp_path / "out")
    assert (path.name, path.read_bytes()) == (wheel.name, b"wheel")
    path.write_bytes(b"edited in place")
    (path,) = write_archives(request_.cache, [one], tmp_path / "out")
    assert path.read_bytes() == b"wheel", "the store keeps its own"
    of_index = built(request_, "triton", "triton-wheel-3.7.1-debian13", {"usr/lib/x": "x"}, {"wheel_bytes": 5})
    assert write_archives(request_.cache, [of_index], tmp_path / "out") == []


def test_unusable_output_folder_is_refused(tmp_path: Path) -> None:
    check_folder("llvm", tmp_path / "out with 'quotes'" / "files", {})
    assert list((tmp_path / "out with 'quotes'" / "files").iterdir()) == []
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/no such folder")):
        with refused("archive-unwritable"):
            check_folder("llvm", folder, {})
    with refused("option-not-for-stage"):
        check_folder("base", tmp_path / "never", {})
    assert not (tmp_path / "never").exists()


def test_output_folder_in_source_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel in the source would be an input of the next build."""
    tree = tmp_path / "triton"
    tree.mkdir()
    (tmp_path / "link").symlink_to(tree)
    monkeypatch.chdir(tree)
    before = tree_digest(tree)
    sources = {"triton": parse_source_spec(str(tree), project="triton")}
    for folder in (Path("out/files"), tree, tmp_path / "link" / "files"):
        with refused("archive-in-source"):
            check_folder("triton", folder, sources)
    assert tree_digest(tree) == before
    check_folder("triton", tmp_path / "triton-files", sources)
    # LLVM takes only its pin from a checkout, so the folder may be in the source.
    check_folder("llvm", Path("out/files"), sources)
