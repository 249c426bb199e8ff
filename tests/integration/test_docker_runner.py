"""Tests of Docker as the runner, on a real daemon that only these tests use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import tiny_image
from tests.dockerd_fixture import dockerd
from tests.kernel_fixtures import local_executor, make_rule
from tests.other_user import read_by_another
from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError, LimitError
from toolchain.core.process import CommandError
from toolchain.core.recipe import Mount
from toolchain.engine.docker import DockerRunner
from toolchain.engine.docker_probe import describe, proved
from toolchain.kernels.executors import LocalExecutor
from toolchain.kernels.rules import Rule
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import SourceSpec

pytestmark = [pytest.mark.engine, pytest.mark.beside]
TOP = Path(__file__).parents[2]
# This shell script speaks the protocol of aotriton/worker.py, and dies, hangs or answers depending on a task's id.
WORKER = """
echo '{"ready": true, "triton": "none"}'
while IFS= read -r task; do
  id=${task#*'"id": "'}; id=${id%%'"'*}
  case $id in
    dies) kill -ABRT $$ ;;
    hangs) while :; do :; done ;;
    *) echo "$id" >"/out/$id"; echo "{\\"id\\": \\"$id\\", \\"status\\": \\"done\\", \\"seconds\\": 0}" ;;
  esac
done
"""


def named(name: str) -> Rule:
    """Return a rule whose id is its name."""
    rule = make_rule(name)
    object.__setattr__(rule, "_id", name)
    return rule


def containers(address: str) -> list[str]:
    """Return the names of all containers of a daemon."""
    words = ["docker", "--host", address, "ps", "--all", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout.split()


def images(address: str) -> list[str]:
    """Return the names of all images of a daemon."""
    words = ["docker", "--host", address, "images", "--all", "--format", "{{.Repository}}"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout.split()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRunner]:
    with dockerd(tmp_path_factory.mktemp("dockerd")) as address:
        yield DockerRunner(address)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a layout, and the digest of the image in it."""
    return tiny_image.make(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def image(runner: DockerRunner, stored: tuple[Path, str]) -> str:
    layout, digest = stored
    reference = runner.ensure_image("tiny", layout, digest)
    assert runner.ensure_image("tiny", layout, digest) == reference
    return reference


def test_run_passes_mounts_and_environment_and_returns_the_exit_code(
    runner: DockerRunner, image: str, tmp_path: Path
) -> None:
    source = tmp_path / 'a "b", c'
    source.mkdir()
    (source / "said").write_text("from the host\n")
    lines: list[str] = []
    result = runner.run(
        image,
        ["/bin/sh", "-c", 'read x </in/said; echo "$x"; echo "$WORD"; echo loud >&2; echo no >/in/new'],
        mounts=[Mount(source, "/in")],
        env={"WORD": "a 'b'"},
        capture=True,
        check=False,
        on_line=lines.append,
        log=tmp_path / "log",
    )
    # busybox returns 1, and dash returns 2
    assert result.returncode in {1, 2}, "the mount is read-only"
    assert result.stdout == "from the host\na 'b'\n"
    assert "loud" in lines
    assert "from the host" in (tmp_path / "log").read_text()


def test_private_tree_is_hidden_from_other_users_while_a_container_reads_it(runner: DockerRunner, image: str) -> None:
    """The daemon mounts the folder for the container, so other users must not reach it through `/proc/PID/root`."""
    secret = "of one user alone, in docker"
    with tempfile.TemporaryDirectory(prefix="toolchain-test-", dir="/tmp") as folder:
        place = Path(folder)
        place.chmod(0o755)
        cache = Cache(place / "cache")
        (place / "tree").mkdir(mode=0o700)
        (place / "tree" / "code.c").write_text(secret)
        (place / "tree" / "code.c").chmod(0o600)
        spec = SourceSpec(kind="local", where=str(place / "tree"))
        got = fetch_source(locate("notes", spec, cache=cache), cache=cache, offline=True)
        (place / "out").mkdir(mode=0o700)
        script = "cat /in/code.c >/out/read; while ! test -e /out/end; do sleep 0.1; done"
        mounts = [Mount(got.path, "/in"), Mount(place / "out", "/out", read_only=False)]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(runner.run, image, ["/bin/sh", "-c", script], mounts=mounts)
            try:
                for _ in range(1200):
                    if (place / "out" / "read").exists() and (place / "out" / "read").read_text() == secret:
                        break
                    time.sleep(0.1)
                assert (place / "out" / "read").read_text() == secret
                roots = [process / "root" / "in" for process in Path("/proc").glob("[0-9]*")]
                assert read_by_another(secret, place, *roots) == []
            finally:
                (place / "out" / "end").touch()
            assert running.result(timeout=300).returncode == 0


def test_containers_have_no_new_privileges_and_few_capabilities(runner: DockerRunner, image: str) -> None:
    script = 'while read -r line; do echo "$line"; done </proc/self/status'
    said = runner.run(image, ["/bin/sh", "-c", script], capture=True).stdout
    rights = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    assert (rights["NoNewPrivs"].strip(), rights["Seccomp"].strip()) == ("1", "2")
    assert int(rights["CapBnd"], 16) & (1 << 18 | 1 << 27 | 1 << 31 | 1 << 6 | 1 << 7) == 0, "chroot, mknod, ids"


def test_failed_commands_and_timeouts_leave_no_container(runner: DockerRunner, image: str) -> None:
    begun = time.monotonic()
    with pytest.raises(CommandError) as failed:
        runner.run(image, ["/bin/sh", "-c", "exit 7"])
    # A shorter timeout would end the client before the daemon answers, and the daemon would still create the container.
    enough = 1 + 3 * (time.monotonic() - begun)
    assert failed.value.returncode == 7
    with pytest.raises(EngineError):
        runner.run("localhost/there/is:none", ["/bin/sh"])
    assert runner.run(image, ["/bin/sh", "-c", "while :; do :; done"], timeout=enough, check=False).returncode != 0
    assert containers(runner.address) == []


# These scripts use only the shell, and end even if no limit is enforced.
BYTES = (
    "x=0123456789abcdef; while [ ${#x} -lt 65536 ]; do x=$x$x; done; i=0; "
    "while [ $i -lt 20000 ]; do echo $x >>/out/large; echo $x >>/large; i=$((i+1)); done"
)
WORDS = "x=0123456789abcdef; i=0; while [ $i -lt 200000 ]; do echo $x; i=$((i+1)); done"
FORKS = "i=0; while [ $i -lt 300 ]; do (read x </out/waits) & i=$((i+1)); done; wait"


@pytest.mark.parametrize(
    ("limit", "script"),
    [
        ("processes=50", FORKS),
        ("written-bytes=20e6", BYTES),
        pytest.param("hours=0.0003", "read x </out/waits", marks=pytest.mark.nightly),
        pytest.param("log-bytes=1e6", WORDS, marks=pytest.mark.nightly),
    ],
    ids=["processes", "bytes", "hours", "log"],
)
def test_container_that_exceeds_a_limit_is_stopped(
    runner: DockerRunner, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, script: str
) -> None:
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "waits")
    monkeypatch.setenv("TOOLCHAIN_LIMITS", limit)
    mounts = [Mount(tmp_path / "out", "/out", read_only=False)]
    with pytest.raises(LimitError) as caught:
        runner.run(image, ["/bin/sh", "-c", script], mounts=mounts, log=tmp_path / "log", check=False)
    assert limit.partition("=")[0] in caught.value.what
    assert containers(runner.address) == []
    monkeypatch.delenv("TOOLCHAIN_LIMITS")
    assert runner.run(image, ["/bin/sh", "-c", "echo here"], capture=True).stdout == "here\n"


