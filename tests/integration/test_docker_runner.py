"""DockerRunner on a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny_image
from tests.dockerd_fixture import dockerd
from toolchain.engine.docker import DockerRunner
from toolchain.engine.isolation import SCRIPT
from toolchain.errors import EngineError
from toolchain.process import CommandError
from toolchain.recipe import Mount

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRunner]:
    with dockerd(tmp_path_factory.mktemp("dockerd")) as address:
        yield DockerRunner(address)


@pytest.fixture(scope="module")
def image(runner: DockerRunner, tmp_path_factory: pytest.TempPathFactory) -> str:
    layout, digest = tiny_image.make(tmp_path_factory.mktemp("image"))
    reference = runner.ensure_image("tiny", layout, digest)
    assert runner.ensure_image("tiny", layout, digest) == reference
    return reference


def test_runs_with_mounts_environment_and_exit_code(runner: DockerRunner, image: str, tmp_path: Path) -> None:
    source = tmp_path / 'a "b", c'
    source.mkdir()
    (source / "said").write_text("from the host\n")
    lines: list[str] = []
    result = runner.run(
        image,
        ["/bin/sh", "-c", 'read x </in/said; echo "$x"; echo "$WORD"; echo loud >&2; echo no >/in/new'],
        mounts=[Mount(source, "/in")],
        env={"WORD": "a 'b'"},
        workdir="/bin",
        capture=True,
        check=False,
        on_line=lines.append,
        log=tmp_path / "log",
    )
    # 1 from busybox, 2 from dash
    assert result.returncode in {1, 2}, "the mount is read-only"
    assert result.stdout == "from the host\na 'b'\n"
    assert "loud" in lines
    assert "from the host" in (tmp_path / "log").read_text()


def test_has_no_network(runner: DockerRunner, image: str) -> None:
    result = runner.run(image, ["/bin/sh", "-c", SCRIPT], capture=True)
    assert result.stdout == "@interfaces 0\n"
    assert runner.network == "none"


def test_failures_and_timeouts(runner: DockerRunner, image: str) -> None:
    with pytest.raises(CommandError, match="exited with 7"):
        runner.run(image, ["/bin/sh", "-c", "exit 7"])
    with pytest.raises(EngineError):
        runner.run("localhost/there/is:none", ["/bin/sh"])
    assert runner.run(image, ["/bin/sh", "-c", "while :; do :; done"], timeout=1, check=False).returncode == 137


def test_no_daemon_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="docker version failed"):
        DockerRunner(f"unix://{tmp_path}/none.sock").version()
