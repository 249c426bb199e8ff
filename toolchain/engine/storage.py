"""Run buildah with the tool's own storage, and remove the containers of killed invocations.

Every build and every container has a folder for small files below `Storage.live`. The folder's name contains the id of
the process of this tool, and the process locks the folder. If the process is gone, a later invocation of this tool
removes the folder and the containers that the process left in the storage.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

from filelock import FileLock, Timeout

from toolchain.core import process, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import EngineError
from toolchain.core.locks import free, kept
from toolchain.core.process import RunOptions
from toolchain.core.recipe import CCACHE_MOUNT, Mount
from toolchain.engine import container_limits, namespace, relay, view
from toolchain.engine.limit_watch import Limits
from toolchain.engine.resources import ulimits

LOG = logging.getLogger(__name__)

INSTALL = "apt-get install buildah"
DELETED = ".deleted"
# This file marks the folder of an invocation whose buildah was killed. The folder is kept, so that a later invocation
# removes the containers that buildah left.
KILLED = "killed"
_NUMBER = itertools.count()
_STARTS = 4
_NOT_STARTED = "sealing memfd copy"
# This matches the names that this tool gives to containers. buildah derives names from the image's name, so its names
# may also begin with `toolchain-`.
_OURS = re.compile(r"toolchain-run-\d+-\d+-\d+")
_LEFT_BY_BUILDAH = re.compile(r"buildah\d+")
# This matches the names of temporary files and folders that no later invocation can use. They are removed after a day,
# unless a process has locked them with `locks.kept`.
SCRATCH = re.compile(
    r"(archive|bundle|copy|evidence|files|git|kernel-worker|live|load|patches|pip|probe|reuse|shell|wheel)"
    r"-[a-z0-9_]{8}"
    r"|pack-[0-9a-f]{12}(\.tar)?|\.pack-[0-9a-f]{12}\.[0-9a-f]{16}\.partial"
)
_STALE = 86400


def build_tag(folder: Path) -> str:
    """Return the temporary name for the image of the build whose invocation has this folder."""
    return f"localhost/toolchain/{folder.name}"


def ccache_mount(key: str) -> str:
    return f"{CCACHE_MOUNT}-{key}"


def cache_mounts(cache: Cache, identity: str) -> list[Path]:
    """Return the folders that exist for the cache mount with this id.

    buildah 1.28 names the folder after the id. Later versions name it after a digest of the id, in a folder for each
    user.
    """
    names = (identity, hashlib.sha256(identity.encode()).hexdigest()[:16])
    parents = (cache.mounts / "buildah-cache", cache.mounts / "buildah-cache-0")
    places = [parent / name for parent in parents for name in names]
    return [place for place in places if place.is_dir()]


def process_identity(pid: int) -> str | None:
    """Return `<pid>-<start time in ticks>`, which is unique until the next boot; None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid}-{fields[19]}"


