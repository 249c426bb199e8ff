"""Tests of the engine on real buildah with a tiny image."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_image
from tests.evidence_fixtures import record
from tests.own_engine import destroy
from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.errors import HostileInputError
from toolchain.core.process import CommandError
from toolchain.core.recipe import Mount, Recipe
from toolchain.engine.buildah import Buildah
from toolchain.engine.judge import require_inside
from toolchain.engine.storage import cache_mounts
from toolchain.pipeline.cache_usage import DAY, prune
from toolchain.pipeline.records import write_record

pytestmark = [pytest.mark.engine, pytest.mark.beside]

CONTAINERFILE = r"""
ARG BASE
FROM ${BASE} AS build
ARG WORD=
RUN --mount=type=cache,id=toolchain-tiny-tree,target=/build \
    --mount=type=bind,from=tree,target=/src \
    --mount=type=bind,source=.,target=/recipe \
    read said </src/said; echo "$said $WORD" >>/build/log; umask 022; \
    while IFS= read -r line; do echo "kept $line"; done </build/log >/out; \
    case "$WORD" in \
      bad) echo "toolchain: a bad word" >&2; exit 41 ;; \
      slow) : >/build/started; while :; do :; done ;; \
    esac

FROM scratch
COPY --from=build /out /made/out
"""
TALK = 'while IFS= read -r line; do echo "$1 heard $line"; done'


@dataclasses.dataclass(frozen=True)
class Here:
    """An engine with the tiny image in it, below a path that has to be quoted in a shell."""

    top: Path
    buildah: Buildah
    image: str
    recipe: Recipe

    def build(self, out: str = "out", **change: object) -> Path:
        """Build the recipe with the given fields changed."""
        recipe = dataclasses.replace(self.recipe, **change)  # type: ignore[arg-type]
        self.buildah.build(recipe, root=self.top / "recipes", out=self.top / out, log=self.top / "log")
        return self.top / out / "made" / "out"

    def leftovers(self) -> list[str]:
        """Return the containers, images and files that must not exist while nothing runs."""
        containers = self.buildah.call("containers", "--quiet", "--all").stdout.split()
        images = self.buildah.call("images", "--quiet", "--filter", "dangling=true").stdout.split()
        marks = [path.name for path in self.buildah.live.iterdir()]
        partial = [path.name for path in self.top.iterdir() if path.name.endswith((".partial", ".old"))]
        return [*containers, *images, *marks, *partial]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    for program in ("buildah", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {program}")
    top = tmp_path_factory.mktemp("engine") / 'it\'s a "place", here: \\'
    (top / "recipes" / "containerfiles").mkdir(parents=True)
    (top / "recipes" / "containerfiles" / "Tiny").write_text(CONTAINERFILE)
    tree = top / "the tree: one, two"
    tree.mkdir()
    (tree / "said").write_text("hello\n")
    buildah = Buildah(Cache(top / "cache"))
    layout, digest = tiny_image.make(top / "image")
    image = buildah.ensure_image("tiny", layout, digest)
    recipe = Recipe(
        name="tiny",
        containerfile="containerfiles/Tiny",
        base="tiny",
        args={"WORD": 'it\'s "one"'},
        contexts={"tree": tree},
        cache_key="k0",
    )
    yield Here(top, buildah, image, recipe)
    destroy(buildah)


def test_image_is_read_from_its_layout_only_once(here: Here, tmp_path: Path) -> None:
    layout, digest = tiny_image.make(tmp_path)
    reference = here.buildah.ensure_image("other", layout, digest)
    assert reference == f"localhost/toolchain/other:{digest[7:19]}"
    shutil.rmtree(layout)
    assert here.buildah.ensure_image("other", layout, digest) == reference, "the second time needs no layout"
    here.buildah.forget_image(reference)
    with refused("build-image-missing"):
        here.buildah.ensure_image("other", layout, digest)


def _tree(buildah: Buildah, key: str) -> Path:
    """Return the folder of the tree cache with this key."""
    return next(iter(cache_mounts(buildah.cache, f"toolchain-tiny-tree-{key}")), Path("/nonexistent"))


def test_tree_that_may_run_too_many_links_at_once_is_configured_again(here: Here, tmp_path: Path) -> None:
    """LLVM's build script configures a tree without a stamp, and CMake wrote the number into this one earlier."""
    args = {**here.recipe.args, "LINK_JOBS": "2"}
    here.build(cache_key="links", args=args)
    tree = _tree(here.buildah, "links")
    (tree / "amd64").mkdir()
    (tree / "linked").symlink_to(tmp_path)
    for folder, jobs in ((tree, 3), (tree / "amd64", 2), (tmp_path, 3)):
        (folder / "CMakeCache.txt").write_text(f"A:BOOL=ON\nLLVM_PARALLEL_LINK_JOBS:UNINITIALIZED={jobs}\n")
        (folder / "toolchain-stamp").write_text("inputs\n")
    here.build(cache_key="links", args=args)
    assert [(folder / "toolchain-stamp").exists() for folder in (tree, tree / "amd64", tmp_path)] == [False, True, True]
    assert (tree / "CMakeCache.txt").exists()


