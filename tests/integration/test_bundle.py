"""Test that a bundle is enough to build kernels without a network and with an empty cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Said, toolchain
from toolchain.kernels.codeobject import check_object
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.sources.unpack import unpack_tar

pytestmark = pytest.mark.engine
REQUEST = ("--source", "triton=pypi:3.7.1", "--gpu", "gfx942", "--limit", "2")


def without_network(cache: Path, cwd: Path, *words: str) -> Said:
    """Run the tool in a network namespace whose only interface is a loopback that is down."""
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-m", "toolchain", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "TOOLCHAIN_CACHE": str(cache), "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Export the inputs of two kernels from the user's own cache, after the base is built, and return the bundle."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None or shutil.which("buildah") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT WITH BUILDAH: neither a base nor kernels can be made")
    made = toolchain("build", "base", cwd=tmp_path)
    assert made.code == 0, made.err
    out = tmp_path / "the bundle"
    made = toolchain("bundle", "export", f"oci:{out}", "kernels", *REQUEST, "--json", cwd=tmp_path)
    assert made.code == 0, made.err
    return out


def test_kernels_are_built_from_a_bundle_without_a_network(exported: Path, tmp_path: Path) -> None:
    cache, here = tmp_path / "fresh cache", tmp_path / "here"
    here.mkdir()
    shutil.rmtree(cache, ignore_errors=True)
    bare = without_network(cache, here, "kernels", "run", *REQUEST, "--offline", "--allow-binary", "triton-wheel")
    assert bare.code == 18, "there is something to build from without the bundle"

    brought = without_network(cache, here, "bundle", "import", f"oci:{exported}", "--json")
    assert brought.code == 0, brought.err
    kinds = [row["kind"] for row in brought.json["entries"]]
    assert kinds == ["lock", "file", "file", "blob", "blob", "blob", "record", "base"]
    assert all(row["new"] for row in brought.json["entries"])

    rows = without_network(cache, here, "plan", "kernels", *REQUEST, "--locked", "--json").json["stages"]
    assert [row["reused"] for row in rows] == [True, False, False]
    words = ("kernels", "run", *REQUEST, "--offline", "--locked", "--allow-binary", "triton-wheel", "--json")
    built = without_network(cache, here, *words)
    assert built.code == 0, built.err
    base, _, kernels = built.json["stages"]
    assert base["reused"]
    assert not kernels["reused"]
    # A limit selects whole clusters, so there may be more kernels than the limit.
    done = kernels["facts"]["kernels"]["done"]
    assert done >= 2
    assert kernels["facts"]["kernels"]["failed"] == 0
    records = [json.loads(path.read_text()) for path in (cache / "records").glob("*.json")]
    (record,) = (one for one in records if one["stage"] == "kernels")
    assert record["isolation"]["interfaces"] == 0
    sent = without_network(cache, here, "publish", "oci:published", *built.json["publish"], "--json")
    assert sent.code == 0, sent.err
    layout = Layout(here / "published")
    (blob,) = (
        layout.blob(one.digest)
        for one in layout.walk(layout.resolve(sent.json["published"][0]["image"]))
        if one.media_type == media.LAYER_GZIP
    )
    unpack_tar(blob, tmp_path / "unpacked", strip=0)
    objects = list((tmp_path / "unpacked").rglob("*.hsaco"))
    assert len(objects) == done
    for path in objects:
        check_object(path, "gfx942", path.parent.name.rpartition(".")[2])

    # The imported lock is enforced: another kernel source is refused, and the error names the source.
    lock = here / "toolchain.lock"
    lock.write_text(lock.read_text().replace("d0f9f0b0", "00000000"))
    refused = without_network(cache, here, *words)
    assert refused.code == 21
    assert "the source flash-attn: digest" in refused.err
