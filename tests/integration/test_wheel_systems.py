"""The wheels of a portable Triton in plain containers of Debian 12 and 13: installed by pip, and compiling.

Marked `full`: run after `toolchain build triton --python 3.11,3.13 …` on the same cache.
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.debian_systems import a_system
from toolchain.build.record import records
from toolchain.cache import Cache, default_cache
from toolchain.engine.buildah import Buildah
from toolchain.recipe import Mount, root
from toolchain.sources.store import Store
from toolchain.stages.triton_source import CONTRACT_GPUS

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(0)]
TOOLS = ["base-files", "bash", "coreutils", "dash", "libstdc++6", "mawk", "python3", "python3-pip"]


def wheel_for(version: str, folder: Path) -> Path:
    """The newest wheel from source for this CPython, by its name, which pip reads; or a loud skip."""
    cache, tag = Cache(default_cache()), f"-cp{version.replace('.', '')}-"
    for record in reversed(records(cache)):
        if record.stage == "triton" and record.facts.get("checked_wheels"):
            for wheel in record.facts["wheels"]:
                if tag in wheel["file"] and wheel["file"].endswith("x86_64.whl"):
                    found = Store(cache.store).file(wheel["digest"], verify=True)
                    assert found is not None
                    return Path(shutil.copy(found, folder / wheel["file"]))
    pytest.skip(f"NOT BUILT: {default_cache()} has no portable Triton for {version}; run toolchain build triton")


@pytest.mark.parametrize(("release", "version"), [("12", "3.11"), ("13", "3.13")])
def test_pip_installs_it_and_it_compiles(engine: Buildah, release: str, version: str, tmp_path: Path) -> None:
    wheel = wheel_for(version, tmp_path)
    system = a_system(engine, release, tmp_path, tools=TOOLS)
    script = (
        # As the maintainer script of ca-certificates does, which an unpacked system never ran; pip looks for the file.
        "cat /usr/share/ca-certificates/mozilla/*.crt >/etc/ssl/certs/ca-certificates.crt && "
        f"python3 -m pip install --quiet --no-index --no-cache-dir --break-system-packages /wheels/{wheel.name} && "
        f"cd / && exec python3 /recipe/aotriton/triton_contract.py {' '.join(CONTRACT_GPUS)}"
    )
    mounts = [Mount(wheel, f"/wheels/{wheel.name}"), Mount(root() / "aotriton", "/recipe/aotriton")]
    done = engine.run(system, ["sh", "-c", script], mounts=mounts, env={"HOME": "/tmp"}, capture=True, check=False)
    assert done.returncode == 0, "\n".join(done.tail)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"\nDebian {release}, Python {version}, {wheel.name}, {wheel.stat().st_size:,} bytes: {found}")
    assert set(found["objects"]) == set(CONTRACT_GPUS)
    assert found["failed"] == {}
    assert found["ptx"].get("bytes", 0) > 0
    engine.forget_image(system)
