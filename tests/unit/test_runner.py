"""`--runner`: checks and kernels run in the requested runner, which is tested before the first stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.refusals import refused
from tests.unit.test_pipeline import Fake, planned
from toolchain.cli.app import app as whole
from toolchain.cli.doctor_cmd import doctor as verb
from toolchain.core.cache import Cache
from toolchain.core.errors import UnsupportedError
from toolchain.core.recipe import Mount
from toolchain.engine import docker, docker_probe
from toolchain.engine import probe as engine_probe
from toolchain.engine.docker import DockerRunner
from toolchain.pipeline import plan as planning
from toolchain.pipeline import run as pipeline
from toolchain.request.model import Request, option_named

FACTS = {"program": "docker", "version": "99.1", "interfaces": 0}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.fspath(folder))
    for name in ("TOOLCHAIN_RUNNER", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    return folder


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_runner_is_buildah_or_docker() -> None:
    declared = option_named("runner")
    assert [declared.value(name) for name in ("buildah", "docker")] == ["buildah", "docker"]
    for text in ("", "podman", "Docker"):
        with pytest.raises(UnsupportedError):
            declared.value(text)
    assert declared.is_input is False, "the bytes are the same"


def test_failing_runner_is_refused_before_the_first_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Path
) -> None:
    """A failure after hours of LLVM would be too late, and buildah must not replace the requested runner."""
    install(programs, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1")
    monkeypatch.setattr(engine_probe, "probe", lambda _: None)
    stages = (Fake("base", lambda: planned("base")), Fake("llvm", lambda: planned("llvm", engine=True)))
    for module in (planning, pipeline):
        monkeypatch.setattr(module, "stages_of", lambda target, request: stages)
    request = Request(cache=Cache(tmp_path / "cache"), runner="docker")
    with refused("docker-failed") as caught:
        pipeline.build(request, "all")
    assert "Cannot connect" in caught.value.why
    assert [stage.built for stage in stages] == [[], []]


def doctored(*words: str, **env: str) -> dict[str, Any]:
    app = typer.Typer()
    app.command()(verb)
    done = CliRunner().invoke(app, [*words, "--json"], env=env)
    said: dict[str, Any] = json.loads(done.stdout)
    rows = {row["name"]: row for row in said["checks"]}
    return {"ready": said["ready"], **rows["runner"]}


def test_doctor_names_the_runner_and_its_origin(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    cache = ("--cache", os.fspath(tmp_path / "cache"))
    assert doctored(*cache)["detail"].startswith("buildah, the default: ")
    missing = doctored(*cache, TOOLCHAIN_RUNNER="docker")
    assert (missing["status"], missing["code"], missing["ready"]) == ("fail", 8, False)
    assert missing["detail"].startswith("docker, from TOOLCHAIN_RUNNER: ")
    install(programs, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1")
    silent = doctored(*cache, "--runner", "docker", DOCKER_HOST="tcp://far.example:2375")
    assert "tcp://far.example:2375 (Cannot connect to the daemon)" in silent["detail"]
    (tmp_path / "t.toml").write_text('runner = "docker"\n')
    words = ["--config", os.fspath(tmp_path / "t.toml"), "doctor", "--json", *cache]
    checks = json.loads(CliRunner().invoke(whole, words).stdout)["checks"]
    (row,) = [row for row in checks if row["name"] == "runner"]
    assert row["detail"].startswith(f"docker, from {tmp_path}/t.toml: ")
    monkeypatch.setattr(docker_probe, "proved", lambda *_: SimpleNamespace(facts=FACTS, address="", user=""))
    assert doctored(*cache, TOOLCHAIN_RUNNER="docker")["status"] == "ok"


def test_a_client_without_a_daemon_has_no_version(programs: Path) -> None:
    install(programs, "docker", 'echo \'{"Client": {"Version": "5.6"}}\'')
    with refused("docker-failed"):
        DockerRunner().version()


def test_line_is_logged_before_the_listener_is_called(programs: Path, tmp_path: Path) -> None:
    """A kill of the tool must not lose the last lines."""
    install(programs, "docker", 'case "$2" in run) echo first; echo second ;; esac')
    log, seen = tmp_path / "log", list[str]()
    runner = DockerRunner(settings=tmp_path / "settings")
    runner.run("image", ["true"], log=log, on_line=lambda _: seen.append(log.read_text()))
    assert [text.splitlines()[1:] for text in seen] == [["first"], ["first", "second"]]


def test_a_line_without_an_end_is_read_in_pieces(programs: Path, tmp_path: Path) -> None:
    """Without a limit, a hostile container could fill the memory."""
    install(programs, "docker", 'case "$2" in run) x=1234567890; for _ in 1 2 3 4; do x=$x$x$x$x$x$x$x$x$x$x; done; '
            'printf %s "$x"; printf %s "$x" ;; esac')  # fmt: skip
    pieces: list[str] = []
    DockerRunner(settings=tmp_path / "settings").run("image", ["true"], on_line=pieces.append)
    assert len("".join(pieces)) == 200_000
    assert len(pieces) > 1


@pytest.mark.parametrize("way", ["exit 1", "exec sleep 60"])
def test_no_container_runs_if_its_disk_is_not_known(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The daemon's folder would be left out of the limits, and a container could fill its disk."""
    monkeypatch.setattr(docker, "_INFO", 0.2)
    install(
        programs,
        "docker",
        f'PATH=/usr/bin:/bin; case "$1" in info) {way} ;; *) echo "$@" >>\'{tmp_path}/calls\' ;; esac',
    )
    with refused("docker-failed"):
        DockerRunner(settings=tmp_path / "settings").run("image", ["true"])
    assert not (tmp_path / "calls").exists()