def test_a_build_keeps_its_tree_by_key_and_leaves_nothing_else(here: Here) -> None:
    here.buildah.drop_cache("tiny", "k1")
    first = here.build(cache_key="k1")
    assert first.read_text() == 'kept hello it\'s "one"\n'
    assert here.build(cache_key="k1").read_text().count("kept") == 2, "the tree was found again, the output replaced"
    assert here.build("other", cache_key="k2").read_text().count("kept") == 1, "another key, another tree"
    assert (_tree(here.buildah, "k1") / "log").is_file()
    here.buildah.drop_cache("tiny", "k1")
    assert not _tree(here.buildah, "k1").exists()
    assert here.build(cache_key="k1").read_text().count("kept") == 1
    assert "@interfaces 0" in (here.top / "log").read_text(), "each build proves that it had no network"
    assert here.leftovers() == []


def test_image_that_a_build_copies_from_is_kept(here: Here) -> None:
    layout, digest = tiny_image.make(here.top / "another image")
    image = here.buildah.ensure_image("copied-from", layout, digest)
    text = "ARG BASE\nARG LLVM\nFROM ${LLVM} AS llvm\n\nFROM ${BASE} AS build\nCOPY --from=llvm /bin /x\nRUN : >/out\n"
    (here.top / "recipes" / "Copies").write_text(f"{text}\nFROM scratch\nCOPY --from=build /out /made/out\n")
    here.build("copies", containerfile="Copies", contexts={}, images={"LLVM": image})
    assert here.buildah.call("images", "--quiet", image).stdout.strip()
    assert here.leftovers() == []


def test_failed_build_reports_the_reason_and_keeps_the_old_output(here: Here) -> None:
    made = here.build("kept")
    with refused("build-failed", "tiny", "a bad word") as raised:
        here.build("kept", args={"WORD": "bad"})
    assert "a bad word" in (here.top / "log").read_text()
    assert "a bad word" in raised.value.why
    assert made.is_file()
    assert here.leftovers() == []


