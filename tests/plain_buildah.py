"""Plain `buildah build` of the Containerfiles, without the tool, in separate storage and by default without network."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from toolchain.core import process
from toolchain.core.recipe import root
from toolchain.engine.storage import Storage

PREFIX = "/usr/lib64/llvm-triton-0a1b2c3d"


@dataclass(frozen=True)
class Engine:
    """buildah with separate storage."""

    folder: Path
    runroot: Path

    def __call__(self, *words: str | os.PathLike[str], check: bool = True, network: bool = False) -> process.Result:
        """Run one buildah command, without network access unless `network` is true."""
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        argv = ["buildah", "--root", os.fspath(self.folder / "storage"), "--runroot", os.fspath(self.runroot)]
        argv += ["--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"), *(os.fspath(word) for word in words)]
        return Storage.attempt(
            process.contained(argv, network=network),
            env={"TMPDIR": os.fspath(scratch)},
            check=check,
            capture=True,
            timeout=3600 if network else 1200,
        )

    def image(self, name: str, tree: Path) -> str:
        """Build an image that contains only `tree`, and return its name."""
        (self.folder / "Containerfile").write_text("FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n")
        self("build", "--layers=false", "--file", self.folder / "Containerfile", "--tag", f"localhost/{name}", tree)
        return f"localhost/{name}"

    def build(
        self, containerfile: str, *words: str | os.PathLike[str], fails: Collection[str] = (), network: bool = False
    ) -> process.Result:
        """Run `buildah build` for a Containerfile of the repository, with the repository as context.

        On a busy machine buildah sometimes exits before it has printed the last lines of a command that failed. So a
        build that fails without these lines is repeated, up to nine times.

        Args:
            fails: texts in the last lines of a build that must fail; empty if the build must succeed.
        """
        options = ("--isolation", "chroot", "--layers=false", "--file", root() / containerfile)
        left = 10
        while True:
            result = self("build", *options, *words, root(), check=not fails, network=network)
            missing = [text for text in fails if not any(text in line for line in result.tail)]
            left -= 1
            if not missing or left == 0:
                break
        assert missing == [], result.tail
        assert (result.returncode != 0) == bool(fails)
        return result


def roomy_memory() -> Path | None:
    """Return a file system in memory with half a gigabyte free, or None. Images there need no flush to disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 29:
        return memory
    return None


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Yield an engine, or skip the tests with the reason if buildah is missing or does not work."""
    for program in ("buildah", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"NO CONTAINERFILE IS BUILT: {program} is not installed (apt-get install buildah util-linux)")
    # The path is short, because the length of overlay's mount options is limited.
    folder = Path(tempfile.mkdtemp(prefix="tc", dir=roomy_memory()))
    made = Engine(folder, folder / "run")
    probe = made("from", "--quiet", "scratch", check=False)
    if probe.returncode != 0 and folder.parent == Path("/dev/shm"):
        shutil.rmtree(folder, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="tc"))
        made = Engine(folder, folder / "run")
        probe = made("from", "--quiet", "scratch", check=False)
    if probe.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"NO CONTAINERFILE IS BUILT: buildah does not work here: {' '.join(probe.tail)}")
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def files(tree: Path) -> set[str]:
    """Return the relative paths of all files below `tree`."""
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
