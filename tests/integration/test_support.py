"""The smallest real LLVM layer, LLVMDemangle and LLVMSupport, and layers built again under varied conditions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Said, toolchain
from tests.small_llvm import support_llvm
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import ImageSpec, add_layer, standard_annotations, write_image, write_index
from toolchain.oci.layer import Layer, compress
from toolchain.oci.layer_diff import member_at
from toolchain.oci.layer_files import layer_files, read_member
from toolchain.oci.layout import Layout

pytestmark = pytest.mark.engine
IMAGE = "llvm-triton-support-22.1.8"
OPTIONS = ("--source", "llvm=distro:llvm-toolchain-22", "--only", "support")
MEMBER = "Twine.cpp"
CACHE = os.environ.get("TOOLCHAIN_CACHE") or str(Path.home() / ".cache" / "toolchain")
LIBRARIES = ("libLLVMDemangle.a", "libLLVMSupport.a")


@dataclass(frozen=True)
class First:
    """A layer that was built and published.

    Args:
        stage: its row of `build --json`.
    """

    stage: dict[str, Any]
    layout: Layout
    index: Descriptor

    @property
    def manifest(self) -> Descriptor:
        """Return the manifest of the only architecture."""
        return self.layout.children(self.index)[0]

    @property
    def layer(self) -> Descriptor:
        """Return the layer with the libraries."""
        return self.layout.children(self.manifest)[1]

    @property
    def lib(self) -> str:
        """Return the folder of the libraries."""
        return f"{self.stage['facts']['prefix'].lstrip('/')}/lib"


@dataclass(frozen=True)
class Twice:
    """A layer, and the result of `reproduce` on a copy of it in which one byte is changed.

    Args:
        offset, member: the offset of the changed byte in the library, and its object.
        said: the output of `reproduce`.
    """

    first: First
    offset: int
    member: str
    said: Said
    home: Path

    @property
    def found(self) -> Any:
        """Return the output of `reproduce` as data."""
        return self.said.json


def built(folder: Path, *options: str) -> First:
    """Build a layer, publish it to a layout, and return it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    built = toolchain("build", "llvm", *options, "--json")
    assert built.code == 0, built.err
    out = folder / "published twice"
    published = toolchain("publish", f"oci:{out}", *built.json["publish"], "--json")
    assert published.code == 0, published.err
    layout, stage = Layout(out), built.json["stages"][-1]
    index = layout.resolve(stage["image"])
    assert published.json["published"][0]["digest"] == index.digest
    return First(stage, layout, index)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> First:
    """Build the smallest layer of LLVM's own source."""
    return built(tmp_path_factory.mktemp("support"), *OPTIONS)


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=pytest.mark.full)])
def twice(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """Build a layer twice, the second time with an empty ccache, other jobs and the conditions of `--vary`."""
    if shutil.which("faketime") is None:
        pytest.skip("NO FAKETIME: the clock cannot be flipped (apt-get install faketime)")
    folder = tmp_path_factory.mktemp("twice")
    if request.param == "real":
        first = request.getfixturevalue("real")
    else:
        tree = support_llvm(folder / "llvm", f"of {os.getpid()}")
        first = built(folder, "--source", f"llvm={tree}", "--only", "support", "--no-contract")
    offset, member = tampered(first, folder / "tampered")
    home = folder / "another home"
    home.mkdir()
    said = toolchain(
        "reproduce", f"oci:{first.layout.root}:tampered", "--vary", "--jobs", "3", "--json",
        env={"HOME": str(home), "CFLAGS": "-DNOT_TO_BE_SEEN", "SOURCE_DATE_EPOCH": "1", "TOOLCHAIN_CACHE": CACHE},
    )  # fmt: skip
    return Twice(first, offset, member, said, home)


def tampered(first: First, scratch: Path) -> tuple[int, str]:
    """Tag a copy of the image in which one byte of one object in one library is changed.

    Returns:
        The offset of the byte in the library, and the name of the object.
    """
    layout, manifest, layer = first.layout, first.manifest, first.layer
    content = read_member(layout.blob(layer.digest), layer.media_type, f"{first.lib}/{LIBRARIES[1]}")
    assert content is not None
    offset = content.index(MEMBER.encode()) + 60 + 100
    member = str(member_at(content, offset))
    assert member.startswith(MEMBER)
    raw = bytearray(subprocess.run(["gzip", "-dc", layout.blob(layer.digest)], capture_output=True, check=True).stdout)
    raw[raw.index(content[:4096]) + offset] ^= 0x20
    plain = scratch.with_suffix(".tar")
    plain.write_bytes(raw)
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    blob = compress(Layer(digest, len(raw), plain), scratch.with_suffix(".blob"), "gzip")
    labels = layout.read_json(layout.children(manifest)[0])["config"]["Labels"]
    spec = ImageSpec(arch="amd64", layers=(add_layer(layout, blob),), labels=labels)
    layout.tag(write_index(layout, [write_image(layout, spec)], standard_annotations("")), "tampered")
    return offset, member


def test_layer_is_reproducible_under_varied_conditions(twice: Twice) -> None:
    """The tampered copy is known to differ, so the equality of layer, blob and index is no accident."""
    assert twice.said.code in {0, 20}, twice.said.err
    found = twice.found
    assert {"aslr", "heap", "time"} <= set(found["varied"]["changed"])
    assert found["diff_ids"][1] == twice.first.stage["facts"]["diff_id"], found["differing"]
    assert found["blobs"][1] == twice.first.layer.digest
    assert found["indexes"][1] == twice.first.index.digest


def test_injected_difference_is_found_and_named(twice: Twice) -> None:
    """One bit of one object differs; the report names the file, the object in it and the offset."""
    assert twice.said.code == 20
    found = twice.found
    assert not found["equal"]
    (row,) = found["differing"]
    library = f"{twice.first.lib}/{LIBRARIES[1]}"
    assert (row["path"], row["what"], row["offset"], row["member"]) == (library, "content", twice.offset, twice.member)
    assert int(row["first"][:2], 16) ^ int(row["second"][:2], 16) == 0x20
    assert f"{library}: content in its member {twice.member} at byte {twice.offset}" in twice.said.err


def require_no_place(first: First, *more: str) -> None:
    """Assert that no file contains the place or the user of the build."""
    blob = first.layout.blob(first.layer.digest)
    # `toolchain` and `root` are the host and the user of the build. LLVM's own text may contain the plain words.
    words = [
        b"root@",
        b"@toolchain",
        b"(toolchain)",
        b"NOT_TO_BE_SEEN",
    ]
    words += [text.encode() for text in (CACHE, socket.gethostname(), *more) if len(text) > 5]
    files = [file for file in layer_files(blob, first.layer.media_type) if file.kind == "file"]
    assert {f"{first.lib}/{name}" for name in LIBRARIES} <= {file.path for file in files}
    named = {}
    for file in files:
        content = read_member(blob, first.layer.media_type, file.path)
        assert content is not None, file.path
        # The pattern matches a folder of the build, but not the same word within a web address.
        found = re.findall(rb"(?<![\w.-])/(?:build|src/llvm|recipe|ccache)/", content)
        if found := sorted({*found, *(word for word in words if word in content)}):
            named[file.path] = found
    assert named == {}


def test_no_file_contains_the_place_or_user_of_the_build(twice: Twice) -> None:
    require_no_place(twice.first, str(twice.home))


def test_partial_layer_is_labelled_and_passes_the_contract(real: First) -> None:
    require_no_place(real)
    checks = [check["name"] for check in real.stage["facts"]["contract"]["checks"] if check["ok"]]
    assert checks == ["libraries", "headers", "paths", "symbols", "support"]
    labels = real.layout.read_json(real.layout.children(real.manifest)[0])["config"]["Labels"]
    assert labels["toolchain.partial"] == "LLVMDemangle and LLVMSupport only"
    assert (labels["toolchain.glibc"], labels["toolchain.glibcxx"]) == ("2.31", "3.4.28")
    assert labels["toolchain.triton-build"] == "TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release"
    row = toolchain("plan", "llvm", *OPTIONS, "--json").json["stages"][-1]
    assert (row["image"], row["reused"]) == (IMAGE, True)
    assert json.loads(json.dumps(row))["partial"] == labels["toolchain.partial"]
