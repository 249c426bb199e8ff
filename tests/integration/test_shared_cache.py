"""Cleanup keeps the folders of a build in another container, because their removal would detach the build's mounts.

The removal of a folder detaches every mount on it, in all mount namespaces. Processes inside then use a detached tree,
in which neither a mount nor an unmount succeeds: `overlay … invalid argument`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_image
from tests.own_engine import destroy
from toolchain.core.cache import Cache
from toolchain.engine.buildah import Buildah

pytestmark = [pytest.mark.engine, pytest.mark.beside]
TOP = Path(__file__).resolve().parents[2]
CONTAINERFILE = r"""
ARG BASE
FROM ${BASE} AS build
RUN --mount=type=bind,from=tree,target=/src read said </src/said; echo "$said" >/out

FROM scratch
COPY --from=build /out /made/out
"""
BUILD = """
import sys
from pathlib import Path
from toolchain.core.cache import Cache
from toolchain.engine.buildah import Buildah
from toolchain.core.recipe import Recipe
top = Path(sys.argv[1])
recipe = Recipe(name="tiny", containerfile="Tiny", base=sys.argv[2], contexts={"tree": top / "tree"})
engine = Buildah(Cache(top / "cache"))
engine._proved = True
engine.build(recipe, root=top / "recipes", out=top / "out", log=top / "log")
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Buildah, str]]:
    """Yield an engine with a storage of the test's own, and a tiny image in it."""
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        pytest.skip("NO CONTAINER IS SHARED WITH: this needs root, and buildah (apt-get install buildah)")
    found = Buildah(Cache(tmp_path / "cache"))
    layout, digest = tiny_image.make(tmp_path / "image")
    yield found, found.ensure_image("tiny", layout, digest)
    destroy(found)


@contextlib.contextmanager
def waiting(pipe: Path, failed: Any) -> Iterator[None]:
    """Begin the block when a process reads `pipe`, and write a line to the pipe at the end of the block."""
    deadline = time.monotonic() + 600
    writer = None
    while writer is None:
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no process reads the pipe yet
            assert time.monotonic() < deadline
            assert failed() is None
            time.sleep(0.1)
    with os.fdopen(writer, "w") as line:
        yield
        line.write("hello\n")


def test_build_in_another_pid_namespace_survives_cleanup(engine: tuple[Buildah, str], tmp_path: Path) -> None:
    """Containers that share a volume do not see each other's processes."""
    buildah, image = engine
    for name in ("recipes", "tree"):
        (tmp_path / name).mkdir()
    (tmp_path / "recipes" / "Tiny").write_text(CONTAINERFILE)
    os.mkfifo(tmp_path / "tree" / "said")
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", sys.executable, "-c"]
    child = subprocess.Popen(
        [*words, textwrap.dedent(BUILD), str(tmp_path), image], env={**os.environ, "PYTHONPATH": str(TOP)}
    )
    try:
        with waiting(tmp_path / "tree" / "said", child.poll):
            assert Buildah(buildah.cache).cleanup() == []
        assert child.wait(600) == 0, (tmp_path / "log").read_text()
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "out" / "made" / "out").read_text() == "hello\n"