class Storage:
    """buildah with its storage in `cache.engine`, and with temporary files and cache mounts in `cache.mounts`.

    The files in the storage and in `cache.mounts` are owned by the ids that containers use (see `engine.view`).
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.root = cache.engine / "containers"
        self._driver: str | None = None
        self._swept = False

    @property
    def runroot(self) -> Path:
        """The folder for buildah's state that is only valid until the next boot."""
        name = f"toolchain-{hashlib.sha256(os.fsencode(self.root.absolute())).hexdigest()[:8]}"
        for parent in (Path("/run"), Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")):
            if os.access(parent, os.W_OK):
                return parent / name
        return self.cache.engine / "run"

    @property
    def first_id(self) -> int:
        """The user and group id that root in containers has outside of them."""
        return view.ids()[0]

    @property
    def live(self) -> Path:
        """The folder that contains the folders of running and killed invocations."""
        return self.cache.engine / "live"

    def command(
        self,
        *words: str | os.PathLike[str],
        network: bool = False,
        driver: str | None = None,
        pipes: Path | None = None,
        show: Sequence[Mount] = (),
        limits: Limits | None = None,
    ) -> list[str]:
        """Return a command line that runs buildah in its own namespaces.

        Args:
            words: the verb, the options and the arguments, with paths inside the namespaces.
            driver: the storage driver; by default `self.driver`.
            pipes: the folder with the container's pipes (see `engine.relay`).
            show: the folders and files of this machine that buildah sees in addition to its storage.
            limits: the limits for buildah and its containers; None for no limits.
        """
        program, shown = view.program("buildah", fix=INSTALL)
        namespace.enter()
        for folder in (self.root, self.runroot, self.cache.mounts):
            view.own(folder)
        argv = [program, "--root", view.STORAGE, "--runroot", view.RUNROOT]
        argv += ["--storage-driver", driver or self.driver, *(os.fspath(word) for word in words)]
        mounts = [
            Mount(self.root, view.STORAGE, read_only=False),
            Mount(self.runroot, view.RUNROOT, read_only=False),
            Mount(self.cache.mounts, view.WORK, read_only=False),
            *([Mount(pipes, relay.PIPES)] if pipes is not None else []),
            *shown,
            *show,
        ]
        whole = argv if pipes is None else relay.outside(argv)
        return view.command(whole, self.cache.engine / "settings", show=mounts, network=network, limits=limits)

    @staticmethod
    def attempt(argv: Sequence[str], **how: Unpack[RunOptions]) -> process.Result:
        """Run a command line of buildah, and try up to three more times if buildah did not start.

        buildah first copies itself to memory and seals the copy. On a busy machine the sealing may fail with EBUSY.
        Raise a CommandError if buildah fails, unless `check` is False.
        """
        check = how.get("check", True)
        how["check"] = False
        for _ in range(_STARTS - 1):
            result = process.run(argv, **how)
            if result.returncode == 0 or not any(_NOT_STARTED in line for line in result.tail):
                break
            time.sleep(0.5)
        else:
            result = process.run(argv, **how)
        if check and result.returncode != 0:
            raise process.CommandError(argv, result.returncode, result.tail)
        return result

    def call(
        self,
        *words: str | os.PathLike[str],
        show: Sequence[Mount] = (),
        check: bool = True,
        timeout: float | None = 600,
    ) -> process.Result:
        """Run a buildah command, and return its result including standard output. For `show`, see `command`.

        Raise an EngineError if the command fails, unless `check` is False.
        """
        try:
            return self.attempt(self.command(*words, show=show), capture=True, check=check, timeout=timeout)
        except process.CommandError as error:
            raise EngineError(
                "buildah-failed", f"buildah {os.fspath(words[0])} failed", why=error.why, fix=error.fix
            ) from error

    @property
    def driver(self) -> str:
        """The storage driver: `overlay` if it works, else `vfs`, which makes a full copy for every container."""
        if self._driver is None:
            remembered = self.cache.engine / "containers-driver"
            with contextlib.suppress(OSError):
                self._driver = remembered.read_text(encoding="ascii").strip() or None
            if self._driver is None:
                self._driver = self._working_driver()
                write_atomically(remembered, self._driver.encode())
        return self._driver

    def _working_driver(self) -> str:
        tails: list[str] = []
        for driver in ("overlay", "vfs"):
            result = self.attempt(self.command("images", "--quiet", driver=driver), check=False, timeout=120)
            if result.returncode == 0:
                return driver
            tails += [f"{driver}: {line}" for line in result.tail[-5:]]
            # The folder is removed, because a driver refuses a folder that another driver has used.
            shutil.rmtree(self.root, ignore_errors=True)
        raise EngineError(
            "storage-unusable",
            "buildah cannot use its storage",
            why="\n".join(tails),
            fix=f"choose a folder on another file system with --cache; {self.root} cannot be used",
        )

    def version(self) -> str:
        """Return buildah's version, e.g. `1.28.2`; `unknown` if buildah prints none."""
        process.which("buildah", fix=INSTALL)
        match = re.search(r"\d+(\.\d+)+", process.run(["buildah", "--version"], capture=True, timeout=30).stdout)
        return match.group(0) if match else "unknown"

    @contextlib.contextmanager
    def invocation(self, kind: str) -> Iterator[Path]:
        """Yield a folder for the small files of one invocation; the folder also marks the invocation as running.

        Args:
            kind: `build` for an invocation whose containers buildah names itself, else `run`.
        """
        namespace.enter()
        if not self._swept:
            self._swept = True
            self.cleanup()
        folder = self.live / f"{kind}-{process_identity(os.getpid())}-{next(_NUMBER)}"
        self.live.mkdir(parents=True, exist_ok=True)
        # The folder is locked before other processes can find it, because a process in another container that shares
        # this cache does not see this process.
        new = Path(tempfile.mkdtemp(prefix="live-", dir=self.cache.engine))
        stopped = False
        with kept(new):
            try:
                new.chmod(0o755)
                new.rename(folder)
                yield folder
            except (KeyboardInterrupt, SystemExit):
                # The folder of a build is kept, so that a later invocation removes the containers that buildah named.
                stopped = kind == "build"
                raise
            finally:
                if not (stopped or (folder / KILLED).exists()):
                    remove_tree(folder)

    @contextlib.contextmanager
    def container(self, image: str, *options: str) -> Iterator[str]:
        """Yield the name of a new working container, and remove the container after the block.

        Args:
            options: the options for `buildah from`; see `isolation.arguments`.
        """
        with self.invocation("run") as folder:
            name = f"toolchain-{folder.name}"
            limits = ulimits(container_limits.ulimits())
            self.call("from", "--pull=never", "--quiet", *options, *limits, "--name", name, image)
            try:
                yield name
            finally:
                self.call("rm", name, check=False)

    def places(self, *more: Path) -> list[Path]:
        """Return the folders of this machine that a container writes to: buildah's own folders and `more`."""
        return [self.root, self.cache.mounts, *more]

    def others(self, own: Path) -> bool:
        """Return whether an invocation other than the one with the folder `own` is running in this cache."""
        dead, _ = self._dead()
        return bool(set(self.live.iterdir()) - {own, *dead})

    def remove_layers(self, layers: Sequence[str]) -> None:
        """Remove the working containers whose layers have these ids; a killed build does not remove its containers."""
        listed = self.root / f"{self.driver}-containers" / "containers.json"
        rows = strict_json.read(listed.read_bytes()) if layers and listed.is_file() else []
        for row in rows:
            if row.get("layer") in layers:
                self.call("rm", str(row["id"]), check=False)

    def cleanup(self) -> list[str]:
        """Remove what killed invocations left, and return the names of the removed containers and unnamed images.

        A name is, for example, `container toolchain-run-12-3456-0`. Containers that buildah named itself
        cannot be attributed to an invocation, so they stay while a build runs. If another process is cleaning up,
        nothing is removed.
        """
        self.cache.make()  # this comes first, because `make` does not mark a folder that already contains `engine`
        self.cache.engine.mkdir(parents=True, exist_ok=True)
        done: list[str] = []
        try:
            with FileLock(self.cache.engine / "cleanup.lock", timeout=0):
                dead, _ = self._dead()
                if dead and process.find("buildah"):
                    done = self._sweep(dead)
                if not self.live.is_dir() or not any(self.live.iterdir()):
                    for left in self.cache.mounts.iterdir() if self.cache.mounts.is_dir() else []:
                        if _LEFT_BY_BUILDAH.fullmatch(left.name):
                            remove_tree(left)
                self._forget_scratch()
        except Timeout:
            LOG.debug("another invocation is cleaning up")
        return done

    def _forget_scratch(self) -> None:
        """Remove files and folders that match `SCRATCH`, are more than a day old, and are not locked by a process."""
        for place in (self.cache.work, self.cache.store / "partial", self.cache.engine):
            for left in place.iterdir() if place.is_dir() else []:
                # Another process may remove the folder at the same time. A campaign may use its folder for days, and
                # keeps it locked.
                with contextlib.suppress(FileNotFoundError):
                    if SCRATCH.fullmatch(left.name) and time.time() - left.stat().st_mtime > _STALE:
                        with free(left) as unused:
                            if unused:
                                left.unlink() if left.is_file() else remove_tree(left)

    def _dead(self) -> tuple[list[Path], bool]:
        """Return the folders of the invocations whose processes are gone, and whether a build is running."""
        dead: list[Path] = []
        building = False
        for folder in sorted(self.live.iterdir()) if self.live.is_dir() else []:
            kind, pid, start, _ = folder.name.split("-")
            with free(folder) as unused:
                if unused and process_identity(int(pid)) != f"{pid}-{start}":
                    dead.append(folder)
                elif kind == "build":
                    building = True
        return dead, building

    def _sweep(self, dead: Sequence[Path]) -> list[str]:
        listed = strict_json.read(self.call("containers", "--json").stdout or "null") or []
        names = {str(entry["containername"]) for entry in listed}
        done: list[str] = []

        def remove(name: str) -> None:
            self.call("rm", name, check=False)
            done.append(f"container {name}")

        for folder in dead:
            if folder.name.startswith("build-"):
                if self._dead()[1]:  # a build may have started after `cleanup` called `_dead`
                    continue
                for name in sorted(name for name in names if not _OURS.fullmatch(name)):
                    names.discard(name)
                    remove(name)
                for image in self.call("images", "--filter", "dangling=true", "--quiet").stdout.split():
                    self.call("rmi", "--force", image, check=False)
                    done.append(f"image {image}")
                partial = folder / "partial"
                if partial.is_file():
                    remove_tree(Path(partial.read_text(encoding="utf-8")))
                self.call("rmi", "--force", build_tag(folder), check=False)
            elif (name := f"toolchain-{folder.name}") in names:
                remove(name)
            elif (single := folder / f"layout-{folder.name}").is_dir():
                self.call("rmi", f"localhost/{single.name}", check=False)
            remove_tree(folder)
        for item in done:
            LOG.info("removed %s, which a killed invocation left", item)
        return done


def remove_tree(path: Path) -> None:
    """Remove a folder as far as possible; log a warning instead if it is a mount point or contains one."""
    if not path.exists():
        return
    inside, entered = f"{path.resolve()}/", set[str]()
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape.group(1), 8)), line.split()[4])
        if f"{point}/".startswith(inside):
            LOG.warning("%s is not removed, because something is mounted at %s", path, point)
            return

    def unlock(function: Callable[[str], object], name: str, _: object) -> None:
        # buildah leaves folders that even their owner may not change, so the permissions are added before another try.
        with contextlib.suppress(OSError):
            if Path(name) != path:
                Path(name).parent.chmod(0o700)
            if not Path(name).is_symlink():
                Path(name).chmod(0o700)
            if function in {os.unlink, os.rmdir}:
                function(name)
            elif name not in entered:  # a folder that could not be opened
                entered.add(name)
                shutil.rmtree(name, onerror=unlock)

    shutil.rmtree(path, onerror=unlock)


def discard(path: Path) -> bool:
    """Remove a folder, and return whether all of it is gone.

    The folder is renamed first, so that an interrupted removal leaves no incomplete folder at `path`.
    """
    sweep_discarded(path)
    if not path.is_dir():
        return True
    away = path
    if not path.name.endswith(DELETED):
        away = path.rename(path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBER)}{DELETED}"))
    remove_tree(away)
    return not away.exists()


def sweep_discarded(path: Path) -> None:
    """Remove the renamed folders that interrupted calls of `discard` with this path have left."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{DELETED}"):
        remove_tree(left)
