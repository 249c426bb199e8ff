"""Choose buildah's options for isolating containers, and check that a build has no network."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from toolchain.core import process
from toolchain.core.errors import EngineError
from toolchain.core.recipe import Mount
from toolchain.engine import relay, view
from toolchain.engine.limit_watch import Limits
from toolchain.engine.storage import Storage

MODE = "chroot"  # the isolation that buildah adds inside the launcher's namespaces
Verb = Literal["build", "from", "run"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_WORD = "@interfaces"
# This script counts the network interfaces other than `lo`. It uses only the shell, because a base need not have cat or
# grep. It reads /proc/net/dev, because the launcher mounts no part of /sys that lists interfaces. If the header of that
# file, whose lines contain `|`, is missing, the number is `unknown`.
SCRIPT = (
    'head=0; n=0; while IFS= read -r line; do case "$line" in *"|"*) head=1 ;; *" lo:"* | lo:*) ;; *:*) n=$((n+1)) ;; '
    f'esac; done </proc/net/dev; test "$head" -eq 1 || n=unknown; echo "{_WORD} $n"; test "$n" = 0'
)
# By default, buildah or docker gives these capabilities to root in a container. With them, root could for example leave
# the container by a second chroot, make devices, or become other users.
DROPPED = ("CAP_SYS_CHROOT", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW",
           "CAP_AUDIT_WRITE", "CAP_SETUID", "CAP_SETGID")  # fmt: skip
# A buildah container with a network keeps these capabilities, because package managers need them.
_INSTALLING = ("CAP_SETFCAP", "CAP_SETUID", "CAP_SETGID")
# This step comes before the first RUN of a stage, so that the build itself proves that it has no network.
PROOF = f"RUN {SCRIPT}"
_ANSWER = re.compile(rf"^{_WORD} (\d+|unknown)$")
_RUN = re.compile(r"^\s*RUN\s", re.IGNORECASE)
_FROM = re.compile(r"^\s*FROM\s", re.IGNORECASE)


def answer(line: str) -> int | None:
    """Return the number of interfaces that a line from `SCRIPT` gives; -1 if it is `unknown`, None for other lines."""
    match = _ANSWER.match(line.strip())
    if match is None:
        return None
    known = match.group(1).isdigit() and len(match.group(1)) < 10
    return int(match.group(1)) if known else -1


def arguments(verb: Verb, *, network: bool = False, plain: bool = False) -> list[str]:
    """Return the options for a buildah verb that restrict its containers.

    Containers share the network and the host name of the launcher's namespaces (see `engine.view`).

    Args:
        network: whether the container has a network. Such a container keeps the capabilities in `_INSTALLING`.
        plain: whether the container may make only files and folders (see `view.seccomp`).
    """
    words = ["--isolation", MODE]
    if verb != "from":
        words += ["--uts", "host"]
    for name in [name for name in DROPPED if not (network and name in _INSTALLING)]:
        words += ["--cap-drop", name]
    if verb != "run":  # `run` uses the seccomp profile that `from` set
        words += ["--security-opt", f"seccomp={view.SECCOMP_PLAIN if plain else view.SECCOMP}"]
    return words


def before_first_run(containerfile: str, instructions: Sequence[str]) -> str:
    """Return `containerfile` with `instructions` inserted before the first RUN of each stage."""
    lines: list[str] = []
    pending = False
    continued = False
    for line in containerfile.splitlines():
        if not continued:
            if _FROM.match(line):
                pending = True
            elif pending and _RUN.match(line):
                lines += instructions
                pending = False
        # A comment line inside a continued instruction does not end the instruction.
        if not (continued and line.lstrip().startswith("#")):
            continued = line.rstrip().endswith("\\")
        lines.append(line)
    return "\n".join(lines) + "\n"


def tiny_root(folder: Path) -> Path:
    """Create `folder` with only a shell and its libraries, which suffice to run `SCRIPT`, and return `folder`.

    Raise an EngineError if there is no shell.
    """
    busybox = process.find("busybox")
    shell = Path(process.find("sh") or "/bin/sh")
    static = busybox is not None and not _libraries(Path(busybox))
    program = Path(busybox) if busybox is not None and static else shell
    if not program.exists():
        raise EngineError(
            "isolation-untested",
            "the isolation of containers cannot be tested, because there is no /bin/sh",
            fix="apt-get install dash",
        )
    (folder / "bin").mkdir(parents=True)
    shutil.copy2(program.resolve(), folder / "bin" / "sh")
    for library in _libraries(program):
        target = folder / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), target)
    return folder


def _libraries(program: Path) -> list[Path]:
    result = process.run(["ldd", os.fspath(program.resolve())], capture=True, check=False, timeout=30)
    if result.returncode != 0:
        return []
    return [Path(path) for path in re.findall(r"(?:^|\s)(/\S+)(?= \()", result.stdout)]


def run_command(
    storage: Storage,
    folder: Path,
    container: str,
    argv: Sequence[str],
    *,
    options: Sequence[str] = (),
    show: Sequence[Mount] = (),
    network: bool = False,
    limits: Limits | None = None,
) -> list[str]:
    """Make the output pipes in the invocation's `folder`, and return a command line that runs `argv` in `container`."""
    words = ["run", *arguments("run", network=network), *options]
    pipes = relay.make(folder)
    words += [*relay.options(), "--", container, *relay.inside(argv)]
    return storage.command(*words, show=show, network=network, pipes=pipes, limits=limits)


class NetworkProbe:
    """The answers of the `PROOF` steps in the output of a build.

    Args:
        on_line: called with each line that is not an answer.

    Attributes:
        number: the result of `answer` that is farthest from 0; None if there was no answer.
    """

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._ran = False
        self.number: int | None = None

    def line(self, text: str) -> None:
        number = answer(text)
        if number is not None:
            self.number = number if self.number is None else max(self.number, number, key=abs)
            return
        if re.match(r"^(\[\d+/\d+\] )?STEP \d+(/\d+)?: RUN ", text):
            self._ran = True
        if self._on_line is not None:
            self._on_line(text)

    def check(self, *, finished: bool) -> None:
        """Raise an EngineError if an interface was visible in a step, or if the network could not be probed.

        A missing answer is an error only if `finished` is set and the build has run a step.
        """
        number = -1 if self.number is None and self._ran and finished else self.number
        if number:
            seen = "the network could not be probed" if number < 0 else f"{number} network interfaces are visible"
            raise EngineError(
                "build-not-isolated",
                "a build that must have no network is not isolated",
                why=f"inside the build, {seen}",
                fix="try another buildah or kernel, or run the build as root",
            )