def test_build_with_a_network_interface_is_refused(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(Path("/proc/net/dev").read_text().splitlines()) <= 3:
        pytest.skip("this machine has no network interface besides loopback")
    honest = here.buildah.command

    def careless(*words: str, **more: Any) -> list[str]:
        return honest(*words, **{**more, "network": True})

    monkeypatch.setattr(here.buildah, "command", careless)
    with refused("build-not-isolated"):
        here.build("leaky")
    assert not (here.top / "leaky").exists()


def test_run_passes_mounts_and_environment_and_leaves_nothing(here: Here) -> None:
    tree = here.recipe.contexts["tree"]
    result = here.buildah.run(
        here.image,
        ["/bin/sh", "-c", 'read x </in/said; echo "$x $WORD"; echo loud >&2; echo no >/in/new'],
        mounts=[Mount(Path(shutil.copytree(tree, here.top / "plain tree")), "/in")],
        env={"WORD": "a 'b' \"c\""},
        capture=True,
        check=False,
    )
    assert result.returncode != 0, "the mount is read-only"
    assert result.stdout, result.tail
    assert result.stdout == "hello a 'b' \"c\"\n"
    with pytest.raises(CommandError) as failed:
        here.buildah.run(here.image, ["/bin/sh", "-c", "exit 7"])
    assert failed.value.returncode == 7
    with pytest.raises(CommandError):
        here.buildah.run(here.image, ["/bin/sh", "-c", "while :; do :; done"], timeout=0.5)
    with refused("buildah-failed"):
        here.buildah.run("localhost/there/is:none", ["/bin/sh"])
    assert here.leftovers() == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../secret", "/made/nothing"])
def test_tree_with_a_link_that_leads_out_is_refused(tmp_path: Path, target: str) -> None:
    """A program that packs the tree, or reads files of it, would follow the link."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "fine").symlink_to("nothing")
    (tmp_path / "made" / "also fine").symlink_to("../made")
    (tmp_path / "made" / "the top").symlink_to("..")
    require_inside(tmp_path, "tiny")
    (tmp_path / "made" / "link").symlink_to(target)
    with pytest.raises(HostileInputError):
        require_inside(tmp_path, "tiny")


def test_all_output_of_a_failed_command_is_captured(here: Here) -> None:
    # With chroot isolation, buildah's own relay ends with the command and drops the data that is still in its pipes.
    script = 'n=0; while [ $n -lt 6000 ]; do n=$((n+1)); echo "line $n"; done; echo "the reason" >&2; exit 3'
    for _ in range(3):
        lines: list[str] = []
        argv = ["/bin/sh", "-c", script]
        result = here.buildah.run(here.image, argv, capture=True, check=False, on_line=lines.append)
        assert result.returncode == 3
        assert result.stdout.splitlines() == [f"line {number}" for number in range(1, 6001)]
        assert "the reason" in lines


def test_two_workers_run_at_once_and_a_worker_that_does_not_end_is_killed(here: Here) -> None:
    def ask(child: subprocess.Popen[str], text: str) -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{text}\n")
        child.stdin.flush()
        return child.stdout.readline().rstrip("\n")

    stubborn = f"{TALK}; while :; do :; done"
    with (
        here.buildah.worker(here.image, ["/bin/sh", "-c", TALK, "sh", "one"]) as one,
        here.buildah.worker(here.image, ["/bin/sh", "-c", stubborn, "sh", "two"]) as two,
    ):
        assert [ask(one, "a"), ask(two, "b"), ask(one, "c")] == ["one heard a", "two heard b", "one heard c"]
    assert one.returncode == 0
    assert two.returncode != 0, "a worker that does not end is killed"
    assert here.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_kill_leaves_no_process_and_the_next_call_cleans_up(here: Here, tmp_path: Path, number: int) -> None:
    here.buildah.drop_cache("tiny", "killed")
    script = tmp_path / "child.py"
    script.write_text(
        textwrap.dedent(
            """
            import signal
            import sys
            from pathlib import Path
            from toolchain.engine.buildah import Buildah
            from toolchain.engine.judge import require_inside
            from toolchain.core.recipe import Recipe
            from toolchain.core.cache import Cache
            signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and `&` have it ignored
            top, image, tree = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
            recipe = Recipe(name="tiny", containerfile="containerfiles/Tiny", base=image, args={"WORD": "slow"},
                            contexts={"tree": tree}, cache_key="killed")
            Buildah(Cache(top / "cache")).build(recipe, root=top / "recipes", out=top / "never", log=top / "slow log")
            """
        )
    )
    argv = [sys.executable, str(script), str(here.top), here.image, str(here.recipe.contexts["tree"])]
    child = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    _wait_for(lambda: (_tree(here.buildah, "killed") / "started").exists() or child.poll() is not None)
    assert child.poll() is None, (here.top / "slow log").read_text()
    dependencies = _descendants(child.pid)
    assert len(dependencies) >= 3, "the launcher, buildah and the shell at least"
    os.kill(child.pid, number)
    child.wait()
    _wait_for(lambda: not [pid for pid in dependencies if _alive(pid)])
    assert here.buildah.call("containers", "--quiet", "--all").stdout.split(), "the kill left a container"
    # A new invocation removes the container, and the tree is kept for the next build.
    again = Buildah(here.buildah.cache)
    again.run(here.image, ["/bin/sh", "-c", ":"])
    assert here.leftovers() == []
    assert not (here.top / "never").exists()
    assert (_tree(again, "killed") / "log").is_file()
    assert here.build("after", cache_key="killed").read_text().count("kept") == 2


def _wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found |= {int(child), *_descendants(int(child))}
    return found


def test_hostname_is_hidden_from_builds_and_runs(here: Here) -> None:
    asked = here.buildah.run(here.image, ["sh", "-c", "read name </proc/sys/kernel/hostname; echo $name"], capture=True)
    assert asked.stdout.strip() == "toolchain"
    text = "ARG BASE\nFROM ${BASE} AS build\nRUN read name </proc/sys/kernel/hostname; echo $name >/out\n"
    (here.top / "recipes" / "Named").write_text(text + "FROM scratch\nCOPY --from=build /out /made/out\n")
    assert here.build("named", containerfile="Named", contexts={}).read_text().strip() == "toolchain"


def test_prune_removes_images_without_a_record_from_the_storage(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "a cache")
    cache.make()
    buildah = Buildah(cache)
    layout, digest = tiny_image.make(tmp_path / "image")
    kept = buildah.ensure_image("kept", layout, digest)
    with buildah.container(kept) as container:
        buildah.call("config", "--label", "other=yes", container)
        buildah.call("commit", container, "localhost/toolchain/superseded:000000000000")
    write_record(cache, record(image="kept", manifest=digest))
    try:
        done = prune(cache, unused_for=30 * DAY)
        assert [one.name for one in done.gone] == ["localhost/toolchain/superseded:000000000000"]
        assert buildah.call("images", "--quiet", kept).stdout.strip()
        assert prune(cache, unused_for=30 * DAY).gone == ()
    finally:
        destroy(buildah)
