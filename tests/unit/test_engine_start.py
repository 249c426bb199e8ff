"""Tests of the engine: starting buildah, cleaning up after killed invocations, and shells in stages."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.refusals import refused
from tests.request_fixtures import request_of
from toolchain.core import process
from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError
from toolchain.core.locks import kept
from toolchain.core.process import Result
from toolchain.core.recipe import Recipe
from toolchain.engine import attack, isolation, view
from toolchain.engine import storage as engine_storage
from toolchain.engine.buildah import Buildah
from toolchain.engine.container_limits import Reached
from toolchain.engine.probe import judge, measures
from toolchain.engine.storage import Storage, ccache_mount, remove_tree
from toolchain.pipeline.stage_shell import _ShellWorkspace
from toolchain.stages.stage import LayerContent, Planned

# This program counts its calls in a file, and fails the first N times with the given message.
PROGRAM = """
import pathlib, sys
count = pathlib.Path(sys.argv[1])
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
if n <= int(sys.argv[2]):
    sys.exit(sys.argv[3])
print("done")
"""
BUSY = "Close_Fd sealing memfd copy: Device or resource busy"


def test_folder_that_contains_a_mount_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "a tree" / "mnt" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    real, point = Path.read_text, str(mine.parent).replace(" ", "\\040")
    table = [f"1 1 0:1 / {point} rw - x x rw\n"]

    def read(path: Path, *args: Any, **more: Any) -> str:
        return table[0] if path == Path("/proc/self/mountinfo") else real(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", read)
    remove_tree(tmp_path / "a tree")
    assert mine.is_file()
    table[0] = ""
    remove_tree(tmp_path / "a tree")
    assert not (tmp_path / "a tree").exists()


def test_unreadable_folders_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "closed" / "inner").mkdir(parents=True)
    (tree / "closed" / "inner" / "file").touch()
    (tree / "closed" / "inner").chmod(0)
    (tree / "closed").chmod(0)
    tmp_path.chmod(0o755)
    # Without these capabilities the modes also apply to root.
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    program = (
        "import pathlib, sys; from toolchain.engine.storage import remove_tree; remove_tree(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([*words, sys.executable, "-c", program, tree], check=True)
    assert not tree.exists()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return Storage(Cache(tmp_path / "cache"))


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT: only root can give files to other users")
def test_every_call_uses_the_same_buildah(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a program that PATH names outside of the system's folders."""
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    storage._driver = "vfs"
    for pipes in (None, tmp_path):
        words = storage.command("images", pipes=pipes)
        inside = words[words.index("--root") - 1]
        assert [os.fspath(program), inside, False] in json.loads(words[4])["binds"]


@pytest.mark.parametrize(
    ("failures", "words", "code", "calls"),
    [(0, BUSY, 0, 1), (2, BUSY, 0, 3), (9, BUSY, 1, 4), (1, "Error: no such image", 1, 1)],
)
def test_busy_buildah_is_started_up_to_four_times(
    storage: Storage, tmp_path: Path, failures: int, words: str, code: int, calls: int
) -> None:
    count = tmp_path / "count"
    argv = [sys.executable, "-c", PROGRAM, str(count), str(failures), words]
    result = storage.attempt(argv, check=False, capture=True)
    assert (result.returncode, int(count.read_text())) == (code, calls)
    assert result.stdout == ("done\n" if code == 0 else "")


def told(*lines: str, interfaces: int | str = 0, out: str = "", without: str = "") -> Result:
    """Return the output of the probe, in which the attempt `out` succeeded and the attempt `without` is missing."""
    names = [name for name in attack.ATTEMPTS if name not in {out, without}]
    more = [f"@out {out}: there"] if out else []
    return Result(0, "\n".join([f"@interfaces {interfaces}", *(f"@held {name}" for name in names), *more, *lines]), ())


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (told(), ""),
        (told(interfaces=3), "3"),
        (told(interfaces="unknown"), "network"),
        (told(out="keyctl"), "keyctl: there"),
        (told(without="keyctl"), "keyctl"),
        (Result(125, "", ("no such program",)), "no such program"),
    ],
)
def test_judge_refuses_a_visible_network_and_a_successful_or_missing_attempt(result: Result, named: str) -> None:
    if not named:
        judge(result)
        return
    with pytest.raises(EngineError) as caught:
        judge(result)
    assert named in caught.value.why


