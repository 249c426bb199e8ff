"""kernels.aks2: AOTriton's archives are read, and compared with the compiled kernels."""

from __future__ import annotations

import io
import lzma
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel_fixtures import aks2
from tests.refusals import refused
from toolchain.core import unpack_budget
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import ContractError, HostileInputError, KernelError
from toolchain.core.unpack_budget import UnpackBudget
from toolchain.kernels.aks2 import open_aks2, read_archive
from toolchain.kernels.aotriton_plan import Archive, Cluster
from toolchain.stages.aotriton_images import check_images


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: b"AKS1" + data[4:], "not-aks2"),
        (lambda data: data[:4] + struct.pack("<I", 7) + data[8:], "aks2-damaged"),
        (lambda data: data[:8] + struct.pack("<I", 9) + data[12:], "aks2-damaged"),
        (lambda data: data[:30], "aks2-damaged"),
        (lambda data: data[:-4], "aks2-damaged"),
        (lambda data: data + b"more", "aks2-damaged"),
        (lambda data: data[:40] + b"\xff" * 8 + data[48:], "aks2-damaged"),
    ],
)
def test_damaged_aks2_is_refused(damage: Callable[[bytes], bytes], error: str) -> None:
    data = damage(aks2(("a", b"x" * 100), ("b", b"y" * 50)))
    with refused(error), open_aks2(io.BytesIO(data), len(data)):
        pass


def test_aks2_of_several_pieces_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of the packed data can end where a piece of the content ends."""
    monkeypatch.setattr("toolchain.kernels.aks2._CHUNK", 16)
    content = b"".join(random.Random(at).randbytes(at % 40) + b"A" * (at % 300) for at in range(400))
    data = aks2(("a", content))
    with open_aks2(io.BytesIO(data), len(data)) as (kernel,):
        assert kernel.read() == content


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, list[Cluster], list[Archive]]:
    (tmp_path / "flash").mkdir()
    (tmp_path / "flash/a.hsaco").write_bytes(b"object a")
    (tmp_path / "flash/a.json").write_text('{"shared": 1024, "num_warps": 4, "warp_size": 64}')
    (tmp_path / "flash/b.hsaco").write_bytes(b"")
    cluster = Cluster("aks2/x/c1.aks2", "aks2/x/c1.nsv", (("flash/a.hsaco", "A"), ("flash/b.hsaco", "B")))
    archive = Archive("aotriton.images/attn.zip", "aotriton.images/attn.nsv", (("aks2/x/c1.aks2", "F"),))
    (tmp_path / "aotriton.images").mkdir()
    write_zip(tmp_path, ("F", aks2(("A", b"object a"), ("B", b""))))
    return tmp_path, [cluster], [archive]


A_SHA256 = sha256_bytes(b"object a").removeprefix("sha256:")


def write_zip(build: Path, *entries: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(build / "aotriton.images/attn.zip", "w", how) as archive:
        for name, content in entries:
            archive.writestr(name, content)


def test_images_with_compiled_kernels_pass(images: tuple[Path, list[Cluster], list[Archive]]) -> None:
    build, clusters, archives = images
    check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})
    assert [name for name, _ in read_archive(build / archives[0].path)] == ["F"]


@pytest.mark.parametrize(
    "entries",
    [
        [("F", aks2(("A", b"object x"), ("B", b"")))],
        [("F", aks2(("A", b"object a")))],
        [("F", aks2(("B", b""), ("A", b"object a")))],
        [("G", aks2(("A", b"object a"), ("B", b"")))],
        [("F", aks2(("A", b""), ("B", b"")))],
        [("F", aks2(("A", b"object a"), ("B", b""), launch=(1024, 128)))],
        [("F", aks2(("A", b"object a"), ("B", b""), launch=(512, 256)))],
    ],
)
def test_images_that_differ_from_compiled_kernels_are_refused(
    images: tuple[Path, list[Cluster], list[Archive]], entries: list[tuple[str, bytes]]
) -> None:
    build, clusters, archives = images
    write_zip(build, *entries)
    with pytest.raises(ContractError):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_object_that_differs_from_recorded_sha256_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    with refused("aotriton-images-wrong"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256, "flash/b.hsaco": "sha"})
    (build / "flash/a.hsaco").write_bytes(b"object b")
    write_zip(build, ("F", aks2(("A", b"object b"), ("B", b""))))
    with refused("aotriton-images-wrong"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_compressed_archive_and_duplicate_entry_are_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    content = aks2(("A", b"object a"), ("B", b""))
    write_zip(build, ("F", content), how=zipfile.ZIP_DEFLATED)
    with refused("aks2-compressed"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_zip(build, ("F", content), ("F", aks2(("A", b"object x"))))
    with refused("entry-twice"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def _pack(*entries: tuple[int, int, bytes], content: bytes) -> bytes:
    """Return an .aks2 file with a directory of (offset, size, name)."""
    directory = b"".join(struct.pack("<IIIII", 0, 64, offset, size, len(raw)) + raw for offset, size, raw in entries)
    head = struct.pack("<III", len(directory) + len(content), len(entries), len(directory))
    return b"AKS2" + head + lzma.compress(directory + content, preset=0)


HOSTILE = {
    "overlapping": _pack((0, 8, b"a\0"), (4, 8, b"b\0"), content=bytes(16)),
    "not UTF-8": _pack((0, 8, b"\xff\0"), content=bytes(8)),
    "one name twice": _pack((0, 8, b"a\0"), (8, 8, b"a\0"), content=bytes(16)),
    "not printable": _pack((0, 8, b"\x1b[2J\0"), content=bytes(8)),
    "bomb": b"AKS2" + struct.pack("<III", (1 << 32) - 1, 1, 22) + lzma.compress(bytes(1000)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_aks2_is_refused(data: bytes) -> None:
    with pytest.raises((HostileInputError, KernelError)), open_aks2(io.BytesIO(data), len(data)):
        pass


def test_reader_does_not_hold_all_kernels_in_memory() -> None:
    size, count = 8 << 20, 10
    data = _pack(*((at * size, size, b"%d\0" % at) for at in range(count)), content=bytes(count * size))
    tracemalloc.start()
    with open_aks2(io.BytesIO(data), len(data)) as kernels:
        assert sum(len(kernel.read()) for kernel in kernels) == count * size
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The measured peak is 21 MB, because the reader keeps 16 MiB in memory before it writes to a temporary file.
    assert most < 40 << 20


def test_overlapping_kernels_are_refused(tmp_path: Path) -> None:
    """400 kernels over the same 32 MiB, in an archive of 5 KB, once took 12.8 GB of memory."""
    data = _pack(*((0, 32 << 20, b"%d\0" % at) for at in range(400)), content=bytes(32 << 20))
    assert len(data) < 8192
    (tmp_path / "a.aks2").write_bytes(data)
    with pytest.raises(HostileInputError):
        list(read_archive(tmp_path / "a.aks2"))


def test_many_small_archives_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_budget, "_FREE", 5 << 19)
    data, budget = aks2(("k", bytes(1 << 20))), UnpackBudget()
    for _ in range(2):
        with open_aks2(io.BytesIO(data), len(data), budget) as (kernel,):
            assert kernel.size == 1 << 20
    with pytest.raises(HostileInputError), open_aks2(io.BytesIO(data), len(data), budget):
        pass
