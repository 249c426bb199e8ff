"""The lines of a Containerfile that `publish` prints last: plain buildah builds them unchanged."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evidence_fixtures import finished_base, finished_llvm
from tests.integration.conftest import toolchain
from tests.request_fixtures import specs
from toolchain.core.cache import Cache
from toolchain.oci.descriptor import IMAGES
from toolchain.oci.layer_files import layer_files
from toolchain.oci.layout import Layout
from toolchain.request.model import Request

PREFIX = "usr/lib64/llvm-triton-22.1.8"
LLVM = {f"{PREFIX}/bin/mlir-tblgen": b"x", f"{PREFIX}/lib/cmake/mlir/MLIRConfig.cmake": b"x"}


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield the root and the run folder of a storage of the test's own."""
    run = Path("/run") / f"tc-use-{os.getpid()}"
    try:
        yield str(tmp_path / "storage"), str(run)
    finally:
        shutil.rmtree(run, ignore_errors=True)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    finished_base(made, tmp_path / "base")
    finished_llvm(Request(cache=made, sources=specs({"llvm": "distro:llvm-toolchain-22"})), tmp_path / "llvm", LLVM)
    return made


def build(lines: str, folder: Path, storage: tuple[str, str]) -> None:
    """Build a Containerfile of exactly these lines, and check the image."""
    if shutil.which("buildah") is None:
        pytest.skip("BUILDAH IS NOT INSTALLED: the printed lines are not tried (apt-get install buildah)")
    folder.mkdir()
    (folder / "Containerfile").write_text(f"FROM scratch\n{lines}")
    buildah = ["buildah", "--root", storage[0], "--runroot", storage[1], "--storage-driver", "vfs"]
    env = {**os.environ, "TMPDIR": str(folder)}
    for words in (
        ["build", "--isolation", "chroot", "--tls-verify=false", "--tag", "localhost/consumer", "."],
        ["push", "localhost/consumer", f"oci:{folder}/made:it"],
    ):
        done = subprocess.run([*buildah, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    layout = Layout(folder / "made")
    image = next(one for one in layout.walk(layout.resolve("it")) if one.media_type in IMAGES)
    config, *layers = layout.children(image)
    variables = layout.read_json(config)["config"]["Env"]
    assert f"LLVM_SYSPATH=/{PREFIX}" in variables
    assert "TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release" in variables
    files = {one.path for layer in layers for one in layer_files(layout.blob(layer.digest), layer.media_type)}
    assert set(LLVM) <= files


@pytest.mark.registry
@pytest.mark.engine
@pytest.mark.beside
def test_printed_lines_copy_from_a_registry(
    registry_host: str, cache: Cache, tmp_path: Path, storage: tuple[str, str]
) -> None:
    done = toolchain("publish", f"{registry_host}/front/door", "llvm-triton", "--cache", cache.root)
    assert done.code == 0, done.err
    ref = f"{registry_host}/front/door/llvm-triton-22.1.8-debian13"
    said = toolchain("inspect", ref, "--use")
    assert done.err.endswith(said.out)
    assert re.match(rf"COPY --from={re.escape(ref)}@sha256:[0-9a-f]{{64}} ", said.out)
    build(said.out, tmp_path / "consumer", storage)


@pytest.mark.engine
@pytest.mark.beside
def test_printed_lines_copy_from_a_layout_folder(cache: Cache, tmp_path: Path, storage: tuple[str, str]) -> None:
    done = toolchain("publish", f"oci:{tmp_path / 'out'}", "llvm-triton", "--cache", cache.root)
    assert done.code == 0, done.err
    said = toolchain("inspect", f"oci:{tmp_path / 'out'}:llvm-triton-22.1.8-debian13", "--use").out
    assert done.err.endswith(said)
    if shutil.which("skopeo") is None:
        pytest.skip("SKOPEO IS NOT INSTALLED: the printed command is not tried (apt-get install skopeo)")
    # The printed command is changed only to use the test's own storage.
    import_bundle = next(line for line in said.splitlines() if "containers-storage:" in line).removeprefix("#").strip()
    import_bundle = import_bundle.replace("containers-storage:", f"containers-storage:[vfs@{storage[0]}+{storage[1]}]")
    brought = subprocess.run(shlex.split(import_bundle), capture_output=True, text=True, check=False)
    assert brought.returncode == 0, brought.stderr
    build(said, tmp_path / "consumer", storage)