def test_measures_depend_on_dropped_capabilities_and_seccomp_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    before = measures()
    monkeypatch.setattr(isolation, "DROPPED", isolation.DROPPED[1:])
    assert measures() != before
    monkeypatch.undo()
    monkeypatch.setattr(view, "seccomp", lambda **_: {})
    assert measures() != before


HOLD = """
import sys
from pathlib import Path
from toolchain.core.cache import Cache
from toolchain.engine.storage import Storage
with Storage(Cache(Path(sys.argv[1]))).invocation("build"):
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_cleanup_keeps_a_running_invocation_of_another_container(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers can share a cache, but neither sees the processes of the other."""
    monkeypatch.setattr(engine_storage, "process_identity", lambda _: None)
    monkeypatch.setattr(process, "find", lambda program: f"/bin/{program}")
    monkeypatch.setattr(storage, "call", lambda *_, **__: Result(0, "", ()))
    mounted = storage.cache.mounts / "buildah123" / "mnt"
    words = [sys.executable, "-c", HOLD, str(storage.cache.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "at work\n"
        mounted.mkdir(parents=True)
        (held,) = storage.live.iterdir()
        storage.cleanup()
        assert (held.is_dir(), mounted.is_dir()) == (True, True)
        child.kill()
        child.wait()
    storage.cleanup()
    assert (held.is_dir(), mounted.is_dir()) == (False, False)
    assert not list(storage.cache.engine.glob("live-*"))


@pytest.mark.parametrize(
    ("limit", "other", "kept_"),
    [
        ("written-bytes", False, False),
        ("written-bytes", True, True),
        ("free-bytes", True, False),
        ("hours", False, True),
    ],
)
def test_build_at_a_disk_limit_removes_its_tree_unless_others_may_have_written(
    tmp_path: Path, limit: str, other: bool, kept_: bool
) -> None:
    engine = Buildah(Cache(tmp_path))
    engine._driver, engine._swept = "vfs", True
    recipe = Recipe(name="llvm", containerfile="x", base="y", cache_key="k", compiler_cache="c")
    tree, objects = (
        engine.cache.mounts / "buildah-cache" / name for name in ("toolchain-llvm-tree-k", ccache_mount("c"))
    )
    tree.mkdir(parents=True)
    objects.mkdir()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(engine.invocation("build"))
        if other:
            stack.enter_context(engine.invocation("build"))
        assert engine._free_disk(recipe, Reached(limit, ()), folder) is not kept_
    assert (tree.exists(), objects.exists()) == (kept_, True), "other builds may be using the compiler cache"


def test_cleanup_keeps_old_scratch_folders_that_are_locked(storage: Storage) -> None:
    scratch, left = (storage.cache.work / f"shell-a1b2c3_{letter}" for letter in "de")
    scratch.mkdir(parents=True)
    (left / "layout").mkdir(parents=True)
    for folder in (scratch, left):
        os.utime(folder, (0, 0))
    with kept(scratch):
        storage.cleanup()
        assert (scratch.is_dir(), left.exists()) == (True, False)


def test_cache_is_marked_even_if_the_engine_uses_it_first(storage: Storage) -> None:
    """Otherwise `cache prune` would refuse every cache whose first command was a build."""
    storage.cleanup()
    storage.cache.make()
    assert storage.cache.is_ours


def test_a_shell_in_a_stage_without_a_container_records_nothing(tmp_path: Path) -> None:
    request, fake = request_of(cache=Cache(tmp_path / "cache")), cast("Any", None)
    workspace = _ShellWorkspace(request, tmp_path / "log", fake, "wheels", fake, shell=fake, folder=tmp_path)
    with refused("stage-not-in-container"):
        workspace.finish(Planned(name="wheels", image="wheels", inputs={}), LayerContent(tree=tmp_path), facts={})
    assert not request.cache.images.exists()
