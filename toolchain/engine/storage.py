"""The engine's own storage: one place for buildah's options, for working containers and for what a kill left behind.

Every invocation has a folder below `cache.engine/live`, named after its process and locked by it. It holds the
invocation's small files; when its process is gone, the next one finds it and removes what it left in the storage.
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
# In the folder of an invocation whose buildah was killed, so that the next invocation removes what buildah left.
KILLED = "killed"
_NUMBER = itertools.count()
_STARTS = 4
_NOT_STARTED = "sealing memfd copy"
# Our names of containers. Those that buildah names itself are called after their image, which may begin alike.
_OURS = re.compile(r"toolchain-run-\d+-\d+-\d+")
_LEFT_BY_BUILDAH = re.compile(r"buildah\d+")
# Unfinished work that cannot be resumed. What may be in use for longer than a day is kept (`locks.kept`).
SCRATCH = re.compile(
    r"(archive|bundle|copy|evidence|files|git|kernel-worker|live|load|patches|pip|probe|reuse|shell|wheel)"
    r"-[a-z0-9_]{8}"
    r"|pack-[0-9a-f]{12}|\.pack-[0-9a-f]{12}\.[0-9a-f]{16}\.partial"
)
_STALE = 86400


def build_tag(folder: Path) -> str:
    """The temporary name of the image of a build."""
    return f"localhost/toolchain/{folder.name}"


def ccache_mount(key: str) -> str:
    """The id of the cache mount of the compiler cache with this key."""
    return f"{CCACHE_MOUNT}-{key}"


def cache_mounts(cache: Cache, identity: str) -> list[Path]:
    """The folders of the cache mount with this id that exist.

    buildah 1.28 names a folder by the id; later versions by a digest of it, with a parent for each user.
    """
    names = (identity, hashlib.sha256(identity.encode()).hexdigest()[:16])
    parents = (cache.mounts / "buildah-cache", cache.mounts / "buildah-cache-0")
    places = [parent / name for parent in parents for name in names]
    return [place for place in places if place.is_dir()]


def process_identity(pid: int) -> str | None:
    """`<pid>-<start time in ticks>`, which no later process shares; None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid}-{fields[19]}"


