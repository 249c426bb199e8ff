"""The wheels of a portable Triton in plain containers of Debian 11, 12 and 13: pip installs them, and they compile.

The test is marked `full`: run it after `toolchain build triton --python 3.9,3.11,3.13 …` with the same cache, from
which it takes the newest wheels.
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.debian_systems import a_system
from toolchain.core.cache import Cache, default_cache
from toolchain.core.recipe import Mount, root
from toolchain.core.record import Record
from toolchain.engine.buildah import Buildah
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import known_record, records
from toolchain.sources.store import Store

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(0)]
TOOLS = ["base-files", "bash", "coreutils", "dash", "libstdc++6", "mawk", "python3", "python3-pip"]
# A Triton from before July 2025 links its code objects with the program lld, and lld 14 does not know its objects.
LLD = {"11": "16", "12": "19", "13": "19"}
# These GPUs are one of each family that every Triton since 2024 compiles for.
ALWAYS = {"gfx90a", "gfx942", "gfx1030", "gfx1100"}
HEADER = re.compile(r".*/include/llvm/TargetParser/(AMDGPU)?TargetParser\.(h|def)")


@dataclass(frozen=True)
class Found:
    """A wheel that the tool built, and facts about its sources.

    Args:
        wheel: the file, under the wheel's own name, which pip reads.
        gpus: all AMD GPUs that its LLVM's headers list.
        tutorial: the FlashAttention tutorial in Triton's tree.
    """

    wheel: Path
    gpus: tuple[str, ...]
    tutorial: Path


def found_for(version: str, folder: Path) -> Found:
    """Return the newest wheel from source for this CPython, or skip the test."""
    cache, tag = Cache(default_cache()), f"-cp{version.replace('.', '')}-"
    for record in reversed(records(cache)):
        if record.stage == "triton" and record.facts.get("checked_wheels"):
            for row in record.facts["wheels"]:
                if tag in row["file"] and row["file"].endswith("x86_64.whl"):
                    stored = Store(cache.store).file(row["digest"], verify=True)
                    assert stored is not None
                    (source,) = [source for source in record.sources if source.name == "triton"]
                    tree = Store(cache.store).stored_tree(str(source.digest))
                    assert tree is not None
                    wheel = Path(shutil.copy(stored, folder / row["file"]))
                    return Found(wheel, gpus_of(record, cache), tree / "python/tutorials/06-fused-attention.py")
    pytest.skip(f"NOT BUILT: {default_cache()} has no portable Triton for {version}; run toolchain build triton")


def gpus_of(record: Record, cache: Cache) -> tuple[str, ...]:
    """Return the GPUs that Triton's LLVM knows, by the headers in the layer of LLVM."""
    llvm = known_record(cache, str(record.inputs["llvm"]))
    assert llvm is not None
    layout, names = Layout(cache.images), set()
    with tarfile.open(layout.blob(llvm.layers[-1]["digest"])) as tar:
        for member in tar:
            if member.isfile() and HEADER.fullmatch(member.name):
                content = tar.extractfile(member)
                assert content is not None
                names |= set(re.findall(r"\bGK_(GFX[0-9A-F]+)\b", content.read().decode()))
    gpus = tuple(sorted(name.lower() for name in names))
    assert len(gpus) > 40, gpus
    return gpus


@pytest.mark.parametrize(("release", "version"), [("11", "3.9"), ("12", "3.11"), ("13", "3.13")])
def test_wheel_is_installed_by_pip_and_compiles_kernels(
    engine: Buildah, release: str, version: str, tmp_path: Path
) -> None:
    found = found_for(version, tmp_path)
    wheel = found.wheel
    system = a_system(engine, release, tmp_path, tools=[*TOOLS, f"lld-{LLD[release]}"])
    mounts = [
        Mount(wheel, f"/wheels/{wheel.name}"),
        Mount(root() / "aotriton", "/recipe/aotriton"),
        Mount(root() / "tests/attention_of_its_time.py", "/recipe/attention.py"),
        Mount(found.tutorial, "/recipe/tutorial.py"),
    ]

    def run(command: str) -> dict[str, dict[str, object]]:
        script = (
            # pip needs this file, which ca-certificates' maintainer script, which has not run here, would make.
            "cat /usr/share/ca-certificates/mozilla/*.crt >/etc/ssl/certs/ca-certificates.crt && "
            f"python3 -m pip install --quiet --no-index --no-deps --no-cache-dir /wheels/{wheel.name} && "
            f"cd / && exec python3 {command}"
        )
        lld = f"/usr/lib/llvm-{LLD[release]}/bin/ld.lld"
        env = {"HOME": "/tmp", "PIP_BREAK_SYSTEM_PACKAGES": "1", "TRITON_HIP_LLD_PATH": lld}
        done = engine.run(system, ["sh", "-c", script], mounts=mounts, env=env, capture=True, check=False)
        assert done.stdout.strip(), "\n".join(done.tail)
        said: dict[str, dict[str, object]] = json.loads(done.stdout.strip().splitlines()[-1])
        assert said["failed"] == {}, said
        assert done.returncode == 0, "\n".join(done.tail)
        return said

    said = run(f"/recipe/aotriton/triton_contract.py {' '.join(found.gpus)}")
    print(f"\nDebian {release}, Python {version}, {wheel.name}, {wheel.stat().st_size:,} bytes")
    print(f"{len(said['objects'])} of {len(found.gpus)} GPUs of its LLVM; it does not know {said['unsupported']}")
    assert set(said["objects"]) >= ALWAYS
    assert int(str(said["ptx"].get("bytes", 0))) > 0
    gpus = ("gfx90a", "gfx942")
    said = run(f"/recipe/attention.py /recipe/tutorial.py {' '.join(gpus)}")
    print(f"FlashAttention of its own tutorial: {said['compiled']}")
    assert said["compiled"] == dict.fromkeys(gpus, 20)
    engine.forget_image(system)
