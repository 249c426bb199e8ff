"""A shared kernel store does not serve the spoiled code objects of a hostile kernel tree to other trees."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Quickstart, Said, toolchain
from toolchain.core.cache import Cache, default_cache
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import find_image
from toolchain.sources.unpack import unpack_tar

pytestmark = pytest.mark.engine
MARK = b"MADE BY THE HOSTILE TREE"
# These kernels are of two modules, because a module that changes the compiler must not affect the other's kernels.
KERNELS = "gfx942/fwd_*"
# The code appends the mark to each code object, whether it runs before or after the import of the compiler.
POISON = f"""
import importlib.abc, importlib.util, sys

def spoil(module):
    real = module.HIPBackend.make_hsaco
    module.HIPBackend.make_hsaco = staticmethod(lambda *a, **k: real(*a, **k) + {MARK!r})

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "triton.backends.amd.compiler":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (real(module), spoil(module))
        return spec

if "triton.backends.amd.compiler" in sys.modules:
    spoil(sys.modules["triton.backends.amd.compiler"])
else:
    sys.meta_path.insert(0, Finder())
"""


def sdist() -> Path:
    """Return the folder of the pinned flash-attn that the quickstart fetched."""
    trees = Cache(default_cache()).root / "store" / "trees"
    found = trees.glob("*/flash_attn/flash_attn_triton_amd/fwd_prefill.py")
    return next(file.parents[2] for file in found if MARK not in file.read_bytes())


def tree(folder: Path) -> Path:
    """Copy the sdist's package, and add a file that no kernel reads, so that its image is a new one."""
    shutil.copytree(sdist() / "flash_attn", folder / "flash_attn")
    (folder / "NOTE").write_text(f"{folder} {os.getpid()}")
    return folder


def objects(said: Said, folder: Path) -> dict[str, bytes]:
    """Return the code objects of the image that a campaign built, by path."""
    assert said.code == 0, said.err[-3000:]
    cache = Cache(default_cache())
    layout = Layout(cache.images)
    image = find_image(cache, said.json["publish"][-1])[0].manifest
    _, layer = layout.children(layout.resolve(image))
    unpack_tar(layout.blob(layer.digest), folder, strip=0)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.hsaco")}


@pytest.mark.parametrize("signed", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["unsigned", "signed"])
def test_kernels_of_honest_tree_contain_no_hostile_bytes(quickstart: Quickstart, tmp_path: Path, signed: bool) -> None:
    hostile, honest = tree(tmp_path / "hostile"), tree(tmp_path / "honest")
    (hostile / "sitecustomize.py").write_text(POISON)
    (hostile / "flash_attn" / "sitecustomize.py").write_text(POISON)
    with (hostile / "flash_attn/flash_attn_triton_amd/fwd_prefill.py").open("a") as stream:
        stream.write(POISON)
    words = ["--base", "debian13", "--source", "triton=pypi:3.7.1", *quickstart.allow, "--gpu", "gfx942"]
    words += ["--select", KERNELS, "--kernel-store", str(tmp_path / "store"), "--json"]
    if signed:
        assert toolchain("keygen", tmp_path / "key").code == 0
        words += ["--kernel-key", str(next(tmp_path.glob("key*")))]

    def made(source: Path) -> tuple[dict[str, bytes], Any]:
        said = toolchain("kernels", "run", "--source", f"flash-attn={source}", *words)
        folder = tmp_path / f"{source.name} layer"
        return objects(said, folder), said.json["stages"][-1]["facts"]

    spoiled, _ = made(hostile)
    assert {path.split("/")[-2].split(".")[0] for path, code in spoiled.items() if code.endswith(MARK)} == {
        "fwd_prefill"
    }, "a hostile module spoils the kernels that it is a part of, and no others"
    kept, facts = made(honest)
    assert kept.keys() == spoiled.keys()
    assert not [path for path, code in kept.items() if MARK in code]
    served = sum("fwd_decode." in path for path in kept)
    counts = facts["kernel_store"]
    assert (counts["taken"], counts["absent"]) == (served, len(kept) - served), "the files of fwd_decode are the same"
    (row,) = facts["stored_kernels"]
    assert (row["store"], row["kernels"], bool(row["signer"])) == ("folder", served, signed)
