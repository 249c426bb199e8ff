"""The stage that makes the image of a kernel worker: what it takes in, and how results of its kernels are named."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from tests.request_fixtures import request_of, with_base
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import PolicyError, UnsupportedError
from toolchain.core.recipe import digests
from toolchain.oci.descriptor import LAYER, LAYER_GZIP
from toolchain.oci.image import ImageSpec, LayerBlob, write_image
from toolchain.oci.labels import BINARIES
from toolchain.oci.layout import Layout
from toolchain.pipeline.contained_worker import Kernels
from toolchain.pipeline.plan import plan
from toolchain.pipeline.run import build
from toolchain.request.model import Request
from toolchain.stages import aotriton_images, kernels
from toolchain.stages.kernel_workers import allocator, layer_digests
from toolchain.stages.stage import Built, Planned, image_labels
from toolchain.stages.worker import FOLDER, PROGRAM, WHEELS, WorkerDetails, WorkerStage

WHEEL = {"triton": "pypi:triton==3.7.1"}
ALLOWED = ("dask", "triton-wheel")
TRITON = ("sha256:" + "1" * 64, "sha256:" + "2" * 64)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return with_base(tmp_path / "cache")


def planned(cache: Cache, **options: Any) -> list[Planned]:
    request = request_of(cache=cache, **{"base": "debian13", "sources": WHEEL, "allow_binary": ALLOWED, **options})
    return [row.planned for row in plan(request, "worker")]


def test_it_stands_on_triton_and_has_dask_by_digest(cache: Cache) -> None:
    base, triton, worker = planned(cache)
    assert (base.name, triton.name, worker.name) == ("base", "triton", "worker")
    assert worker.image == "kernel-worker-flash-attn-2.8.3.post2-debian13"
    assert worker.binaries == ALLOWED
    assert worker.inputs is not None
    assert worker.inputs["triton"] == triton.input_digest
    assert [source.name for source in worker.sources] == ["flash-attn", *(f"library-{name}" for name in WHEELS)]
    assert all((source.digest or "").startswith("sha256:") for source in worker.sources)
    assert image_labels(worker, binaries=worker.binaries, licensed=False)[BINARIES] == "dask,triton-wheel"


def test_it_is_for_the_release_that_is_named(cache: Cache) -> None:
    (worker,) = planned(cache, aotriton="0.10b")[-1:]
    assert worker.sources[0].name == "aotriton"
    assert worker.image == f"kernel-worker-aotriton-{worker.sources[0].short_id}-debian13"


def test_dask_enters_by_name_alone_and_counts_for_no_other_stage(cache: Cache) -> None:
    request = request_of(cache=cache, base="debian13", sources=WHEEL, allow_binary=("triton-wheel",))
    with pytest.raises(PolicyError, match="needs the prebuilt dask") as caught:
        build(request, "worker")
    assert "--allow-binary dask" in caught.value.fix
    with_, without = (
        plan(request_of(cache=cache, base="debian13", aotriton="0.10b", allow_binary=allowed), "triton")[-1].planned
        for allowed in (("dask",), ())
    )
    assert with_.input_digest == without.input_digest


def test_a_base_with_another_python_is_refused(cache: Cache) -> None:
    with pytest.raises(UnsupportedError, match="no image of a worker is made on base debian12") as caught:
        WorkerStage("kernels").plan(request_of(cache=cache, base="debian12", sources=WHEEL), {})
    assert "Python 3.13" in caught.value.why


@pytest.mark.parametrize(("of", "project"), [("kernels", kernels.PROJECT), ("aotriton", aotriton_images.PROJECT)])
def test_results_have_the_names_of_a_local_campaign(tmp_path: Path, of: str, project: Any) -> None:
    source, tree = tmp_path / "source", tmp_path / "tree"
    (source / "pack" / "__pycache__").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / "pack" / "kernels.py").write_text("import helper\n")
    (source / "pack" / "link.py").symlink_to("kernels.py")
    variables = {**project.variables, **allocator(Request(cache=Cache(tmp_path / "cache")))}
    details = WorkerDetails(variables=variables, beside=digests(*project.recipe))
    worker = Planned(name="worker", image="kernel-worker-x", inputs={}, details=details)
    WorkerStage(of)._lay(tree, worker, source, TRITON)

    inside = tree / FOLDER.lstrip("/")
    kernels = Kernels.read(inside / "kernels.json")
    assert (kernels.name, kernels.stage, kernels.source) == ("kernel-worker-x", of, project.source)
    local = project.naming(source, TRITON)
    assert kernels.compile_setup(tmp_path, ()).naming.shared == local.shared
    laid = tree / project.source.lstrip("/")
    assert (laid / "pack" / "link.py").readlink() == Path("kernels.py")
    assert sorted(path.name for path in laid.rglob("*")) == ["kernels.py", "link.py", "pack"]
    assert dict(kernels.variables) == {**project.variables, "LD_PRELOAD": base_recipe("debian13").allocator}
    assert kernels.environment == project.environment, "an allocator is in no result's name"
    assert (tree / kernels.command[1].lstrip("/")).is_file()
    assert (inside / "toolchain" / "kernels" / "worker.py").is_file()
    assert os.access(tree / PROGRAM.lstrip("/"), os.X_OK)


def test_a_triton_that_was_published_names_results_as_the_one_that_was_built(tmp_path: Path) -> None:
    """Only the packing differs: whoever takes it by `--reuse-from` shares a store with who built it."""
    cache = Cache(tmp_path / "cache")
    layout = Layout(cache.images).ensure()
    content, named = b"a layer", []
    for blob in (content, gzip.compress(content, mtime=0)):
        media = LAYER if blob == content else LAYER_GZIP
        layer = LayerBlob(layout.put_bytes(blob, media), sha256_bytes(content))
        manifest = write_image(layout, ImageSpec(arch="amd64", layers=(layer,))).digest
        built = Built(
            planned=Planned(name="triton", image="x", inputs={}),
            input_digest="",
            manifest=manifest,
            layers=(layer.descriptor.as_json(),),
        )
        named.append((built.layers, layer_digests(built, cache)))
    (plain, first), (packed, second) = named
    assert plain != packed
    assert first == second == [sha256_bytes(content)]