# A client whose daemon creates a container one second after the request, even if the client has ended.
SLOW = """
PATH=/usr/sbin:/usr/bin:/sbin:/bin
there=$(dirname "$0")/containers
for last; do :; done
case "$2" in
  run|create) while [ "$1" != --name ]; do shift; done
    setsid sh -c "touch '$there.asked'; sleep 1; touch '$there/$2' '$there.created'" >/dev/null 2>&1 &
    sleep 60 ;;
  rm) if rm "$there/$last"; then echo "$last"; fi ;;
esac
"""


@pytest.mark.parametrize("way", ["timeout", "Ctrl-C", "Ctrl-C for a worker", "kill", "kill for a worker"])
def test_container_created_after_the_end_of_its_client_is_removed(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    install(programs, "docker", SLOW)
    (programs / "containers").mkdir()
    wait, seen = subprocess.Popen.wait, list[subprocess.Popen[str]]()

    def ended(child: subprocess.Popen[str], timeout: float | None = None) -> int:
        if not seen and {"run", "create"} & set(child.args):  # type: ignore[arg-type]
            seen.append(child)
            while not (programs / "containers.asked").exists():
                time.sleep(0.01)
            if way.startswith("kill"):
                os.killpg(child.pid, signal.SIGKILL)
                return wait(child, timeout)
            raise KeyboardInterrupt if timeout is None else subprocess.TimeoutExpired("docker", timeout)
        return wait(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", ended)
    runner = DockerRunner(settings=tmp_path / "settings")
    if way == "timeout":
        runner.run("image", ["true"], timeout=0.01, check=False)
    elif way == "kill":
        runner.run("image", ["true"], check=False)
    elif way == "kill for a worker":
        with refused("docker-failed"), runner.worker("image", ["true"]):
            pass
    elif way == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            runner.run("image", ["true"])
    else:
        with pytest.raises(KeyboardInterrupt), runner.worker("image", ["true"]):
            pass
    assert (programs / "containers.created").exists()
    assert list((programs / "containers").iterdir()) == []


def test_user_id_is_mapped_to_outside_the_namespace() -> None:
    table = "         0       1000          1\n         1     100000      65536\n"
    assert [docker_probe.outside(table, number) for number in (0, 1, 65536)] == [1000, 100000, 165535]
    assert docker_probe.outside("0 0 4294967295\n", 7) == 7


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("/plain", ["type=bind", "source=/plain", "target=/in", "readonly"]),
        ('/a "b", c', ["type=bind", '"source=/a ""b"", c"', "target=/in", "readonly"]),
    ],
)
def test_mount_source_is_quoted_if_needed(source: str, fields: list[str]) -> None:
    from toolchain.engine.docker import _mount  # noqa: PLC0415 - its one use

    assert _mount(Mount(Path(source), "/in")) == fields
    assert _mount(Mount(Path(source), "/in", read_only=False)) == fields[:-1]
