"""A profile in small: LLVMSupport that counts, a program on it, and LLVMSupport optimised by what it counted, twice.

Marked `full`: two parts of LLVM are compiled, a quarter of an hour on two cores.

    pytest -m full -s tests/integration/test_profile_whole.py
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import toolchain
from toolchain.core.cache import Cache, default_cache
from toolchain.core.digest import sha256_file
from toolchain.core.recipe import Mount, root
from toolchain.engine.buildah import Buildah
from toolchain.oci.layer_files import layer_files
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import find_image, known_record
from toolchain.sources.resolve import locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.unpack import unpack_tar
from toolchain.stages.profile_use import ABOUT, CLANG, DATA, about

pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.timeout(0)]
SPEC = "distro:llvm-toolchain-22"
OPTIONS = ("--source", f"llvm={SPEC}", "--only", "support")
PREFIX = "/usr/lib64/llvm-triton-22.1.8"
# What links an instrumented library brings the compiler's own for it.
COUNT = f"""
set -e
clang++ -O1 -std=c++17 -fno-rtti -DNDEBUG -fprofile-generate -I{PREFIX}/include -I/llvm/include /consumer/main.cpp \
  {PREFIX}/lib/libLLVMSupport.a {PREFIX}/lib/libLLVMDemangle.a -fuse-ld=lld -lpthread -ldl -lm -lrt -o /tmp/consumer
for word in _ZN4llvm5APIntD1Ev _ZNSt6vectorIiSaIiEE9push_backEOi; do
  LLVM_PROFILE_FILE=/out/%p.profraw /tmp/consumer $word
done
llvm-profdata merge --sparse --output=/out/{DATA} /out/*.profraw
llvm-profdata show /out/{DATA} | grep 'Total functions'
clang --version | head -n 1 >/out/{CLANG}
rm /out/*.profraw
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the consumer of `examples/` runs of LLVMSupport and LLVMDemangle."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    folder = tmp_path_factory.mktemp("profile")
    done = toolchain("build", "llvm-instrumented", *OPTIONS, "--json")
    assert done.code == 0, done.err
    cache, engine = Cache(default_cache()), Buildah(Cache(default_cache()))
    row = done.json["stages"][-1]
    layout = Layout(cache.images)
    layer = folder / "layer"
    unpack_tar(layout.blob(layout.children(layout.resolve(row["manifest"]))[-1].digest), layer, strip=0)
    base = find_image(cache, "toolchain-base-debian13")[0]
    image = engine.ensure_image("toolchain-base-debian13", cache.images, base.manifest)
    llvm = locate("llvm", parse_source_spec(SPEC), cache=cache)
    tree = next((cache.store / "trees").glob(f"{str(llvm.digest).replace(':', '-')}*/llvm")).parent
    made = folder / "made"
    made.mkdir()
    mounts = [
        Mount(layer / PREFIX.lstrip("/"), PREFIX),
        Mount(tree / "llvm", "/llvm"),
        Mount(root() / "examples/consumer", "/consumer"),
        Mount(made, "/out", read_only=False),
    ]
    said = engine.run(image, ["sh", "-c", COUNT], mounts=mounts, capture=True).stdout
    print(f"\n{said.strip().splitlines()[-1]}, {(made / DATA).stat().st_size:,} bytes")
    (made / ABOUT).write_text(json.dumps(about(llvm, llvm, {})))
    return made


def test_a_layer_by_a_profile_proves_itself_and_comes_out_the_same_twice(profile: Path) -> None:
    by = (*OPTIONS, "--source", f"profile={profile}", "--allow-binary", "profile")
    refused = toolchain("build", "llvm", *by[:-2])
    assert refused.code == 15
    assert "--allow-binary profile" in refused.err
    built = toolchain("build", "llvm", *by, "--json")
    assert built.code == 0, built.err
    row = built.json["stages"][-1]
    assert row["image"] == "llvm-triton-support-22.1.8-pgo"
    assert row["facts"]["contract"]
    cache = Cache(default_cache())
    layout = Layout(cache.images)
    manifest = layout.resolve(row["manifest"])
    config = layout.read_json(layout.children(manifest)[0])["config"]
    assert config["Labels"]["toolchain.binaries"] == "profile"
    layer = layout.children(manifest)[-1]
    files = {one.path: one for one in layer_files(layout.blob(layer.digest), layer.media_type)}
    # It names static functions by the files that they are in, and those are in the build's own folders.
    assert [name for name in files if name.endswith(DATA)] == []
    plain = toolchain("build", "llvm", *OPTIONS, "--json").json["stages"][-1]
    assert plain["facts"]["diff_id"] != row["facts"]["diff_id"]
    again = toolchain("reproduce", row["input_digest"], "--json")
    assert again.code == 0, again.err
    assert again.json["equal"]
    assert again.json["diff_ids"] == [row["facts"]["diff_id"]] * 2
    print(f"\nplain {plain['facts']['diff_id']}, by the profile {row['facts']['diff_id']} twice")
    known = known_record(cache, row["input_digest"])
    assert known is not None
    assert [one.name for one in known.sources] == ["llvm", "profile"]


def test_another_llvm_or_clang_is_refused(profile: Path, tmp_path: Path) -> None:
    for name, text, code, says in (
        (ABOUT, (profile / ABOUT).read_text().replace('"digest": "sha256:', '"digest": "sha256:0'), 4, "is not of"),
        (CLANG, "Debian clang version 18.1.8\n", 10, "this profile is of Debian clang version 18.1.8"),
    ):
        other = tmp_path / name
        shutil.copytree(profile, other)
        (other / name).write_text(text)
        assert sha256_file(other / name) != sha256_file(profile / name)
        said = toolchain("build", "llvm", *OPTIONS, "--source", f"profile={other}", "--allow-binary", "profile")
        assert (said.code, says in said.err) == (code, True), said.err
