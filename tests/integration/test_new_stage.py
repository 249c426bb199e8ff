"""A stage that is not part of the tool, made of a row, a module, a Containerfile and a script, with the real engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolchain.core.cache import Cache, default_cache
from toolchain.oci.layer_files import read_member
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import image_tag, used_mark

pytestmark = pytest.mark.engine
TOP = Path(__file__).resolve().parents[2]


def test_new_stage_is_built_in_the_base_and_published(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "report.txt").write_text("one\ntwo\n")

    def tool(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "tests.with_report", "contained", *words, "--json"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(TOP)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    asked = ("--base", "debian13", "--source", "notes=notes")
    built = tool("build", "report", *asked)
    stage = built["stages"][-1]
    image = stage["image"]
    tool("publish", "oci:out", *built["publish"])
    layout = Layout(tmp_path / "out")
    manifest = layout.children(layout.resolve(image))[0]
    config, layer = layout.children(manifest)
    assert layout.read_json(config)["config"]["Labels"]["org.opencontainers.image.licenses"] == "CC0-1.0"
    text = read_member(layout.blob(layer.digest), layer.media_type, "usr/share/report/report.txt")
    assert text == b"one\ntwo\n2\n"
    cache = Cache(default_cache())
    record = cache.record(stage["input_digest"])
    record.unlink()
    used_mark(record).unlink(missing_ok=True)
    Layout(cache.images).untag(image_tag(image, stage["input_digest"]))
