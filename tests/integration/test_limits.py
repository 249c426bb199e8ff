"""A build that takes processes, disk or time without end is ended, names the limit, and leaves room for the next one.

All bombs are bounded themselves, so that they end even if a limit does not hold.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import tiny_image
from tests.own_engine import destroy
from toolchain.core import process
from toolchain.core.cache import Cache
from toolchain.core.errors import LimitError
from toolchain.core.recipe import Mount, Recipe
from toolchain.engine import container_limits, view
from toolchain.engine.buildah import Buildah
from toolchain.engine.resources import disk_bytes
from toolchain.engine.storage import cache_mounts

pytestmark = [pytest.mark.engine, pytest.mark.beside]

CONTAINERFILE = r"""
ARG BASE
FROM ${BASE} AS build
RUN --mount=type=cache,id=toolchain-tiny-tree,target=/build \
    --mount=type=cache,id=toolchain-ccache,target=/ccache \
    --mount=type=bind,from=tree,target=/src \
    . /src/script; echo made >/out

FROM scratch
COPY --from=build /out /made/out
"""
# The scripts use only the shell's own commands. A child waits at a pipe to which no process writes.
FORKS = "i=0; while [ $i -lt 400 ]; do (read x </run/toolchain-output/err) & i=$((i+1)); done; wait"
FILES = "i=0; while [ $i -lt 20000 ]; do for p in /build /ccache /; do : >$p/$i; done; i=$((i+1)); done"
BYTES = (
    "x=0123456789abcdef; while [ ${#x} -lt 65536 ]; do x=$x$x; done; i=0; while [ $i -lt 4000 ]; do "
    "for p in /build /ccache /; do echo $x >>$p/large; done; i=$((i+1)); done"
)
WORDS = "x=0123456789abcdef; i=0; while [ $i -lt 200000 ]; do echo $x; i=$((i+1)); done"
WAITS = "read x </run/toolchain-output/err"


@dataclass(frozen=True)
class Here:
    """An engine with the tiny image in it."""

    top: Path
    buildah: Buildah
    image: str

    def build(self, script: str) -> str:
        """Build with a script, and return the text of the file that the build made."""
        (self.top / "tree").mkdir(exist_ok=True)
        (self.top / "tree" / "script").write_text(f"{script}\n")
        recipe = Recipe(
            name="tiny", containerfile="Tiny", base=self.image, contexts={"tree": self.top / "tree"}, cache_key="k",
            compiler_cache="c",
        )  # fmt: skip
        self.buildah.build(recipe, root=self.top / "recipes", out=self.top / "out", log=self.top / "log")
        return (self.top / "out" / "made" / "out").read_text()

    def require_nothing_left(self) -> None:
        """Assert that no process, container or folder of a build is left."""
        assert self.buildah.call("containers", "--quiet").stdout == ""
        assert not any(self.buildah.live.iterdir())
        assert not list(self.top.glob(".out*"))
        assert inside(self.top) == []


def inside(folder: Path) -> list[str]:
    """Return the ids of the processes whose mounts include a path below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/" in (path / "mountinfo").read_text(errors="replace"):
                found.append(path.name)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt-get install buildah")
    top = tmp_path_factory.mktemp("limits")
    engine = Buildah(Cache(top / "cache"))
    engine._proved = True
    (top / "recipes").mkdir()
    (top / "recipes" / "Tiny").write_text(CONTAINERFILE)
    yield Here(top, engine, engine.ensure_image("tiny", *tiny_image.make(top / "image")))
    destroy(engine)


@pytest.mark.parametrize(
    ("name", "value", "script"),
    [
        ("processes", "100", FORKS),
        ("written-bytes", "20e6", BYTES),
        ("written-files", "2000", FILES),
        ("log-bytes", "1e6", WORDS),
        ("hours", "0.0002", WAITS),
    ],
    ids=["processes", "bytes", "files", "log", "hours"],
)
def test_build_that_exceeds_a_limit_is_stopped(
    here: Here, monkeypatch: pytest.MonkeyPatch, name: str, value: str, script: str
) -> None:
    monkeypatch.setenv("TOOLCHAIN_LIMITS", f"{name}={value}")
    with pytest.raises(LimitError) as caught:
        here.build(script)
    assert name in caught.value.what
    assert f"TOOLCHAIN_LIMITS={name}=" in caught.value.fix
    assert caught.value.code == 26
    here.require_nothing_left()
    if name.startswith("written"):
        assert cache_mounts(here.buildah.cache, "toolchain-tiny-tree-k") == []
        assert disk_bytes(here.buildah.root) < 20e6
    monkeypatch.delenv("TOOLCHAIN_LIMITS")
    assert here.build("") == "made\n"