class Storage:
    """buildah on a storage root of the tool's own.

    Args:
        cache: the tool's folder; the storage is in `cache.engine`, temporary files and cache mounts in
            `cache.mounts`. All of that belongs to the ids that containers run as (see `engine.view`).
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.root = cache.engine / "containers"
        self._driver: str | None = None
        self._swept = False

    @property
    def runroot(self) -> Path:
        """State that does not outlive a boot."""
        name = f"toolchain-{hashlib.sha256(os.fsencode(self.root.absolute())).hexdigest()[:8]}"
        for parent in (Path("/run"), Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")):
            if os.access(parent, os.W_OK):
                return parent / name
        return self.cache.engine / "run"

    @property
    def first_id(self) -> int:
        """Which of our ids is root in containers; it owns what they write."""
        return view.ids()[0]

    @property
    def live(self) -> Path:
        """The folders of the invocations at work."""
        return self.cache.engine / "live"

    def command(
        self,
        *words: str | os.PathLike[str],
        network: bool = False,
        driver: str | None = None,
        pipes: Path | None = None,
        show: Sequence[Mount] = (),
        oci: bool = False,
        limits: Limits | None = None,
    ) -> list[str]:
        """A buildah command line, as root of namespaces of its own.

        Args:
            words: what follows buildah's own options, with paths as they are inside.
            network: whether it may reach out.
            driver: instead of the storage driver that works here.
            pipes: what its container writes to (see `engine.relay`).
            show: folders and files of this machine that it sees beside its storage.
            oci: whether it starts an OCI runtime.
            limits: of what its containers use (see `engine.container_limits`).

        Raises:
            EngineError: buildah is not installed, or has too few ids.
        """
        process.which("buildah", fix=INSTALL)
        namespace.enter()
        for folder in (self.root, self.runroot, self.cache.mounts):
            view.own(folder)
        argv = ["buildah", "--root", view.STORAGE, "--runroot", view.RUNROOT]
        argv += ["--storage-driver", driver or self.driver, *(os.fspath(word) for word in words)]
        mounts = [
            Mount(self.root, view.STORAGE, read_only=False),
            Mount(self.runroot, view.RUNROOT, read_only=False),
            Mount(self.cache.mounts, view.WORK, read_only=False),
            *([Mount(pipes, relay.PIPES)] if pipes is not None else []),
            *show,
        ]
        whole = argv if pipes is None else relay.outside(argv)
        return view.command(whole, self.cache.engine / "settings", show=mounts, network=network, oci=oci, limits=limits)

    @staticmethod
    def attempt(argv: Sequence[str], **how: Unpack[RunOptions]) -> process.Result:
        """Run a buildah command line by `process.run`, and again if buildah did not even start.

        buildah begins by copying itself to sealed memory, which the kernel refuses now and then with EBUSY (seen once
        in some hundred calls on a busy machine). Nothing has run by then.
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
        """A short buildah command; standard output is in the result.

        Args:
            show: see `command`.
        """
        try:
            return self.attempt(self.command(*words, show=show), capture=True, check=check, timeout=timeout)
        except process.CommandError as error:
            raise EngineError(f"buildah {os.fspath(words[0])} failed", why=error.why, fix=error.fix) from error

    @property
    def driver(self) -> str:
        """`overlay`, or `vfs` where overlay does not work (slow, and every container is a full copy)."""
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
            # What the failed driver left in the folder makes the next one refuse it.
            shutil.rmtree(self.root, ignore_errors=True)
        raise EngineError(
            "buildah cannot use its storage",
            why="\n".join(tails),
            fix=f"name a folder on another file system with --cache; it is {self.root} now",
        )

    def version(self) -> str:
        """buildah's version, e.g. `1.28.2`."""
        process.which("buildah", fix=INSTALL)
        match = re.search(r"\d+(\.\d+)+", process.run(["buildah", "--version"], capture=True, timeout=30).stdout)
        return match.group(0) if match else "unknown"

    @contextlib.contextmanager
    def invocation(self, kind: str) -> Iterator[Path]:
        """A folder for one call's small files; it marks the call as alive.

        Args:
            kind: `build` for calls whose containers buildah names itself, else `run`.
        """
        namespace.enter()
        if not self._swept:
            self._swept = True
            self.cleanup()
        folder = self.live / f"{kind}-{process_identity(os.getpid())}-{next(_NUMBER)}"
        self.live.mkdir(parents=True, exist_ok=True)
        # Locked before it can be found: another container that shares this folder does not see our process.
        new = Path(tempfile.mkdtemp(prefix="live-", dir=self.cache.engine))
        stopped = False
        with kept(new):
            try:
                new.chmod(0o755)
                new.rename(folder)
                yield folder
            except (KeyboardInterrupt, SystemExit):
                # Containers that buildah named itself are left. By the folder the next call knows, as after a kill.
                stopped = kind == "build"
                raise
            finally:
                if not (stopped or (folder / KILLED).exists()):
                    remove_tree(folder)

    @contextlib.contextmanager
    def container(self, image: str, *options: str) -> Iterator[str]:
        """A working container of `image` (`scratch` for an empty one); removed at the end whatever happens.

        Args:
            options: of `buildah from`; see `isolation.arguments`.
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
        """The folders of this machine that a container writes to."""
        return [self.root, self.cache.mounts, *more]

    def remove_layers(self, layers: Sequence[str]) -> None:
        """Remove the working containers with these layers, which a killed build left."""
        listed = self.root / f"{self.driver}-containers" / "containers.json"
        rows = strict_json.read(listed.read_bytes()) if layers and listed.is_file() else []
        for row in rows:
            if row.get("layer") in layers:
                self.call("rm", str(row["id"]), check=False)

    def cleanup(self) -> list[str]:
        """Remove what dead invocations left: containers, images without a name, partial folders. Returns what it did.

        Costs nothing when nothing was killed. Containers that buildah named itself cannot be distinguished, so they
        stay as long as another build is at work.
        """
        self.cache.make()  # first: a folder that holds something else is not marked as this tool's
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
            LOG.debug("another invocation cleans up")
        return done

    def _forget_scratch(self) -> None:
        """Remove what other parts of the tool left when they were killed."""
        for place in (self.cache.work, self.cache.store / "partial", self.cache.engine):
            for left in place.iterdir() if place.is_dir() else []:
                # Others make and remove such folders at this moment, and a campaign keeps its own for days.
                with contextlib.suppress(FileNotFoundError):
                    if SCRATCH.fullmatch(left.name) and time.time() - left.stat().st_mtime > _STALE:
                        with free(left) as unused:
                            if unused:
                                left.unlink() if left.is_file() else remove_tree(left)

    def _dead(self) -> tuple[list[Path], bool]:
        """Folders of processes that are gone, also for other PID namespaces; and whether a build is at work."""
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
                if self._dead()[1]:  # asked now: one may have begun since
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
            LOG.info("removed %s of an invocation that was killed", item)
        return done


def remove_tree(path: Path) -> None:
    """Remove a folder of ours, never what is mounted in it."""
    if not path.exists():
        return
    inside = f"{path.resolve()}/"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape.group(1), 8)), line.split()[4])
        if f"{point}/".startswith(inside):
            LOG.warning("%s stays: something is mounted at %s", path, point)
            return

    def unlock(function: Callable[[str], object], name: str, _: object) -> None:
        # buildah leaves folders that their owner cannot list.
        parent = Path(name).parent
        with contextlib.suppress(OSError):
            parent.chmod(0o700)
            if not Path(name).is_symlink():
                Path(name).chmod(0o700)
            function(name)

    shutil.rmtree(path, onerror=unlock)


def discard(path: Path) -> bool:
    """Remove a folder of ours that must be whole or gone: first out of the way, since a kill may leave half of it.

    Returns:
        Whether nothing of it is left; what is left has another name.
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
    """Remove what an earlier `discard` of this path left."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{DELETED}"):
        remove_tree(left)
