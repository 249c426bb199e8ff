"""buildah: builds recipes, runs commands and workers in fresh containers, all on a storage of the tool's own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from toolchain.core import process
from toolchain.core.cache import LARGEST_NINJA_LOG, Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import BuildError, EngineError, HostileInputError
from toolchain.core.filesystem import read_regular
from toolchain.core.process import Result, RunOptions
from toolchain.core.recipe import CCACHE_MOUNT, PARTS, Mount, Recipe, plain_files
from toolchain.engine import container_limits, relay, view
from toolchain.engine import isolation as isolating
from toolchain.engine.attended import attended
from toolchain.engine.probe import probe
from toolchain.engine.resources import ulimits
from toolchain.engine.single import single_layout
from toolchain.engine.storage import KILLED, Storage, build_tag, cache_mounts, ccache_mount, discard, remove_tree

LOG = logging.getLogger(__name__)

__all__ = ["Buildah", "Mount", "render"]

_CONTEXT = "/context"
_CONTAINERFILE = "/call/Containerfile"
_OUT = "/out"
_PROGRESS = ("@ninja ", "@count ", "@step ")
# What buildah itself adds behind the failing command's own last words.
_NOISE = re.compile(r"^(subprocess exited with status \d+|Error: building at STEP .*|time=\".*)$")
_ERROR = re.compile(r"(^|[\s:])(fatal )?error: |^CMake Error|undefined (reference|symbol)")
_EXCEPTION = re.compile(r"([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b")  # at the end of Python's traceback
_SHOWN, _ENDING = 12, 6  # lines of the first error, and of the end
# A stage that is an image as it is: buildah takes that image for one of its own and removes it at the end, or fails
# where another build uses it. With an instruction there is one of its own.
_BARE = re.compile(r"^(FROM \$\{\w+\} AS \w+\n)(?=(?:[ \t]*(?:#.*)?\n)*FROM )", re.MULTILINE)


def render(recipe: Recipe, text: str, *, relayed: bool = False) -> str:
    """The Containerfile that is built: its cache mounts keyed, and before the first RUN of each stage what is needed.

    Args:
        recipe: what is built.
        text: its Containerfile.
        relayed: whether RUN writes to pipes (see `engine.relay`); a Containerfile with a SHELL of its own does not.
    """
    if recipe.cache_key:
        tree = re.escape(f"toolchain-{recipe.name}-tree")
        text = re.sub(rf"(?<=id=){tree}(?=[,\s]|$)", f"toolchain-{recipe.name}-tree-{recipe.cache_key}", text)
    if recipe.compiler_cache:
        text = re.sub(rf"(?<=id={CCACHE_MOUNT})(?=[,\s]|$)", f"-{recipe.compiler_cache}", text)
    else:
        text = re.sub(rf"--mount=type=cache,id={CCACHE_MOUNT}[,\s]\S*", "", text)
    text = _BARE.sub(r"\1LABEL toolchain.stage=copied\n", text)
    shell = [relay.SHELL] if relayed and not re.search(r"(?im)^\s*SHELL\s", text) else []
    proof = [] if recipe.network else [isolating.PROOF]
    return isolating.before_first_run(text, [*shell, *proof])


class Buildah(Storage):
    """The engine."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self._mode: str | None = None
        self._probing = threading.Lock()
        self._references: dict[str, str] = {}

    @property
    def isolation(self) -> str:
        """The isolation of builds, proved: `chroot`, or `oci` if the user requested it."""
        # Workers start from several threads at once; the first one tries, the others wait for its answer.
        with self._probing:
            if self._mode is None:
                self._mode = probe(self)
            return self._mode

    def ensure_image(self, key: str, layout: Path, digest: str) -> str:
        """Make an image of an OCI layout available to builds; does nothing when it is.

        Args:
            key: name for display, e.g. `base-debian13`; afterwards it may be a `Recipe.base`.
            layout: the OCI layout.
            digest: `sha256:…` of the image manifest.

        Returns:
            `localhost/toolchain/<key>:<first 12 of digest>`.

        Raises:
            EngineError: the layout has no such image, or it cannot be unpacked.
        """
        reference = f"localhost/toolchain/{key}:{digest.removeprefix('sha256:')[:12]}"
        present = self.call("images", "--quiet", reference, check=False)
        if present.returncode != 0 or not present.stdout.strip():
            with self.invocation("run") as folder:
                single = single_layout(layout, digest, folder)
                files = [path for path in single.rglob("*") if not path.is_dir()]
                show = [Mount(view.visible(path, folder / "copies"), f"/{path.relative_to(folder)}") for path in files]
                pulled = self.call("pull", "--quiet", f"oci:{single.name}:image", show=show, timeout=None)
                self.call("tag", pulled.stdout.split()[-1], reference)
                self.call("rmi", f"localhost/{single.name}", check=False)
        self._references[key] = reference
        return reference

    def forget_image(self, reference: str) -> None:
        """Remove an image from the engine's storage; its layout keeps it."""
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
        """Build a recipe and put its last stage's tree at `out`.

        Args:
            recipe: what to build; `recipe.base` is a reference or a key that `ensure_image` was given.
            root: the recipe root, the build's context.
            out: folder to make; what is there is replaced when the build succeeds, and untouched otherwise. Its files
                are not flushed to disk one by one: it is there to be packed, and the packed layer is.
            log: file that gets every line.
            on_line: called with each line.

        Raises:
            BuildError: it failed; `why` begins with the first error among the last lines.
            EngineError: the engine does not work, or the build sees a network it must not have.
            HostileInputError: what it made leads out of its tree; see `require_inside`.
            LimitError: it reached a limit of `data/limits.toml`.
        """
        source = root / recipe.containerfile
        mode = self.isolation
        try:
            text = render(recipe, source.read_text(encoding="utf-8"), relayed=mode == "chroot")
        except OSError as error:
            raise EngineError(f"cannot read {source}", why=str(error.strerror), fix="reinstall toolchain") from error
        witness = isolating.NetworkProbe(on_line)
        out.parent.mkdir(parents=True, exist_ok=True)
        with self.invocation("build") as folder:
            partial = out.with_name(f".{out.name}.{folder.name}.partial")
            write_atomically(folder / "Containerfile", text.encode())
            (folder / "partial").write_text(os.fspath(partial.absolute()), encoding="utf-8")
            tag = build_tag(folder)
            words = ["build", "--no-cache", "--layers=false", "--force-rm", "--pull=never"]
            words += [*isolating.arguments("build", mode, network=recipe.network), *ulimits(container_limits.ulimits())]
            words += ["--file", _CONTAINERFILE, "--tag", tag, "--output", f"type=local,dest={_OUT}"]
            pipes = relay.make(folder) if mode == "chroot" else None
            if pipes is not None:
                words += ["--format", "docker", *relay.options()]
            inputs, show = self.inputs(recipe, root, folder)
            argv = self.command(
                *words, *inputs, _CONTEXT,
                show=[*show, Mount(folder / "Containerfile", _CONTAINERFILE), Mount(partial, _OUT, read_only=False)],
                network=recipe.network, pipes=pipes, oci=mode != "chroot",
                limits=container_limits.limits_for(folder, self.places(partial), log=log),
            )  # fmt: skip
            try:
                view.own(partial)
                self.attempt(argv, log=log, on_line=witness.line)
                witness.check(finished=not recipe.network)
                if not recipe.network:
                    require_inside(partial, recipe.name)
                self._keep(partial, out)
            except (process.CommandError, OSError) as error:
                if (limit := container_limits.reached(folder, error)) is not None:
                    remove_tree(partial)
                    self._free_disk(recipe, limit)
                    raise container_limits.limit_error(limit.name, f"the build of {recipe.name}") from error
                if isinstance(error, OSError):
                    raise
                if error.returncode < 0:
                    (folder / KILLED).touch()
                witness.check(finished=False)
                raise _build_error(recipe, error) from error
            finally:
                remove_tree(partial)
                # The exported tree is what is wanted; the image that buildah commits beside it would double the space.
                self.call("rmi", "--force", tag, check=False)

    def _free_disk(self, recipe: Recipe, limit: container_limits.Reached) -> None:
        """Remove the containers of a build that reached a limit and, where it filled the disk, all that it wrote."""
        if limit.name in container_limits.OF_DISK:
            self.drop_cache(recipe.name, recipe.cache_key)
            for place in cache_mounts(self.cache, ccache_mount(recipe.compiler_cache)):
                discard(place)
        self.remove_layers(limit.layers)

    def inputs(self, recipe: Recipe, root: Path, folder: Path) -> tuple[list[str], list[Mount]]:
        """Options that name what a recipe is built from, and what of this machine must be seen for it."""
        arguments = dict(recipe.args)
        for name, key in {**recipe.images, **({"BASE": recipe.base} if recipe.base else {})}.items():
            arguments[name] = self._references.get(key, key)
        words = [word for name, value in sorted(arguments.items()) for word in ("--build-arg", f"{name}={value}")]
        # Of a checkout no more than the recipes: other things are there too.
        (folder / "context").mkdir()
        show = [Mount(folder / "context", _CONTEXT)]
        for part in [root / part for part in PARTS if (root / part).is_dir()]:
            (folder / "context" / part.name).mkdir()
            show.append(Mount(view.visible(part, folder / "copies"), f"{_CONTEXT}/{part.name}"))
        for name, path in sorted(recipe.contexts.items()):
            if not path.is_dir():
                raise EngineError(
                    f"{recipe.name}: the tree {name!r} is missing",
                    why=f"{path} is not a folder",
                    fix="run the command again; if that folder was deleted meanwhile, it is made again",
                )
            # What is in the store has modes that all may read by.
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
        """Run a command in a fresh container of `image`; the container is removed whatever happens.

        Args:
            image: reference, as `ensure_image` returned it.
            argv: program and arguments.
            mounts: folders of this machine to show inside.
            network: whether the command may use a network.
            how: see `RunOptions`.

        Raises:
            EngineError: there is no such image.
            LimitError: it reached a limit of `data/limits.toml`.
        """
        env, check, log = how.get("env"), how.get("check", True), how.get("log")
        how["env"], how["check"] = None, False  # the variables are the container's, and its limits are looked at first
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
        """A long-lived process in a container of its own, without network, to talk to over its stdin and stdout.

        The caller must read its standard error, as kernels.pool does to keep its last lines. The process ends with
        the block (see `attended`). Any number may run at once, from any thread that outlives the block.
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
        """The command line that runs `argv` in a container which lives as long as the block, and its folder.

        Args:
            timed: whether the limit of hours applies.
        """
        options: list[str] = []
        for name, value in sorted((env or {}).items()):
            options += ["--env", f"{name}={value}"]
        mode = self.isolation
        granted = isolating.arguments("from", mode, network=network, plain=plain_files(mounts))
        with self.container(image, *granted) as container, self.invocation("run") as folder:
            show = []
            for number, mount in enumerate(mounts):
                inside = f"/mounts/{number}"
                options += Mount(Path(inside), mount.target, read_only=mount.read_only).arguments()
                if mount.read_only:
                    show.append(Mount(view.visible(mount.source, folder / "copies"), inside))
                else:
                    view.own(mount.source)
                    show.append(Mount(mount.source, inside, read_only=False))
            written = [mount.source for mount in mounts if not mount.read_only]
            limits = container_limits.limits_for(folder, self.places(*written), log=log, timed=timed)
            yield (
                isolating.run_command(
                    self, folder, mode, container, argv, options=options, show=show, network=network, limits=limits
                ),
                folder,
            )

    def drop_cache(self, name: str, key: str) -> None:
        """Delete the tree cache of the recipe `name` with the cache key `key`: the next build of it starts clean."""
        for place in self._trees(name, key):
            discard(place)

    def ninja_log(self, name: str, key: str) -> bytes:
        """Ninja's own log in that tree cache, the longest where there are several; empty if there is none."""
        logs = [b""]
        for place in self._trees(name, key):
            for path in (place / ".ninja_log", *place.glob("*/.ninja_log")):
                with contextlib.suppress(OSError):  # what was built may have put anything there
                    logs.append(read_regular(path, LARGEST_NINJA_LOG, within=place))
        return max(logs, key=len)

    def _trees(self, name: str, key: str) -> list[Path]:
        return cache_mounts(self.cache, f"toolchain-{name}-tree-{key}" if key else f"toolchain-{name}-tree")


