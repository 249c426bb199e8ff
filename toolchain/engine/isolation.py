"""Isolation of containers as options of buildah, and the check that a build has no network."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from toolchain.core import process
from toolchain.core.errors import ConfigError, EngineError
from toolchain.core.recipe import Mount
from toolchain.engine import relay, view
from toolchain.engine.limit_watch import Limits
from toolchain.engine.storage import Storage

Verb = Literal["build", "from", "run"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_WORD = "@interfaces"
# Shell alone, since a base need not have cat or grep. It reads /proc/net/dev because under chroot isolation /sys is the
# host's. A header line holds `|`; without one the file was not readable and nothing is proved.
SCRIPT = (
    'head=0; n=0; while IFS= read -r line; do case "$line" in *"|"*) head=1 ;; *" lo:"* | lo:*) ;; *:*) n=$((n+1)) ;; '
    f'esac; done </proc/net/dev; test "$head" -eq 1 || n=unknown; echo "{_WORD} $n"; test "$n" = 0'
)
# What a container's root cannot do, of all that buildah would let it: leave its root by a second one, give files or
# itself capabilities, take ports, become another user, for whom the kernel would count processes anew.
DROPPED = ("CAP_SYS_CHROOT", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW",
           "CAP_AUDIT_WRITE", "CAP_SETUID", "CAP_SETGID")  # fmt: skip
# What the installation of packages needs.
_INSTALLING = ("CAP_SETFCAP", "CAP_SETUID", "CAP_SETGID")
# Before the first RUN of a stage: the build itself proves that it has no network.
PROOF = f"RUN {SCRIPT}"
_ANSWER = re.compile(rf"^{_WORD} (\d+|unknown)$")
_RUN = re.compile(r"^\s*RUN\s", re.IGNORECASE)
_FROM = re.compile(r"^\s*FROM\s", re.IGNORECASE)


def answer(line: str) -> int | None:
    """The number that `SCRIPT` printed, when `line` is its answer; -1 when it could not tell."""
    match = _ANSWER.match(line.strip())
    if match is None:
        return None
    return -1 if match.group(1) == "unknown" else int(match.group(1))


def mode_of_user() -> str:
    """The isolation that is requested: `chroot`, below a user namespace; `oci` by `TOOLCHAIN_ISOLATION` alone."""
    mode = os.environ.get("TOOLCHAIN_ISOLATION", "chroot")
    if mode not in {"chroot", "oci"}:
        raise ConfigError(f"TOOLCHAIN_ISOLATION={mode} names no isolation", fix="leave it out, or name oci")
    return mode


def arguments(verb: Verb, mode: str, *, network: bool = False, plain: bool = False) -> list[str]:
    """Options of a buildah verb for an isolation mode: what a container may do.

    The network namespace is the launcher's (see `engine.view`), so that no mode needs a bridge; chroot isolation
    refuses the option and shares it anyway. The host name is the launcher's too: buildah would invent one each time.

    Args:
        network: whether it may reach out; packages of a base may bring files with capabilities.
        plain: whether it makes nothing but files and folders (see `view.seccomp`).
    """
    words = ["--isolation", mode]
    if verb != "from":
        words += ["--uts", "host", *([] if mode == "chroot" else ["--network", "host"])]
    for name in [name for name in DROPPED if not (network and name in _INSTALLING)]:
        words += ["--cap-drop", name]
    if verb != "run":  # a container that `run` enters has what `from` gave it
        words += ["--security-opt", f"seccomp={view.SECCOMP_PLAIN if plain else view.SECCOMP}"]
    return words


def before_first_run(containerfile: str, instructions: Sequence[str]) -> str:
    """`containerfile` with `instructions` before the first RUN of each stage."""
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
        # A comment inside a continued instruction does not end it.
        if not (continued and line.lstrip().startswith("#")):
            continued = line.rstrip().endswith("\\")
        lines.append(line)
    return "\n".join(lines) + "\n"


def tiny_root(folder: Path) -> Path:
    """Fill `folder` with a shell and its libraries from this machine: the smallest tree that can run the probe."""
    busybox = process.find("busybox")
    shell = Path(process.find("sh") or "/bin/sh")
    static = busybox is not None and not _libraries(Path(busybox))
    program = Path(busybox) if busybox is not None and static else shell
    if not program.exists():
        raise EngineError("the isolation of builds cannot be tried: there is no /bin/sh", fix="apt-get install dash")
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
    mode: str,
    container: str,
    argv: Sequence[str],
    *,
    options: Sequence[str] = (),
    show: Sequence[Mount] = (),
    network: bool = False,
    limits: Limits | None = None,
) -> list[str]:
    """The command line that runs `argv` in a working container, contained; `folder` is the invocation's."""
    words = ["run", *arguments("run", mode, network=network), *options]
    if mode != "chroot":
        return storage.command(*words, "--", container, *argv, show=show, network=network, oci=True, limits=limits)
    pipes = relay.make(folder)
    words += [*relay.options(), "--", container, *relay.inside(argv)]
    return storage.command(*words, show=show, network=network, pipes=pipes, limits=limits)


class NetworkProbe:
    """Reads a build's output for the probe's answer.

    Args:
        on_line: gets the lines that are not the answer.
    """

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._ran = False
        self.number: int | None = None

    def line(self, text: str) -> None:
        """Take one line of the build's output."""
        number = answer(text)
        if number is not None:
            self.number = number if self.number is None else max(self.number, number, key=abs)
            return
        if re.match(r"^(\[\d+/\d+\] )?STEP \d+(/\d+)?: RUN ", text):
            self._ran = True
        if self._on_line is not None:
            self._on_line(text)

    def check(self, *, finished: bool) -> None:
        """Raise unless nothing ran, or what ran had no network.

        Raises:
            EngineError: it had one, or the probe did not answer in a build that went to its end.
        """
        number = -1 if self.number is None and self._ran and finished else self.number
        if number:
            seen = "the network could not be probed" if number < 0 else f"{number} network interfaces are visible"
            raise EngineError(
                "a build without network is not isolated",
                why=f"inside it, {seen}",
                fix="the build stops here; try another buildah or kernel, or run it as root",
            )
