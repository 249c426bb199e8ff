"""Compiled kernels as places store them: bundles, leftovers, links, and kernels that one GPU has and another lacks."""

from __future__ import annotations

import lzma
import random
import shutil
import struct
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.tests.emulated_objects import compile_all, rule
from lab.tests.json_runs import answer
from tests.kernel_fixtures import stored
from tests.nested_headers import nested_headers
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import (
    ConfigError,
    HostileInputError,
    KernelError,
    SourceError,
)
from toolchain.oci.layout import Layout
from toolchain_lab.examine.offload import Part, parts
from toolchain_lab.examine.places import opened
from toolchain_lab.numbers.collect import collect

zstd = pytest.importorskip("backports.zstd")
GPUS = ("gfx942", "gfx1100")
TARGET = "hipv4-amdgcn-amd-amdhsa--"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("campaign")
    compile_all([rule(top, name, gpu) for name in ("add", "row_sum") for gpu in GPUS])
    return top


def plain(*entries: tuple[str, bytes]) -> bytes:
    """Return an offload bundle whose code objects are on boundaries of 4 KiB."""
    rows = [("host-x86_64-unknown-linux-gnu--", b""), *entries]
    head = 32 + sum(24 + len(target) for target, _ in rows)
    listed, body, at = b"", b"", -(-head // 4096) * 4096
    for target, code in rows:
        listed += struct.pack("<QQQ", at, len(code), len(target)) + target.encode()
        body += code.ljust(-(-len(code) // 4096) * 4096, b"\0")
        at += -(-len(code) // 4096) * 4096
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(rows)) + listed
    return header.ljust(-(-head // 4096) * 4096, b"\0") + body


def ccob(content: bytes, version: int, *, method: int = 1, size: int | None = None) -> bytes:
    """Return content as a compressed offload bundle of a format version."""
    packed = zstd.compress(content) if method else zlib.compress(content)
    size = len(content) if size is None else size
    head = {
        1: struct.pack("<HHIQ", 1, method, size & 0xFFFFFFFF, 0),
        2: struct.pack("<HHIIQ", 2, method, 24 + len(packed), size & 0xFFFFFFFF, 0),
        3: struct.pack("<HHQQQ", 3, method, 32 + len(packed), size, 0),
    }[version]
    return b"CCOB" + head + packed


def library(section: bytes, name: bytes = b".hip_fatbin") -> bytes:
    """Return the smallest ELF file for a host that has a section of device code."""
    names = b"\0" + name + b"\0.shstrtab\0"
    at_names = 64 + len(section)
    at_headers = at_names + len(names)
    row = struct.Struct("<IIQQQQIIQQ")
    headers = (
        bytes(64)
        + row.pack(1, 1, 2, 0x1000, 64, len(section), 0, 0, 4096, 0)
        + row.pack(len(name) + 2, 3, 0, 0, at_names, len(names), 0, 0, 1, 0)
    )
    about = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at_headers, 0, 64, 0, 0, 64, 3, 2)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + about
    return head + section + names + headers


def bundle_of(campaign: Path, name: str = "add", gpus: tuple[str, ...] = GPUS) -> bytes:
    return plain(*((TARGET + gpu, (campaign / gpu / f"{name}-fp16.hsaco").read_bytes()) for gpu in gpus))


@pytest.mark.parametrize(
    ("section", "flags", "target"),
    [(b".nv_fatbin", 0x8011, "sm_90"), (b"__nv_relfatbin", 0x108011, "sm_90a"), (b".nv_fatbin", 0x208011, "sm_90f")],
)
def test_cuda_target_is_read_from_both_kinds_of_section(
    tmp_path: Path, section: bytes, flags: int, target: str
) -> None:
    element = struct.pack("<HHIQ12xI8xQ16x", 2, 0, 64, 0, 90, flags)
    content = b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(element)) + element
    (tmp_path / "lib.so").write_bytes(library(content, section))
    assert answer("audit", tmp_path)["gpus"] == {target: {}}


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content, "version 1": lambda content: ccob(content, 1),
    "version 2": lambda content: ccob(content, 2), "version 3": lambda content: ccob(content, 3),
    "zlib": lambda content: ccob(content, 2, method=0), "version 1, zlib": lambda content: ccob(content, 1, method=0),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gpus_of_bundles_in_a_library_are_found(tmp_path: Path, form: Callable[[bytes], bytes]) -> None:
    gpus = ("gfx942", "gfx1100", "gfx90a")
    objects = [form(plain((f"{TARGET}{gpu}:xnack-", b"code of " + gpu.encode()))) for gpu in gpus]
    section = b"".join(content.ljust(-(-len(content) // 4096) * 4096, b"\0") for content in objects)
    (tmp_path / "lib.so").write_bytes(library(section))
    result = answer("audit", tmp_path, "--gpu", "gfx942,gfx1100")
    assert result["libraries"][0]["targets"] == ["gfx1100", "gfx90a", "gfx942"]
    assert answer("audit", tmp_path, "--gpu", "gfx950", code=KernelError.code)["absent"] == ["gfx950"]


@pytest.mark.parametrize("before", [0, (1 << 20) - 64 - 20])  # the second header lies across two pieces of a megabyte
def test_gpu_of_a_bare_code_object_in_a_library_is_found(campaign: Path, tmp_path: Path, before: int) -> None:
    code = (campaign / "gfx942/add-fp16.hsaco").read_bytes()
    (tmp_path / "lib.so").write_bytes(library(bytes(before) + code, b".rodata"))
    assert answer("audit", tmp_path, "--gpu", "gfx942")["libraries"][0]["targets"] == ["gfx942"]


def test_runtime_does_not_count_as_kernels_of_a_gpu(campaign: Path, tmp_path: Path) -> None:
    """ROCm's runtime, which wheels for ROCm include, has kernels for all GPUs, but they only copy images."""
    code = (campaign / "gfx942/add-fp16.hsaco").read_bytes()
    (tmp_path / "libhsa-runtime64-0a1b2c3d.so.1").write_bytes(library(code, b".rodata"))
    result = answer("audit", tmp_path, "--gpu", "gfx942", code=KernelError.code)
    assert (result["gpus"], result["absent"]) == ({}, ["gfx942"])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_bundle_with_the_name_of_a_code_object_is_unpacked(
    campaign: Path, tmp_path: Path, form: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "add.hsaco").write_bytes(form(bundle_of(campaign)))
    assert answer("audit", tmp_path, "--gpu", "gfx942,gfx1100")["gpus"] == {gpu: {"add": 1} for gpu in GPUS}
    apart = tmp_path / "apart"
    for gpu in GPUS:
        (apart / gpu).mkdir(parents=True)
        shutil.copy(campaign / gpu / "add-fp16.hsaco", apart / gpu / "add.hsaco")
    assert answer("kernels", "diff", tmp_path / "add.hsaco", apart)["counts"]["same"] == 2


def test_bundle_is_emulated_and_collected_by_gpu(campaign: Path, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    bundle = tmp_path / "add-fp16.hsaco"
    bundle.write_bytes(ccob(bundle_of(campaign), 3))
    shutil.copy(campaign / "gfx1100" / "add-fp16.json", bundle.with_suffix(".json"))
    arguments = [word for name in ("x", "y", "out") for word in ("--arg", f"{name}=normal:300")]
    words = ("emulate", bundle, "--grid", "2", *arguments, "--arg", "n=300")
    assert answer(*words, "--gpu", "gfx1100")["gpu"] == "gfx1100"
    answer(*words, code=ConfigError.code)
    answer(*words, "--gpu", "gfx950", code=ConfigError.code)
    assert {row["gpu"] for row in answer("emulate", bundle)["objects"]} == set(GPUS)
    files = [stored("a.json", bundle.with_suffix(".json").read_bytes()), stored("a.hsaco", bundle.read_bytes())]
    (kernel,) = collect(files, tmp_path / "out", gpus=["gfx1100"]).objects
    assert (kernel.gpu, kernel.name) == ("gfx1100", "a.hsaco#gfx1100")
    assert kernel.path.read_bytes() == (campaign / "gfx1100" / "add-fp16.hsaco").read_bytes()


def test_variants_for_one_gpu_in_a_bundle_are_distinguished(campaign: Path, tmp_path: Path) -> None:
    objects = [(campaign / "gfx942" / f"{name}.hsaco").read_bytes() for name in ("add-fp16", "row_sum-fp16")]
    pairs = [(f"{TARGET}gfx942:{mode}", code) for mode, code in zip(("xnack+", "xnack-"), objects, strict=True)]
    kernels = collect([stored("a.hsaco", plain(*pairs))], tmp_path, gpus=["gfx942"]).objects
    assert [(kernel.name, kernel.gpu) for kernel in kernels] == [
        ("a.hsaco#gfx942:xnack+", "gfx942"),
        ("a.hsaco#gfx942:xnack-", "gfx942"),
    ]
    assert [kernel.path.read_bytes() for kernel in kernels] == objects
    pytest.importorskip("numpy")
    bundle = tmp_path / "add-fp16.hsaco"
    bundle.write_bytes(plain(*pairs))
    both = [f"{bundle}#gfx942:xnack+", f"{bundle}#gfx942:xnack-"]
    assert [row["object"] for row in answer("emulate", bundle, "--gpu", "gfx942")["objects"]] == both
    assert [row["object"] for row in answer("emulate", bundle, "--gpu", "MI300X:xnack-")["objects"]] == both[1:]
    answer("emulate", bundle, "--gpu", "gfx942:sramecc+", code=ConfigError.code)


def test_code_object_for_another_gpu_is_refused(campaign: Path) -> None:
    pytest.importorskip("numpy")
    path = campaign / "gfx942" / "add-fp16.hsaco"
    assert answer("emulate", path, "--gpu", "gfx942")["objects"][0]["gpu"] == "gfx942"
    answer("emulate", path, "--gpu", "gfx1100", code=ConfigError.code)


def test_features_of_a_plain_code_object_are_compared(campaign: Path, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    path, name = tmp_path / "add-fp16.hsaco", b"amdgcn-amd-amdhsa--gfx942"
    content = (campaign / "gfx942" / "add-fp16.hsaco").read_bytes()
    # The target keeps its length, because the metadata contains lengths.
    path.write_bytes(content.replace(name, b"--gfx942:xnack+".rjust(len(name), b"-")))
    for gpu in ("gfx942", "gfx942:xnack+"):
        assert [row["object"] for row in answer("emulate", path, "--gpu", gpu)["objects"]] == [str(path)]
    answer("emulate", path, "--gpu", "gfx942:xnack-", code=ConfigError.code)


def test_bundle_that_cannot_be_unpacked_is_reported_as_sealed(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib.so").write_bytes(library(ccob(bundle_of(campaign), 3)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b/add.hsaco").write_bytes(ccob(bundle_of(campaign), 2))
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    result = answer("audit", tmp_path, "--gpu", "gfx942", code=KernelError.code)
    assert (result["absent"], result["unknown"], result["sealed"], result["damaged"]) == ([], ["gfx942"], 2, [])
    assert "2 bundles" in result["problems"][0]
    assert answer("audit", tmp_path / "b")["sealed"] == 1
    answer("kernels", "diff", tmp_path / "b", tmp_path / "b", code=KernelError.code)


def _overlapping() -> bytes:
    content = bytearray(plain((f"{TARGET}gfx942", bytes(5000)), (f"{TARGET}gfx1100", bytes(5000))))
    first = content.index(b"hipv4") - 24
    second = content.rindex(b"hipv4") - 24
    content[second : second + 8] = content[first : first + 8]
    return bytes(content)


BAD: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2], "cut in its list": lambda content: content[:60],
    "two sizes": lambda content: ccob(content, 3, size=len(content) - 1),
    "a bomb": lambda content: ccob(content, 3, size=1 << 40),
    "a bomb that lies": lambda _: ccob(bytes(64 << 20), 2, size=100), "version 4": lambda _: b"CCOB\4\0" + bytes(60),
    "method 7": lambda content: b"CCOB" + struct.pack("<HHQQQ", 3, 7, 32 + 9, 9, 0) + bytes(9),
    "flipped": lambda content: ccob(content, 2)[:-40] + bytes(40), "overlapping": lambda _: _overlapping(),
    "many": lambda _: b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1 << 60),
    "not a bundle": lambda _: ccob(b"x" * 99, 3), "packed and cut": lambda content: ccob(content, 2)[:900],
    "packed and cut in its header": lambda content: ccob(content, 2)[:20],
}  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_damaged_bundle_is_reported(campaign: Path, tmp_path: Path, make: Callable[[bytes], bytes]) -> None:
    content = make(bundle_of(campaign))
    (tmp_path / "add.hsaco").write_bytes(content)
    assert answer("audit", tmp_path, code=KernelError.code)["damaged"]
    (tmp_path / "lib.so").write_bytes(library(content))
    assert answer("audit", tmp_path / "lib.so", code=KernelError.code)["damaged"]


def test_tar_with_thousands_of_extended_headers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(nested_headers())
    assert answer("audit", tmp_path / "x.tar", code=SourceError.code)["id"] == "archive-unreadable"


def test_compressed_bundles_in_one_file_are_read_one_by_one(tmp_path: Path) -> None:
    codes = [random.Random(at).randbytes(1 << 20) for at in range(40)]
    content = b"".join(ccob(plain((f"{TARGET}gfx942", code)), 2) for code in codes)
    (tmp_path / "x").write_bytes(content)
    wanted = iter(codes)
    tracemalloc.start()
    try:
        with (tmp_path / "x").open("rb") as stream:
            for part in parts(stream, len(content), "x"):
                assert isinstance(part, Part)
                assert not part.size or part.read() == next(wanted)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert next(wanted, None) is None
    assert most < 8 << 20  # the measured peak is 3 MiB


@pytest.mark.parametrize("version", [1, 2, 3])
def test_compressed_bundle_of_several_megabytes_is_unpacked(tmp_path: Path, version: int) -> None:
    """A piece of the compressed data can end where a piece of the content ends, because zstd unpacks whole blocks."""
    code = random.Random(1).randbytes(8 << 20).translate(bytes(byte & 15 for byte in range(256)))
    (tmp_path / "x").write_bytes(content := ccob(plain((f"{TARGET}gfx942", code)), version))
    with (tmp_path / "x").open("rb") as stream:
        assert [part.read() for part in parts(stream, len(content), "x") if isinstance(part, Part)] == [b"", code]


# --- leftovers and links ---


def test_temporary_folder_of_triton_cache_is_skipped_and_noted(campaign: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / ("B" * 52)
    half = folder / "tmp.pid_1_x"
    half.mkdir(parents=True)
    shutil.copy(campaign / "gfx942" / "add-fp16.hsaco", folder / "add.hsaco")
    (half / "add.hsaco").write_bytes((folder / "add.hsaco").read_bytes()[:900])
    result = answer("audit", tmp_path / "cache")
    assert (result["kernels"], result["damaged"], len(result["notes"])) == (1, [], 1)
    assert "tmp.pid_1_x" in result["notes"][0]
    with tarfile.open(tmp_path / "cache.tar", "w") as tar:
        tar.add(tmp_path / "cache", "cache")
    assert answer("audit", tmp_path / "cache.tar")["kernels"] == 1


def test_links_inside_a_folder_are_followed_and_others_noted(campaign: Path, tmp_path: Path) -> None:
    shutil.copy(campaign / "gfx942" / "add-fp16.hsaco", tmp_path / "blob")
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    shutil.copy(tmp_path / "blob", inside / "blob")
    (inside / "k.hsaco").symlink_to("blob")
    assert answer("audit", inside)["notes"] == []
    assert answer("audit", inside)["kernels"] == 1
    (inside / "out.hsaco").symlink_to("../blob")
    (inside / "folder").symlink_to("../outside")
    (inside / "dead.hsaco").symlink_to("nowhere")
    result = answer("audit", inside)
    assert (result["kernels"], len(result["notes"])) == (1, 1)
    assert all(name in result["notes"][0] for name in ("out.hsaco", "folder", "dead.hsaco"))
    (outside / "k.hsaco").symlink_to("../blob")
    done = CliRunner().invoke(app, ["audit", str(outside)])
    assert done.exit_code == ConfigError.code
    assert "1 link" in done.output
    assert answer("audit", outside / "k.hsaco")["kernels"] == 1


# --- GPUs that lack kernels ---


def test_kernel_that_only_another_gpu_has_is_reported_as_missing(campaign: Path, tmp_path: Path) -> None:
    compile_all(
        [
            rule(tmp_path / "c", name, gpu, element=element)
            for name in ("add", "attention")
            for gpu in GPUS
            for element in ("fp16", "bf16")
            if name == "attention" or element == "fp16"
        ]
    )
    assert answer("audit", tmp_path / "c")["ok"]
    (tmp_path / "c/gfx1100/attention-bf16.hsaco").unlink()
    for words in ((), ("--gpu", "gfx1100,gfx942")):
        result = answer("audit", tmp_path / "c", *words, code=KernelError.code)
        (missing,) = result["uneven"]
        assert "gfx1100" in missing
        assert "attention-bf16" in missing
    assert answer("audit", tmp_path / "c", "--gpu", "gfx942")["ok"]


def test_hand_written_kernels_may_differ_by_gpu(campaign: Path, tmp_path: Path) -> None:
    for gpu, names in {"gfx942": ("add", "row_sum"), "gfx1100": ("add",)}.items():
        (tmp_path / "hsa" / gpu).mkdir(parents=True)
        for name in names:
            shutil.copy(campaign / gpu / f"{name}-fp16.hsaco", tmp_path / "hsa" / gpu / f"{name}.co")
    result = answer("audit", tmp_path / "hsa", "--gpu", "gfx942,gfx1100")
    assert (result["ok"], result["uneven"], result["differing"]) == (True, [], ["gfx1100 lacks row_sum"])


# --- archives ---


def test_list_of_kernels_that_differ_by_gpu_is_limited(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolchain_lab.examine.uneven._MOST_DIFFERING", 1)
    (tmp_path / "gfx1100").mkdir()
    (tmp_path / "gfx942").mkdir()
    shutil.copy(campaign / "gfx942" / "add-fp16.hsaco", tmp_path / "gfx942")
    shutil.copy(campaign / "gfx1100" / "row_sum-fp16.hsaco", tmp_path / "gfx1100")
    result = answer("audit", tmp_path)
    assert len(result["differing"]) == 1
    assert result["notes"] == ["1 more kernels or functions differ by GPU, and are not listed"]


def test_zip_of_code_objects_is_read(campaign: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "c.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(campaign.rglob("*.hsaco")):
            archive.write(path, path.relative_to(campaign))
    assert answer("audit", tmp_path / "c.zip", "--gpu", "gfx942,gfx1100")["kernels"] == 4
    assert answer("kernels", "diff", tmp_path / "c.zip", campaign)["counts"]["same"] == 4


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("suffix", ["whl", "zip", "tar"])
def test_hostile_names_in_archives_are_refused(campaign: Path, tmp_path: Path, suffix: str) -> None:
    code = (campaign / "gfx942" / "add-fp16.hsaco").read_bytes()
    path = tmp_path / f"a-1-py3-none-any.{suffix}"
    for names in (("a/k.hsaco", "a//k.hsaco"), ("k.hsaco", "./k.hsaco"), ("k.hsaco", "k.hsaco/x"), ("../k.hsaco",)):
        if suffix == "tar":
            with tarfile.open(path, "w") as tar:
                for name in names:
                    row = tarfile.TarInfo(name)
                    row.size = len(code)
                    tar.addfile(row, stored("", code).start())
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name in names:
                    archive.writestr(zipfile.ZipInfo(name), code)
        done = CliRunner().invoke(app, ["audit", str(path)])
        assert done.exit_code == HostileInputError.code, (names, done.output)


def test_pack_with_names_that_are_not_utf_8_is_damaged(tmp_path: Path) -> None:
    name = b"\xff\xfe\0"
    directory = struct.pack("<IIIII", 0, 64, 0, 4, len(name)) + name
    head = struct.pack("<III", len(directory) + 4, 1, len(directory))
    (tmp_path / "a.aks2").write_bytes(b"AKS2" + head + lzma.compress(directory + b"code"))
    assert len(answer("audit", tmp_path, code=KernelError.code)["damaged"]) == 1


@pytest.mark.parametrize(
    ("what", "id"), [("before", "image-not-found"), ("before/", "not-a-reference"), ("a/b", "not-a-reference")]
)
def test_missing_path_is_named_as_one(tmp_path: Path, what: str, id: str) -> None:
    with refused(id, f"no file or folder {what}"), opened(what, Cache(tmp_path)):
        pass


def test_layout_folder_is_read_only_with_its_prefix(tmp_path: Path) -> None:
    folder = Layout(tmp_path / "out").ensure().root
    with refused("nothing-compiled", f"oci:{folder}"), opened(str(folder), Cache(tmp_path / "cache")):
        pass
    done = CliRunner().invoke(app, ["verify", str(folder)])
    assert f"oci:{folder}" in done.stderr.replace("\n", ""), done.output