def test_foreign_image_under_our_name_is_replaced(
    runner: DockerRunner, stored: tuple[Path, str], image: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.tar").write_bytes(bytes(10240))
    words = ["docker", "--host", runner.address]
    subprocess.run([*words, "import", tmp_path / "empty.tar", image], check=True, capture_output=True, timeout=300)
    assert runner.ensure_image("tiny", *stored) == image
    assert runner.run(image, ["/bin/sh", "-c", "echo here"], capture=True).stdout == "here\n"


def test_worker_that_dies_or_hangs_is_reported_and_leaves_no_container(
    runner: DockerRunner, image: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def executor(timeout: float | None) -> LocalExecutor:
        mounts = [Mount(out, "/out", read_only=False)]
        return local_executor(
            lambda _files, _out: runner.worker(image, ["/bin/sh", "-c", WORKER], mounts=mounts),
            workers=2,
            timeout=timeout,
        )

    outcomes = {
        row["id"]: row for row in executor(None).run([named(name) for name in ("one", "two", "dies", "three")], "", "")
    }
    assert {name: row["status"] for name, row in outcomes.items()} == {
        "one": "done", "two": "done", "three": "done", "dies": "failed",
    }  # fmt: skip
    assert "SIGABRT" in outcomes["dies"]["reason"], "not hidden by a first process that ignores it"
    assert sorted(path.name for path in out.iterdir()) == ["one", "three", "two"]
    assert (out / "one").stat().st_uid == os.geteuid()
    (hung,) = executor(1.5).run([named("hangs")], "", "")
    assert hung["status"] == "timeout"
    assert containers(runner.address) == [], "the daemon's container goes with its worker"


def test_cleanup_removes_only_containers_of_killed_invocations(runner: DockerRunner, image: str) -> None:
    code = (
        "import os, signal, sys; from toolchain.engine.docker import DockerRunner\n"
        "with DockerRunner(sys.argv[1]).worker(sys.argv[2], ['/bin/sh', '-c', 'while :; do :; done']) as child:\n"
        "    child.stdin.close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, runner.address, image], cwd=TOP, check=False, timeout=600)
    (left,) = containers(runner.address)
    words = ["docker", "--host", runner.address, "create", "--entrypoint", "/bin/sh"]
    theirs = "toolchain.process=another-machine/pid:[1]/1-1"
    subprocess.run([*words, "--name", "theirs", "--label", theirs, image], check=True, capture_output=True, timeout=300)
    try:
        with runner.worker(image, ["/bin/sh", "-c", "read x"]):
            runner.cleanup()
            assert left not in containers(runner.address)
            assert len(containers(runner.address)) == 2, "the one at work, and that of another machine"
    finally:
        subprocess.run(["docker", "--host", runner.address, "rm", "--force", "theirs"], check=True, timeout=300)


def test_usable_daemon_is_accepted_and_left_unchanged(runner: DockerRunner, tmp_path: Path) -> None:
    cache, before = Cache(tmp_path / "a cache, with a comma"), sorted(images(runner.address))
    found = proved(cache, host=runner.address)
    assert found.facts == {"program": "docker", "version": runner.version(), "interfaces": 0}
    assert found.user == ""
    assert f"at {runner.address}: its containers see the folders of this machine" in describe(found)
    assert list(cache.work.iterdir()) == []
    assert sorted(images(runner.address)) == before
    assert containers(runner.address) == []


def test_container_with_more_interfaces_than_lo_is_refused(
    runner: DockerRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option for no network is given, but a wrapper of docker replaces it."""
    if len(Path("/proc/net/dev").read_text(encoding="ascii").splitlines()) <= 3:
        pytest.skip("NOTHING TO SEE: this machine has no interface but lo")
    wrapper = tmp_path / "bin" / "docker"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nfor word; do shift; [ "$word" != none ] || word=host; set -- "$@" "$word"; done\n'
        f'exec {shutil.which("docker")} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    with refused("docker-not-isolated") as caught:
        proved(Cache(tmp_path / "cache"), host=runner.address)
    assert caught.value.code == 8
    assert containers(runner.address) == []


def test_a_daemon_with_other_folders_is_refused(tmp_path: Path) -> None:
    """A daemon on another machine may have a folder or file of the same name, but with other content."""
    here, script = Cache(tmp_path / "cache"), tmp_path / "check.sh"
    here.work.mkdir(parents=True)
    script.write_text("echo ours\n")
    (tmp_path / "theirs").write_text("echo theirs\n")
    first = f"mount -t tmpfs none '{here.root}'; mount --bind '{tmp_path}/theirs' '{script}'"
    with dockerd(tmp_path, first=first) as address:
        with refused("docker-other-machine") as caught:
            proved(here, host=address, scripts=[script])
        assert address in caught.value.what
        assert "DOCKER_HOST" in caught.value.fix
        assert caught.value.code == 8
        assert list(here.work.iterdir()) == []
        with refused("docker-other-machine") as caught:
            proved(Cache(tmp_path / "seen by both"), host=address, scripts=[script])
        assert str(script) in caught.value.why


def test_files_that_containers_write_belong_to_the_calling_user(runner: DockerRunner, image: str) -> None:
    """Containers of root's daemon run as the user who calls it, because the cache would otherwise get files of root."""
    socket = Path(runner.address.removeprefix("unix://"))
    socket.parent.chmod(0o755)
    socket.chmod(0o666)
    code = """
import encodings.ascii, json, os, sys  # what is loaded later, this user cannot read
from pathlib import Path
from toolchain.core.cache import Cache
from toolchain.engine.docker_probe import describe, proved
from toolchain.core.recipe import Mount
os.setgroups([]); os.setgid(4242); os.setuid(4242)
top = Path(sys.argv[1])
runner = proved(Cache(top / "cache"), host=sys.argv[2])
runner.run(sys.argv[3], ["/bin/sh", "-c", "echo x >/out/file"], mounts=[Mount(top, "/out", read_only=False)])
print(json.dumps([runner.user, describe(runner), (top / "file").stat().st_uid]))
"""
    # Only root may enter the test's folder, and perhaps the checkout, so the user gets a copy of the tool.
    with tempfile.TemporaryDirectory(prefix="tc-user-", dir="/tmp") as folder:
        for part in ("toolchain", "containerfiles", "llvm-config", "aotriton"):
            shutil.copytree(TOP / part, Path(folder) / "tool" / part, ignore=shutil.ignore_patterns("__pycache__"))
        os.chown(folder, 4242, 4242)
        done = subprocess.run(
            [sys.executable, "-c", code, folder, runner.address, image],
            cwd=Path(folder) / "tool", env={**os.environ, "HOME": folder},
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    user, said, owner = json.loads(done.stdout)
    assert (user, owner) == ("4242:4242", 4242)
    assert "4242:4242" in said
