"""Build recipes with buildah, and run commands and workers in fresh containers."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from toolchain.core import process
from toolchain.core.cache import LARGEST_NINJA_LOG, Cache
from toolchain.core.digest import sha256_bytes, write_atomically
from toolchain.core.errors import EngineError
from toolchain.core.filesystem import read_regular
from toolchain.core.locks import held
from toolchain.core.process import Result, RunOptions
from toolchain.core.recipe import CCACHE_MOUNT, PARTS, Mount, Recipe, plain_files
from toolchain.engine import container_limits, relay, view
from toolchain.engine import isolation as isolating
from toolchain.engine.attended import attended
from toolchain.engine.judge import build_error, require_inside
from toolchain.engine.link_jobs import limit_links
from toolchain.engine.probe import probe
from toolchain.engine.resources import ulimits
from toolchain.engine.single import single_layout
from toolchain.engine.storage import KILLED, Storage, build_tag, cache_mounts, discard, remove_tree
from toolchain.engine.variation import Variation

LOG = logging.getLogger(__name__)

__all__ = ["Buildah", "Mount", "render"]

_CONTEXT = "/context"
_CONTAINERFILE = "/call/Containerfile"
_OUT = "/out"
# buildah treats the image of a stage without instructions as an intermediate image. At the end of the build, buildah
# removes that image, or fails if another build uses it. An instruction gives the stage an image of its own.
_BARE = re.compile(r"^(FROM \$\{\w+\} AS \w+\n)(?=(?:[ \t]*(?:#.*)?\n)*FROM )", re.MULTILINE)


def render(recipe: Recipe, text: str, variation: Variation | None = None) -> str:
    """Return the Containerfile for buildah, made from `text`, the recipe's own Containerfile.

    The recipe's name and key are inserted into the id of the build tree's cache mount, and the compiler cache's key is
    appended to the id of its mount. If the recipe's key is empty, the build tree's id stays unchanged; if the compiler
    cache's key is empty, its mount is removed. A stage without instructions gets a label unless it is the last stage
    (see `_BARE`). Instructions for the output pipes (see `engine.relay`), for `variation` and, in a build without
    network access, for the network probe are inserted before the first RUN of each stage. The pipes are not used if the
    Containerfile has its own SHELL.
    """
    if recipe.cache_key:
        # Several recipes share a Containerfile, so the id of the build tree in it may contain another recipe's name.
        tree = f"toolchain-{recipe.name}-tree-{recipe.cache_key}"
        text = re.sub(r"(?<=id=)toolchain-[a-z0-9-]+-tree(?=[,\s]|$)", tree, text)
    if recipe.compiler_cache:
        text = re.sub(rf"(?<=id={CCACHE_MOUNT})(?=[,\s]|$)", f"-{recipe.compiler_cache}", text)
    else:
        text = re.sub(rf"--mount=type=cache,id={CCACHE_MOUNT}[,\s]\S*", "", text)
    text = _BARE.sub(r"\1LABEL toolchain.stage=copied\n", text)
    shell = [relay.SHELL] if not re.search(r"(?im)^\s*SHELL\s", text) else []
    if variation is not None:
        shell = variation.instructions(relayed=bool(shell))
    proof = [] if recipe.network else [isolating.PROOF]
    return isolating.before_first_run(text, [*shell, *proof])


class Buildah(Storage):
    """The engine that builds recipes, and runs commands and workers in containers.

    Args:
        variation: the changed conditions of the builds and containers; None for no changes.
    """

    def __init__(self, cache: Cache, *, variation: Variation | None = None) -> None:
        super().__init__(cache)
        self._variation = variation
        self._proved = False
        self._probing = threading.Lock()
        self._references: dict[str, str] = {}

    def prove_isolation(self) -> str:
        """Prove that containers are isolated, unless this object has already done so; return the isolation's name.

        See `probe` for the errors.
        """
        # Several threads may start workers at once, but one proof is enough.
        with self._probing:
            if not self._proved:
                probe(self)
                self._proved = True
        return isolating.MODE

    def ensure_image(self, key: str, layout: Path, digest: str) -> str:
        """Make an image from an OCI layout available to builds, and return a reference to it.

        Args:
            key: part of the reference, e.g. `base-debian13`. `Recipe.base` and `Recipe.images` may refer to the image
                by this key.
            digest: the digest of the image's manifest, `sha256:…`.
        """
        reference = f"localhost/toolchain/{key}:{digest.removeprefix('sha256:')[:12]}"
        if not self._has(reference):
            # Without the lock, two invocations could unpack the same layer at the same time.
            with held(self.cache.locks / "unpack.lock", what="unpacking an image"):
                if not self._has(reference):
                    self._unpack(layout, digest, reference)
        self._references[key] = reference
        return reference

    def _has(self, reference: str) -> bool:
        present = self.call("images", "--quiet", reference, check=False)
        return present.returncode == 0 and bool(present.stdout.strip())

    def _unpack(self, layout: Path, digest: str, reference: str) -> None:
        with self.invocation("run") as folder:
            single = single_layout(layout, digest, folder)
            files = [path for path in single.rglob("*") if not path.is_dir()]
            show = [Mount(view.visible(path, folder / "copies"), f"/{path.relative_to(folder)}") for path in files]
            pulled = self.call("pull", "--quiet", f"oci:{single.name}:image", show=show, timeout=None)
            self.call("tag", pulled.stdout.split()[-1], reference)
            self.call("rmi", f"localhost/{single.name}", check=False)

    def forget_image(self, reference: str) -> None:
        """Remove an image from the engine's storage, but not from its OCI layout."""
        self.call("rmi", "--force", reference, check=False)

    def build(
        self,
        recipe: Recipe,
        *,
        root: Path,
        out: Path,
        log: Path,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Build a recipe, and put the file tree of its last stage at `out`.

        Args:
            root: the recipe root; its folders with recipes are the build's context.
            out: the folder for the tree; an existing folder is replaced only if the build succeeds.
            log: the file to which the output is appended.
            on_line: called with each line of output, except the answers of the network probe.

        Raises:
            BuildError: the build failed; `why` is the result of `judge.first_error` for the last lines of output.
            EngineError: buildah does not work or does not isolate containers, a file or tree of the recipe is missing,
                or a build without network access sees a network or cannot be probed for one.
            HostileInputError: `judge.require_inside` refuses the tree of a build without network access.
            LimitError: the build reached a limit in `data/limits.toml`.
        """
        source = root / recipe.containerfile
        self.prove_isolation()
        try:
            text = render(recipe, source.read_text(encoding="utf-8"), self._variation)
        except OSError as error:
            raise EngineError(
                "recipe-unreadable", f"cannot read {source}", why=str(error.strerror), fix="install toolchain again"
            ) from error
        for place in self._trees(recipe.name, recipe.cache_key) if "LINK_JOBS" in recipe.args else []:
            limit_links(place, int(recipe.args["LINK_JOBS"]))
        preloaded = self._preloaded(recipe.base)
        witness = isolating.NetworkProbe(on_line)
        out.parent.mkdir(parents=True, exist_ok=True)
        with self.invocation("build") as folder:
            partial = out.with_name(f".{out.name}.{folder.name}.partial")
            write_atomically(folder / "Containerfile", text.encode())
            (folder / "partial").write_text(os.fspath(partial.absolute()), encoding="utf-8")
            tag = build_tag(folder)
            words = ["build", "--no-cache", "--layers=false", "--force-rm", "--pull=never"]
            words += [*isolating.arguments("build", network=recipe.network), *ulimits(container_limits.ulimits())]
            words += ["--file", _CONTAINERFILE, "--tag", tag, "--output", f"type=local,dest={_OUT}"]
            words += ["--format", "docker", *relay.options()]
            inputs, show = self.inputs(recipe, root, folder)
            trees: list[tuple[Path, Path]] = []
            if self._variation is not None:
                show, options, trees = self._variation.shown(show, preloaded, folder)
                inputs += options
            argv = self.command(
                *words, *inputs, _CONTEXT,
                show=[*show, Mount(folder / "Containerfile", _CONTAINERFILE), Mount(partial, _OUT, read_only=False)],
                network=recipe.network, pipes=relay.make(folder),
                limits=container_limits.limits_for(folder, self.places(partial), log=log),
            )  # fmt: skip
            argv = argv if self._variation is None else self._variation.wrap(argv, trees)
            try:
                with self._failing(recipe, folder, partial, witness):
                    view.own(partial)
                    self.attempt(argv, log=log, on_line=witness.line)
                    witness.check(finished=not recipe.network)
                    if not recipe.network:
                        require_inside(partial, recipe.name)
                    self._keep(partial, out)
            finally:
                remove_tree(partial)
                # buildah also commits an image, which would take as much space again as the exported tree.
                self.call("rmi", "--force", tag, check=False)

    @contextlib.contextmanager
    def _failing(self, recipe: Recipe, folder: Path, partial: Path, witness: isolating.NetworkProbe) -> Iterator[None]:
        """Turn the errors of a build into a LimitError or BuildError, and free the disk after a limit.

        `folder` is marked if buildah may have left containers, so that a later invocation removes them.
        """
        try:
            yield
        except (process.CommandError, OSError) as error:
            if (limit := container_limits.reached(folder, error)) is not None:
                if not limit.layers:
                    _mark_killed(folder)
                remove_tree(partial)
                stopped = container_limits.limit_error(limit.name, f"the build of {recipe.name}")
                stopped.discards = self._free_disk(recipe, limit, folder)
                raise stopped from error
            if isinstance(error, OSError):
                _mark_killed(folder)
                raise
            if not 0 <= error.returncode <= 128:  # a signal, of which a shell makes a code above 128
                _mark_killed(folder)
            witness.check(finished=False)
            raise build_error(recipe.name, error) from error
        except BaseException:  # for example an error of the thread that fetches sources
            _mark_killed(folder)
            raise

    def _preloaded(self, image: str) -> list[Mount]:
        """Return the mounts of the variation's preloaded libraries for `image`, and build the libraries if necessary.

        Without a variation, the list is empty.
        """
        if self._variation is None:
            return []
        reference = self._references.get(image, image)
        with self._probing:  # several threads may start workers; the first builds the libraries
            known = self._variation.known(reference)
            if known is None:
                place = self.cache.work / f"vary-{sha256_bytes(reference.encode())[7:19]}"
                remove_tree(place)
                argv, mount = self._variation.prepare(place)
                printed = Buildah(self.cache).run(reference, argv, mounts=[mount], capture=True).stdout
                known = self._variation.take(reference, place, printed)
        return known

    def _free_disk(self, recipe: Recipe, limit: container_limits.Reached, folder: Path) -> bool:
        """Remove the containers of a build that reached `limit`, and return whether its build tree is removed too.

        The cached build tree is removed if `limit` is in `OF_DISK`. At a `written-` limit it is kept if another
        invocation is running in this cache, because that invocation may have written the files.
        """
        shared = limit.name.startswith("written-") and self.others(folder)
        discards = limit.name in container_limits.OF_DISK and not shared
        if discards:
            self.drop_cache(recipe.name, recipe.cache_key)
        self.remove_layers(limit.layers)
        return discards

    def inputs(self, recipe: Recipe, root: Path, folder: Path) -> tuple[list[str], list[Mount]]:
        """Return the options for a recipe's build arguments and contexts, and the mounts for its contexts.

        Raise an EngineError if a context is missing.
        """
        arguments = dict(recipe.args)
        for name, key in {**recipe.images, **({"BASE": recipe.base} if recipe.base else {})}.items():
            arguments[name] = self._references.get(key, key)
        words = [word for name, value in sorted(arguments.items()) for word in ("--build-arg", f"{name}={value}")]
        # Only the folders with recipes are mounted, so that buildah does not see the other files of a checkout.
        (folder / "context").mkdir()
        show = [Mount(folder / "context", _CONTEXT)]
        for part in [root / part for part in PARTS if (root / part).is_dir()]:
            (folder / "context" / part.name).mkdir()
            show.append(Mount(view.visible(part, folder / "copies"), f"{_CONTEXT}/{part.name}"))
        for name, path in sorted(recipe.contexts.items()):
            if not path.is_dir():
                raise EngineError(
                    "build-tree-missing",
                    f"{recipe.name}: the tree {name!r} is missing",
                    why=f"{path} is not a folder",
                    fix="run the command again, which creates the folder if it was deleted",
                )
            # A tree in the store needs no copy, because every user id can read its files.
            stored = path.is_relative_to(self.cache.store)
            show.append(Mount(path if stored else view.visible(path, folder / "copies"), f"/contexts/{name}"))
            words += ["--build-context", f"{name}=/contexts/{name}"]
        return words, show

    def _keep(self, partial: Path, out: Path) -> None:
        partial.chmod(0o755)
        relay.sweep(partial)
        if out.exists():
            old = partial.with_name(f"{partial.name}.old")
            out.rename(old)
            partial.rename(out)
            remove_tree(old)
        else:
            partial.rename(out)

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        """Run a command in a fresh container of `image`, and remove the container afterwards.

        Raises:
            CommandError: the command failed, and `check` is not False.
            EngineError: buildah does not work or does not isolate containers.
            LimitError: the container reached a limit in `data/limits.toml`.
        """
        env, check, log = how.get("env"), how.get("check", True), how.get("log")
        how["env"], how["check"] = None, False  # `env` becomes options; the exit code is checked after the limits
        with self._prepared(image, argv, mounts=mounts, env=env, network=network, log=log) as (command, folder):
            result = self.attempt(command, **how)
            if (limit := container_limits.reached(folder)) is not None:
                raise container_limits.limit_error(limit.name, f"{argv[0]} in a container of {image}")
        if check and result.returncode != 0:
            raise process.CommandError(command, result.returncode, result.tail)
        return result

    @contextlib.contextmanager
    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount] = (), env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Yield a long-lived process in a container of its own without a network, and end the process after the block.

        The caller must read the standard error of the process, because the process blocks when that pipe is full.
        Several processes may run at once. The thread that starts a process must outlive the block, because the kernel
        kills the process when that thread ends.
        """
        with (
            self._prepared(image, argv, mounts=mounts, env=env, timed=False) as (command, _),
            process.piped(command) as child,
            attended(child),
        ):
            yield child

    @contextlib.contextmanager
    def _prepared(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount],
        env: Mapping[str, str] | None,
        network: bool = False,
        log: Path | None = None,
        timed: bool = True,
    ) -> Iterator[tuple[list[str], Path]]:
        """Yield the command line that runs `argv` in a fresh container, and the folder of the invocation."""
        options: list[str] = []
        for name, value in sorted((env or {}).items()):
            options += ["--env", f"{name}={value}"]
        self.prove_isolation()
        if self._variation is not None:
            mounts = [*mounts, *self._preloaded(image)]
            options += [word for pair in self._variation.variables.items() for word in ("--env", "=".join(pair))]
            argv = self._variation.inside(argv)
        granted = isolating.arguments("from", network=network, plain=plain_files(mounts))
        with self.container(image, *granted) as container, self.invocation("run") as folder:
            show = []
            for number, mount in enumerate(mounts):
                inside = f"/mounts/{number}"
                options += Mount(Path(inside), mount.target, read_only=mount.read_only).arguments()
                if mount.read_only:
                    show.append(Mount(view.visible(mount.source, folder / "copies"), inside))
                else:
                    view.own(mount.source, whole=True)
                    show.append(Mount(mount.source, inside, read_only=False))
            written = [mount.source for mount in mounts if not mount.read_only]
            limits = container_limits.limits_for(folder, self.places(*written), log=log, timed=timed)
            command = isolating.run_command(
                self, folder, container, argv, options=options, show=show, network=network, limits=limits
            )
            yield (command if self._variation is None else self._variation.wrap(command)), folder

    def drop_cache(self, name: str, key: str) -> None:
        """Delete the cached build tree of a recipe, so that the recipe's next build starts anew."""
        for place in self._trees(name, key):
            discard(place)

    def ninja_log(self, name: str, key: str) -> bytes:
        """Return the longest ninja log in the cached build tree of a recipe; empty if there is none.

        A log of more than `LARGEST_NINJA_LOG` bytes is ignored.
        """
        logs = [b""]
        for place in self._trees(name, key):
            for path in (place / ".ninja_log", *place.glob("*/.ninja_log")):
                with contextlib.suppress(OSError):  # a build may have put a link, a folder or a huge file here
                    logs.append(read_regular(path, LARGEST_NINJA_LOG, within=place))
        return max(logs, key=len)

    def _trees(self, name: str, key: str) -> list[Path]:
        return cache_mounts(self.cache, f"toolchain-{name}-tree-{key}" if key else f"toolchain-{name}-tree")


def _mark_killed(folder: Path) -> None:
    """Keep the folder of a build whose buildah may have left containers, so that a later invocation removes them."""
    with contextlib.suppress(OSError):  # the disk may be full
        (folder / KILLED).touch()