def test_a_build_on_a_full_disk_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is a tmpfs with few bytes and few inodes."""
    if os.geteuid() != 0:
        pytest.skip("NO DISK IS FILLED: to mount one needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m,nr_inodes=4000", "tmpfs", disk], check=True)
    try:
        loop = "while i < 400000:\n    i += 1\n    "
        bombs = {
            "free-bytes": f"{loop}\n    try: file = open('/disk/large', 'ab'); file.write(bytes(1 << 20))\n"
            "    except OSError: time.sleep(0.01)",
            "free-files": f"{loop}\n    try: open(f'/disk/{{i}}', 'w').close()\n    except OSError: time.sleep(0.01)",
        }
        for name, bomb in bombs.items():
            place = disk / name
            assert ended_at(tmp_path, f"import time\ni = 0\n{bomb}", place) == name
            shutil.rmtree(place)
    finally:
        subprocess.run(["umount", disk], check=True)


def ended_at(folder: Path, script: str, place: Path) -> str:
    """Run a Python program that writes to `/disk`, without a container, and return the limit that ended it."""
    view.own(place)
    limits = container_limits.limits_for(folder, [place])
    shown = [Mount(place, "/disk", read_only=False)]
    argv = [os.fspath(Path("/usr/bin/python3").resolve()), "-I", "-S", "-c", script]
    words = view.command(argv, folder / "settings", show=shown, limits=limits)
    begun = time.monotonic()
    done = process.run(words, check=False, timeout=600)
    found = container_limits.reached(folder)
    assert time.monotonic() - begun < 500, done.tail
    (folder / "limit.json").unlink(missing_ok=True)
    assert found is not None, done
    return found.name


def test_another_user_s_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of a namespace can become many users, each of which has its own resource limits."""
    monkeypatch.setenv("TOOLCHAIN_LIMITS", "processes=100")
    script = (
        "import os, time\nfor number in range(300):\n    if os.fork() == 0:\n        os.setuid(number + 1)\n"
        "        time.sleep(550)\n        os._exit(0)\ntime.sleep(550)"
    )
    assert ended_at(tmp_path, script, tmp_path / "place") == "processes"


def test_launcher_sets_the_kernel_s_resource_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_LIMITS", "processes=100,file-bytes=1000000")
    limits = container_limits.limits_for(tmp_path, [])
    words = view.command(["cat", "/proc/self/limits"], tmp_path / "settings", limits=limits)
    said = process.run(words, capture=True).stdout
    found = {line[:25].strip(): line.split()[-2] for line in said.splitlines()[1:]}
    assert found["Max processes"] == str(100 + 4096)
    assert found["Max file size"] == "1000000"


def test_a_build_cannot_become_another_user(here: Here) -> None:
    script = 'while read -r a b; do [ "$a" = CapBnd: ] && echo "$b"; done </proc/self/status >/out2'
    here.build(f"{script}; read caps </out2; echo caps $caps")
    (line,) = [line for line in (here.top / "log").read_text().splitlines() if line.startswith("caps ")][-1:]
    assert int(line.split()[1], 16) & (1 << 6 | 1 << 7) == 0


def test_a_line_without_an_end_is_read_in_pieces() -> None:
    lengths: list[int] = []
    program = "import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))"
    process.run([sys.executable, "-I", "-c", program], on_line=lambda line: lengths.append(len(line)))
    assert sum(lengths) == 64 << 20
    assert max(lengths) <= 64 << 10


def test_captured_output_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LARGEST_OUTPUT", 1 << 20)
    with pytest.raises(LimitError):
        process.run([sys.executable, "-I", "-c", "for _ in range(1 << 20): print('x' * 100)"], capture=True)


def test_a_build_sees_no_variable_of_the_caller(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables would name other settings, caches, repositories and logins."""
    for name in ("CCACHE_DIR", "CCACHE_CONFIGPATH", "CCACHE_PREFIX", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
                 "CONTAINERS_REGISTRIES_CONF", "BUILDAH_ISOLATION", "BUILDAH_FORMAT", "STORAGE_OPTS", "GIT_DIR",
                 "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND", "GIT_EXEC_PATH", "REGISTRY_AUTH_FILE",
                 "PYTHONPATH", "TMPDIR"):  # fmt: skip
        monkeypatch.setenv(name, "/tmp/of-the-caller")
    here.build("export -p")
    text = (here.top / "log").read_text().rpartition("STEP 4/4")[2]
    assert "PATH" in text
    assert "of-the-caller" not in text
