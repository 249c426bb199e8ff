"""Run a shell or a command in place of a build's last step or a kernel worker, with the same image and isolation.

Changes to a build are not kept, because the tree of the unfinished build is mounted as the lower folder of an overlay,
and no image is made from the container. A shell in place of a worker gets new, empty output folders.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pty
import re
import select
import shlex
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.core.digest import write_atomically
from toolchain.core.errors import BuildError, ConfigError, EngineError
from toolchain.core.recipe import Mount, Recipe
from toolchain.engine import container_limits, relay, view
from toolchain.engine import isolation as isolating
from toolchain.engine.buildah import Buildah, render
from toolchain.engine.resources import ulimits
from toolchain.engine.storage import cache_mounts

if TYPE_CHECKING:
    from toolchain.core.process import Result

_TERMINAL = "/terminal"  # the terminal's path in the launcher's namespaces
_INSIDE = "/run/toolchain-terminal"
_BEGUN, _ENDED = "@shell begun", "@shell ended"
_CACHE = re.compile(r"--mount=type=cache,id=([^,\s]+),target=([^,\s]+)\s*")
_BIND = re.compile(r"--mount=type=bind,(?:[^,\s]+,)*target=([^,\s]+)")
_RUN = re.compile(r"^RUN\s", re.IGNORECASE)
_COMMAND = re.compile(r"^RUN\s+((?:--\S+\s+)*)(.*)$", re.IGNORECASE | re.DOTALL)


def require_terminal(argv: Sequence[str]) -> None:
    """Raise a ConfigError if `argv` is empty, and standard input or output is not a terminal."""
    if not argv and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "shell-needs-terminal",
            "a shell needs a terminal",
            why="standard input or output is not a terminal",
            fix="give a command: -- COMMAND...",
        )


@dataclass(frozen=True)
class Step:
    """The last RUN of a recipe's Containerfile, which is the step that builds.

    Args:
        before: the lines of the Containerfile before this RUN.
        options: the options of this RUN without its cache mounts.
        caches: the target of each cache mount, by the id of the mount.
    """

    before: str
    options: str
    command: str
    caches: Mapping[str, str]

    @property
    def sources(self) -> list[str]:
        """The paths in the container at which the trees of other stages, the sources and the recipes are mounted."""
        return _BIND.findall(self.options)


def step_of(containerfile: str) -> Step:
    """Return the last RUN of a Containerfile; raise an EngineError if there is none."""
    lines = containerfile.splitlines()
    begins = [number for number, line in enumerate(lines) if _RUN.match(line)]
    if not begins:
        raise EngineError(
            "stage-without-container", "this stage runs nothing in a container", fix="choose another stage"
        )
    end = begins[-1]
    while lines[end].rstrip().endswith("\\"):
        end += 1
    words = " ".join(line.strip().removesuffix("\\") for line in lines[begins[-1] : end + 1])
    match = _COMMAND.match(_CACHE.sub("", words))
    assert match is not None  # noqa: S101 - `words` begins with RUN
    before = "\n".join(lines[: begins[-1]])
    return Step(before + "\n", match.group(1), " ".join(match.group(2).split()), dict(_CACHE.findall(words)))


@dataclass
class Shell:
    """An interactive shell or a command that runs in place of the program that a container usually runs.

    Args:
        argv: the command; empty for a shell, which needs a terminal.
        tell: called by `of_step` with each line for the user before the shell or the command starts.
        show: called with each line that a command prints.
    """

    argv: Sequence[str]
    tell: Callable[[str], None]
    show: Callable[[str], None]
    _code: int | None = None
    _begun: bool = False
    _last: list[str] = field(default_factory=list)

    def of_step(self, engine: Buildah, recipe: Recipe, *, root: Path) -> int:
        """Run the shell or command in place of a recipe's last step, and return its exit code; 1 if it is not known.

        Raises:
            BuildError: the container did not start.
            EngineError: buildah does not work, builds are not isolated, or the Containerfile contains no RUN.
            LimitError: the container reached a limit in `data/limits.toml`.
        """
        text = (root / recipe.containerfile).read_text(encoding="utf-8")
        engine.prove_isolation()
        step = step_of(render(recipe, text))
        with engine.invocation("build") as folder, _terminal(self.argv) as terminal:
            overlays = []
            for identity, target in step.caches.items():
                for place in cache_mounts(engine.cache, identity)[:1]:
                    inside = f"{view.WORK}/{place.relative_to(engine.cache.mounts)}"
                    overlays += ["--volume", f"{inside}:{target}:O"]
            if not overlays:
                self.tell("no build of this stage has left a build tree, so the container has none")
            self.tell(f"the step runs: {step.command}")
            self.tell(
                f"sources and recipes: {', '.join(step.sources)}; cached folders: {', '.join(step.caches.values())}"
            )
            # A RUN instruction is one line, but the script may have several, so the script is encoded.
            script = base64.b64encode(self._script().encode()).decode()
            containerfile = f'{step.before}RUN {step.options}eval "$(echo {script} | base64 -d)"\n'
            write_atomically(folder / "Containerfile", containerfile.encode())
            words = ["build", "--no-cache", "--layers=false", "--force-rm", "--pull=never", "--format", "docker"]
            words += [*isolating.arguments("build"), *ulimits(container_limits.ulimits()), *overlays]
            words += relay.options()
            inputs, show = engine.inputs(recipe, root, folder)
            argv = engine.command(
                *words, *terminal.options, "--file", "/call/Containerfile", *inputs, "/context",
                show=[*show, *terminal.mounts, Mount(folder / "Containerfile", "/call/Containerfile")],
                pipes=relay.make(folder), limits=container_limits.limits_for(folder, engine.places(), timed=False),
            )  # fmt: skip
            code = self._talk(
                lambda: engine.attempt(argv, check=False, on_line=self._line, on_stderr=self._last.append), terminal
            )
            if (limit := container_limits.reached(folder)) is not None:
                engine.remove_layers(limit.layers)
                raise container_limits.limit_error(limit.name, "the shell")
            return code

    def of_worker(self, engine: Buildah, image: str, *, mounts: Sequence[Mount], env: Mapping[str, str]) -> int:
        """Run the shell or command in place of a kernel worker, but with empty output folders; return its exit code.

        The exit code is 1 if it is not known. BuildError, EngineError and LimitError are raised as by `of_step`.
        """
        with engine.invocation("run") as folder, _terminal(self.argv) as terminal:
            own = []
            for number, mount in enumerate(mounts):
                place = folder / f"written-{number}"
                if not mount.read_only:
                    place.mkdir()
                own.append(mount if mount.read_only else Mount(place, mount.target, read_only=False, links=mount.links))
            own += [Mount(mount.source, _INSIDE, read_only=False, links=True) for mount in terminal.mounts]
            argv = ["/bin/sh", "-c", self._script()]
            return self._talk(
                lambda: engine.run(
                    image, argv, mounts=own, env=env, check=False, on_line=self._line, on_stderr=self._last.append
                ),
                terminal,
            )

    def _script(self) -> str:
        """Return the script to run in the container. It always fails, so that buildah does not commit an image."""
        inner = shlex.join(self.argv)
        if not self.argv:
            inner = f"setsid -c sh -c 'exec $(command -v bash || echo sh) -i' <{_INSIDE} >{_INSIDE} 2>&1"
        # The script writes to one stream only, because buildah may report the failure on the other stream before the
        # output has arrived.
        return f"exec 2>&1; echo {_BEGUN}; ({inner}); echo {_ENDED} $?; exit 1"

    def _line(self, line: str) -> None:
        if line == _BEGUN:
            self._begun = True
        elif match := re.fullmatch(rf"(.*){_ENDED} (\d+)", line):
            if match.group(1):  # the last line of the output has no newline, so the mark follows it
                self.show(match.group(1))
            self._code = int(match.group(2))
        elif self._begun and self._code is None:
            self.show(line)
        elif not self._begun:
            self._last.append(line)

    def _talk(self, work: Callable[[], Result], terminal: _Terminal) -> int:
        with terminal.connected():
            work()
        if self._code is None and not self._begun:
            raise BuildError(
                "container-not-started",
                "the container did not start",
                why="\n".join(self._last[-10:]),
                fix="run `toolchain doctor`",
            )
        return 1 if self._code is None else self._code


@dataclass
class _Terminal:
    """A pseudo-terminal for a container, which cannot open the user's terminal. Data is copied between the terminals.

    Args:
        mounts: the mounts that show this terminal to buildah.
        options: the options of `buildah build` that mount this terminal in the container.
    """

    mounts: Sequence[Mount] = ()
    options: Sequence[str] = ()
    master: int = -1
    slave: int = -1

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Copy data between this terminal and the user's terminal during the block; do nothing if `master` is -1."""
        if self.master < 0:
            yield
            return
        ours = sys.stdin.fileno()
        before = termios.tcgetattr(ours)
        stop, stopped = os.pipe()
        self._resize()
        resized = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        tty.setraw(ours)
        copying = threading.Thread(target=self._copy, args=(ours, stop), daemon=True)
        copying.start()
        try:
            yield
        finally:
            os.close(stopped)
            copying.join(timeout=2)
            os.close(stop)
            signal.signal(signal.SIGWINCH, resized)
            termios.tcsetattr(ours, termios.TCSADRAIN, before)

    def _resize(self) -> None:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetwinsize(self.slave, termios.tcgetwinsize(sys.stdin.fileno()))

    def _copy(self, ours: int, stop: int) -> None:
        while True:
            ready, _, _ = select.select([ours, self.master, stop], [], [])
            if self.master in ready:
                with contextlib.suppress(OSError):
                    os.write(sys.stdout.fileno(), os.read(self.master, 65536))
            elif stop in ready:  # only after the last output has been copied
                return
            if ours in ready:
                os.write(self.master, os.read(ours, 4096))


@contextlib.contextmanager
def _terminal(argv: Sequence[str]) -> Iterator[_Terminal]:
    """Yield a pseudo-terminal for a shell; for a command, yield a `_Terminal` without mounts, which copies nothing."""
    if argv:
        yield _Terminal()
        return
    master, slave = pty.openpty()
    try:
        first, _ = view.ids()
        try:
            os.fchown(slave, first, -1)
            os.fchmod(slave, 0o600)
        except OSError:  # `fchown` fails if the user namespace does not map the terminal's group
            os.fchmod(slave, 0o606)
        mount = Mount(Path(os.ttyname(slave)), _TERMINAL, read_only=False, links=True)
        yield _Terminal([mount], ["--volume", f"{_TERMINAL}:{_INSIDE}:rw"], master, slave)
    finally:
        os.close(slave)
        os.close(master)
