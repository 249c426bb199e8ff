"""Test that the recorded numbers of kernels equal those that AOTriton's own generator plans."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from toolchain.catalog.aotriton_generations import generation_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(0)]
PYTHON = os.environ.get("TOOLCHAIN_TEST_PYTHON", "python3")
"""A Python with pandas, numpy and PyYAML, which the generator imports."""


def _run(words: list[str], tree: Path, **env: str) -> None:
    ran = subprocess.run(  # noqa: PLW1510 - the assertion shows its errors
        [PYTHON, "-X", "utf8", "-m", *words], cwd=tree, env={**os.environ, **env}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(("release", "gpu"), [("0.11.2b", "gfx1201"), ("0.12b", "gfx90a"), ("0.13b", "gfx950")])
def test_the_generator_plans_the_recorded_number(release: str, gpu: str, tmp_path: Path) -> None:
    clone = os.environ.get("TOOLCHAIN_TEST_AOTRITON_GIT")
    if not clone:
        pytest.skip("TOOLCHAIN_TEST_AOTRITON_GIT names no clone of AOTriton with its tags, so no count was compared")
    tree, out, packed = tmp_path / "tree", tmp_path / "out", tmp_path / "tree.tar"
    subprocess.run(["git", "-C", clone, "archive", "-o", str(packed), release], check=True)
    with tarfile.open(packed) as archive:
        archive.extractall(tree, filter="data")
    module = generation_of(release).generator
    database, path = tree / "v3python" / "database", tree
    if module == "aotriton":
        database, path = tree / "modules" / "database", tmp_path / "path"
        path.mkdir()
        (path / module).symlink_to(tree / "python")
    for part in database.rglob("*.sqlite3.tar.xz"):
        with tarfile.open(part) as archive:
            archive.extractall(out / "database" / part.parent.relative_to(database), filter="data")
    env = {"AOTRITON_ENABLE_FP32": "1", "PYTHONPATH": str(path)}
    whole = out / "database" / "tuning_database.sqlite3"
    _run([f"{module}.database_compose", "--database_file", str(whole), "--decomposed", str(whole.parent)], tree, **env)
    _run(
        [f"{module}.generate", "--target_gpus", f"{gpu}_mod0", "--build_dir", str(out), "--root_dir", str(tree)],
        tree,
        **env,
    )
    planned = [line for line in (out / "Bare.compile").read_text().splitlines() if line.strip()]
    assert len(planned) == generation_of(release).counted[gpu]