def require_inside(tree: Path, name: str) -> None:
    """Refuse a build's tree with links that lead out of it, or special files.

    Args:
        name: of what was built, for the message.

    Raises:
        HostileInputError: a link leads out of the tree, or there is a device, pipe or socket.
    """
    top = os.path.realpath(tree)
    for folder, names, files in os.walk(tree):
        for entry in (*names, *files):
            path = os.path.join(folder, entry)  # noqa: PTH118 - a hundred thousand files
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                if os.path.realpath(path).startswith(f"{top}/"):
                    continue
                why = f"/{os.path.relpath(path, tree)} leads to {os.readlink(path)}"  # noqa: PTH115
            elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                continue
            else:
                why = f"/{os.path.relpath(path, tree)} is neither file, link nor folder"
            raise HostileInputError(
                f"what {name} was built to leads out of its own tree", why=why, fix="look at the source's install rules"
            )


def _build_error(recipe: Recipe, error: process.CommandError) -> BuildError:
    lines = [line for line in error.tail if not line.startswith(_PROGRESS) and not _NOISE.match(line)]
    what = f"building {recipe.name} failed"
    # A recipe's script says `toolchain: …` when it knows what is wrong.
    messages = [line.removeprefix("toolchain: ") for line in lines if line.startswith("toolchain: ")]
    if messages:
        what = f"{what}: {messages[-1]}"
    return BuildError(what, why=first_error(lines), fix="read the end of the log")


def first_error(lines: Sequence[str]) -> str:
    """The first error of a compiler, linker or CMake and what follows it, then the end; else the end alone.

    Of CMake's the exception of Python before it comes first: CMake says no more of a script than that it failed.
    """
    at = next((number for number, line in enumerate(lines) if _ERROR.search(line)), None)
    if at is None:
        return "\n".join(lines[-process.TAIL_LINES :])
    if lines[at].startswith("CMake Error"):
        at = next((number for number in range(1, at) if _ends_traceback(lines, number)), at)
    shown = list(lines[at : at + _SHOWN])
    rest = [line for line in lines[at + _SHOWN :] if not line.startswith("FAILED: ")][-_ENDING:]
    return "\n".join([*shown, *(["…"] if rest else []), *rest])


def _ends_traceback(lines: Sequence[str], number: int) -> bool:
    return lines[number - 1].startswith("  ") and _EXCEPTION.match(lines[number]) is not None
