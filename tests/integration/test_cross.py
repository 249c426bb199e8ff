"""Test that LLVM is cross-compiled for other architectures, runs under qemu-user, and is published in one index."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.integration.conftest import toolchain
from tests.small_llvm import support_llvm
from toolchain.catalog.architectures import machine_of
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layer_files import layer_files, read_member
from toolchain.oci.layout import Layout

pytestmark = pytest.mark.engine
REAL = "distro:llvm-toolchain-22"
ELF_MACHINE = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64", "ppc64le": "EM_PPC64", "s390x": "EM_S390"}
TRIPLE = {"arm64": "aarch64", "ppc64le": "powerpc64le", "s390x": "s390x"}
ROWS = [
    pytest.param("arm64", "small"),
    pytest.param("arm64", "real", marks=pytest.mark.nightly),
    pytest.param("ppc64le", "real", marks=pytest.mark.full),
    pytest.param("s390x", "real", marks=pytest.mark.full),
]


def needs(arch: str) -> None:
    """Skip the test if the base cannot be made here, or if programs of the architecture cannot be run."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    name = f"qemu-{machine_of(arch).kernel}-static"
    if shutil.which(name) is None:
        pytest.skip(f"NO EMULATOR FOR {arch}: {name} is not installed (apt-get install qemu-user-static)")


def layer_of(layout: Layout, index: Descriptor, arch: str) -> Descriptor:
    """Return the last layer of the image for an architecture."""
    (manifest,) = [one for one in layout.children(index) if one.platform and one.platform.arch == arch]
    return layout.children(manifest)[-1]


def machine(layout: Layout, layer: Descriptor, path: str) -> str:
    """Return the ELF machine of a program, or of the first object in a static library."""
    content = read_member(layout.blob(layer.digest), layer.media_type, path, limit=1 << 30)
    assert content is not None, path
    start = content.index(b"\x7fELF")
    return str(ELFFile(io.BytesIO(content[start:]))["e_machine"])


@pytest.mark.parametrize(("arch", "size"), ROWS)
def test_support_library_for_two_architectures_is_in_one_index(arch: str, size: str, tmp_path: Path) -> None:
    """For the real LLVM, the contract check runs a program with the cross-compiled libraries under the emulator."""
    needs(arch)
    source = REAL if size == "real" else os.fspath(support_llvm(tmp_path / "llvm", says=os.urandom(8).hex()))
    both = ("--arch", f"amd64,{arch}", "--only", "support", "--source", f"llvm={source}")
    words = ("build", "llvm", *both, "--json", "--contract" if size == "real" else "--no-contract")
    built = toolchain(*words)
    assert built.code == 0, built.err
    stages = built.json["stages"]
    assert [stage["name"] for stage in stages] == ["base", "sysroot", "llvm", "sysroot", "llvm"]
    assert len({stage["image"] for stage in stages if stage["name"] == "llvm"}) == 1
    if size == "real":
        checks = {check["name"]: check for check in stages[-1]["facts"]["contract"]["checks"]}
        assert checks["support"]["detail"] == f"LLVMSupport 22.1.8 for {TRIPLE[arch]}-unknown-linux-gnu"
        assert all(check["ok"] for check in checks.values())
    prefix = stages[-1]["facts"]["prefix"].lstrip("/")
    published = toolchain("publish", f"oci:{tmp_path / 'out'}", *built.json["publish"], "--json")
    assert published.code == 0, published.err
    (row,) = published.json["published"]
    layout = Layout(tmp_path / "out")
    index = layout.resolve(row["digest"])
    for one in ("amd64", arch):
        layer = layer_of(layout, index, one)
        for library in ("LLVMSupport", "LLVMDemangle"):
            assert machine(layout, layer, f"{prefix}/lib/lib{library}.a") == ELF_MACHINE[one]
    names = {
        one: {file.path for file in layer_files(layout.blob(layer.digest), layer.media_type)}
        for one in ("amd64", arch)
        for layer in [layer_of(layout, index, one)]
    }
    assert names["amd64"] == names[arch], "a layer lacks what the other has"
    assert toolchain("verify", f"oci:{tmp_path / 'out'}").code == 0
    made = toolchain("lock", "llvm", *both, "--offline", "-o", tmp_path / "a lock", "--json")
    assert made.code == 0, made.err
    assert made.json["complete"] is True
    locked = {"TOOLCHAIN_LOCK_FILE": str(tmp_path / "a lock")}
    again = toolchain(*words, "--offline", env=locked)
    assert all(stage["reused"] for stage in again.json["stages"])
    assert json.loads(again.out)["stages"][-1]["manifest"] == stages[-1]["manifest"]
