"""kernels.aks2: AOTriton's archives read back, and held against what was compiled."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel_fixtures import aks2
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import ContractError, KernelError
from toolchain.kernels.aks2 import read_aks2, read_archive
from toolchain.kernels.aotriton_plan import Archive, Cluster
from toolchain.stages.aotriton_images import check_images


def test_aks2_is_read() -> None:
    good, bad = read_aks2(aks2((";;a;;", b"\x7fELF object"), (";;b;;", b"")))
    assert (good.name, good.shared, good.threads, good.content) == (";;a;;", 1024, 256, b"\x7fELF object")
    assert bad.content == b""


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: b"AKS1" + data[4:], "not an AKS2 file"),
        (lambda data: data[:4] + struct.pack("<I", 7) + data[8:], "impossible sizes|another size"),
        (lambda data: data[:8] + struct.pack("<I", 9) + data[12:], "directory|outside"),
        (lambda data: data[:30], "ends early|does not unpack"),
        (lambda data: data[:-4], "ends early"),
        (lambda data: data + b"more", "has data after its end"),
        (lambda data: data[:40] + b"\xff" * 8 + data[48:], "does not unpack|ends early|another size|outside|directory"),
    ],
)
def test_damaged_aks2_is_told(damage: Callable[[bytes], bytes], error: str) -> None:
    with pytest.raises(KernelError, match=error):
        read_aks2(damage(aks2(("a", b"x" * 100), ("b", b"y" * 50))))


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


def test_images_that_hold_what_was_compiled_pass(images: tuple[Path, list[Cluster], list[Archive]]) -> None:
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
def test_images_that_hold_something_else_are_refused(
    images: tuple[Path, list[Cluster], list[Archive]], entries: list[tuple[str, bytes]]
) -> None:
    build, clusters, archives = images
    write_zip(build, *entries)
    with pytest.raises(ContractError):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_an_object_that_was_changed_before_it_was_packed_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    (build / "flash/a.hsaco").write_bytes(b"object b")
    write_zip(build, ("F", aks2(("A", b"object b"), ("B", b""))))
    with pytest.raises(ContractError, match="changed since it was compiled"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_an_archive_that_the_loader_would_not_read_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    content = aks2(("A", b"object a"), ("B", b""))
    write_zip(build, ("F", content), how=zipfile.ZIP_DEFLATED)
    with pytest.raises(KernelError, match="compressed"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_zip(build, ("F", content), ("F", aks2(("A", b"object x"))))
    with pytest.raises(KernelError, match="one name twice"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_an_empty_object_that_counts_as_compiled_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    with pytest.raises(ContractError, match="B is not what was compiled"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256, "flash/b.hsaco": "sha"})
