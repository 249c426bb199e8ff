"""Whether builds are isolated on this machine: proved by a program that tries to get out (see `engine.attack`).

Before the first build it makes three attempts in a `buildah build`: one for the launcher's ids and mounts, one for the
capabilities and one for the system calls, which buildah takes away. `toolchain doctor` makes all attempts there, in a
`buildah run`, and outside of a container, where the program must find nothing of the caller's either.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from toolchain.core import process
from toolchain.core.digest import canonical, sha256_file, sha256_json, write_atomically
from toolchain.core.errors import EngineError
from toolchain.core.recipe import Mount
from toolchain.engine import attack, container_limits, isolation, launcher, relay, view
from toolchain.engine.resources import ulimits
from toolchain.engine.storage import Storage, build_tag

# Where things are in the container; outside of it they have the same names below another folder.
_PROBE = "/probe"
_NAMESPACES = ("mnt", "pid", "ipc", "uts", "net", "user")
_SECONDS = 120.0
DECISIVE = ("a file of the caller's", "a second chroot", "keyctl")
# What a build writes is checked before it is read: see `buildah.require_inside`.
_IN_BUILD = tuple(name for name in attack.ATTEMPTS if name != "a link where the caller reads")
# Outside a container mounts are made and namespaces begun, so there the others prove nothing.
_OUTSIDE = ("a file of the caller's", "another process's root or memory", "the machine's files", "a disk",
            "writing to a read-only mount", "new privileges", "a namespace of the caller's",
            "the kernel's settings", "a new system call")  # fmt: skip


def probe(storage: Storage, *, thorough: bool = False) -> str:
    """Return the isolation of builds, tried once for each buildah, kernel and set of measures.

    Args:
        storage: the engine's storage.
        thorough: make all attempts, in all places, even if the answer is known.

    Returns:
        `chroot`, or `oci` (a runtime such as crun) if the user requested it.

    Raises:
        EngineError: a container does not start, sees a network, or gets out; the message names how.
    """
    mode = isolation.mode_of_user()
    remembered = storage.cache.engine / "isolation.json"
    tried = {
        "mode": mode,
        "interfaces": 0,
        "buildah": storage.version(),
        "kernel": platform.release(),
        "measures": measures(mode),
    }
    proved = canonical({**tried, "held": list(DECISIVE)})
    if not thorough and remembered.is_file() and remembered.read_bytes() == proved:
        return mode
    remembered.unlink(missing_ok=True)
    with storage.invocation("build") as folder:
        trial = _Trial(storage, mode, folder, _IN_BUILD if thorough else DECISIVE)
        trial.run(everywhere=thorough)
    write_atomically(remembered, proved)
    return mode


def measures(mode: str) -> str:
    """Digest of what isolates: options of buildah, the profile of system calls, and the programs that use them."""
    options = [isolation.arguments(verb, mode) for verb in isolation.VERBS]
    programs = [sha256_file(Path(str(module.__file__))) for module in (attack, launcher, relay, view)]
    profiles = [view.seccomp(), view.seccomp(plain=True)]
    return sha256_json({"options": options, "profiles": profiles, "programs": programs})


class _Trial:
    """The runs of the program.

    Args:
        folder: of the invocation.
        in_build: the attempts in a build.
    """

    def __init__(self, storage: Storage, mode: str, folder: Path, in_build: Sequence[str]) -> None:
        self._storage, self._mode, self._folder = storage, mode, folder
        self._attempts = {"build": in_build, "container": tuple(attack.ATTEMPTS), "outside": _OUTSIDE}
        self._show = self._shown()
        self._program = [os.fspath(Path(sys.executable).resolve()), "-I", "-S", "-B", f"{_PROBE}/attack.py"]

    def run(self, *, everywhere: bool) -> None:
        """Raise unless the program stays where it is.

        Args:
            everywhere: try in a container and outside of one too.
        """
        tag = build_tag(self._folder)
        try:
            judge("a build", self._in_build(tag), self._attempts["build"])
            if not everywhere:
                return
            with self._storage.container(tag, *isolation.arguments("from", self._mode, plain=True)) as name:
                judge("a container", self._in_container(name))
        finally:
            self._storage.call("rmi", "--force", tag, check=False)
        judge("outside a container", self._outside(), _OUTSIDE, interfaces=False)

    def _shown(self) -> list[Mount]:
        """The mounts of the probe program: this machine's Python, and the files to look for."""
        folder = self._folder
        write_atomically(folder / "secret", b"of the caller\n", mode=0o600)
        write_atomically(folder / "seen", b"of the machine\n")
        (folder / "locked").mkdir()
        (folder / "locked").chmod(0o777)
        number = folder.stat().st_dev
        given: attack.Given = {
            "secrets": [f"{_PROBE}/secret", os.fspath(folder.absolute() / "secret")],
            "unseen": [os.fspath(folder.absolute() / "seen"), "/etc/shadow", "/home", "/root/.ssh", "/boot"],
            "locked": f"{_PROBE}/locked",
            "written": f"{_PROBE}/written",
            "disk": (os.major(number), os.minor(number)),
            "namespaces": {name: os.fspath(Path(f"/proc/self/ns/{name}").readlink()) for name in _NAMESPACES},
            "attempts": [],
        }
        for name, attempts in self._attempts.items():
            write_atomically(folder / f"{name}.json", json.dumps({**given, "attempts": attempts}).encode())
        names = ("secret", "locked", *(f"{name}.json" for name in self._attempts))
        show = [Mount(folder / name, f"{_PROBE}/{name}") for name in names]
        show.append(Mount(view.visible(Path(attack.__file__), folder / "copies"), f"{_PROBE}/attack.py"))
        prefix = Path(sys.base_prefix).resolve()
        if prefix.parts[1] not in launcher.SYSTEM:
            show.append(Mount(view.visible(prefix, folder / "copies"), os.fspath(prefix)))
        return show

    def _volumes(self) -> list[str]:
        """Options that show in a container what the engine is shown, and the machine's programs."""
        system = [Mount(path, os.fspath(path)) for name in launcher.SYSTEM if (path := Path("/", name)).is_dir()]
        mounts = [mount for mount in system if not mount.source.is_symlink()]
        mounts += [Mount(Path(mount.target), mount.target) for mount in self._show]
        return [word for mount in mounts for word in mount.arguments()]

    def _in_build(self, tag: str) -> process.Result:
        context = self._folder / "context"
        tree = context / "tree"
        tree.mkdir(parents=True)
        for name in launcher.SYSTEM:
            if (place := Path("/", name)).is_symlink():
                (tree / name).symlink_to(place.readlink())
        for name in ("dev", "proc", "run", "sys", "tmp", "var"):
            (tree / name).mkdir()
        pipes = relay.make(self._folder) if self._mode == "chroot" else None
        shell = [relay.SHELL] if pipes is not None else []
        steps = ["FROM scratch", "COPY tree /", *shell, isolation.PROOF]
        steps.append(f"RUN {shlex.join([*self._program, f'{_PROBE}/build.json'])}")
        write_atomically(context / "Containerfile", "\n".join(steps).encode())
        words = ["build", "--no-cache", "--layers=false", "--force-rm", *isolation.arguments("build", self._mode)]
        words += [*ulimits(container_limits.ulimits()), *self._volumes(), "--tag", tag, "--format", "docker"]
        words += relay.options() if pipes is not None else []
        argv = self._storage.command(
            *words, "/context", show=[Mount(context, "/context"), *self._show], pipes=pipes, oci=self._mode != "chroot"
        )  # fmt: skip
        result = self._storage.attempt(argv, check=False, capture=True, timeout=_SECONDS)
        if pipes is not None:
            shutil.rmtree(pipes)
        return result

    def _in_container(self, name: str) -> process.Result:
        script = f"{isolation.SCRIPT}; exec {shlex.join([*self._program, f'{_PROBE}/container.json'])}"
        written = Mount(self._folder / "written", f"{_PROBE}/written", read_only=False)
        view.own(written.source)
        argv = isolation.run_command(
            self._storage, self._folder, self._mode, name, ["/bin/sh", "-c", script],
            options=[*self._volumes(), *Mount(Path(written.target), written.target, read_only=False).arguments()],
            show=[*self._show, written],
        )  # fmt: skip
        return self._storage.attempt(argv, check=False, capture=True, timeout=_SECONDS)

    def _outside(self) -> process.Result:
        """What a process with the containers' ids finds that left a container, with more rights than it would have."""
        words = [*self._program, f"{_PROBE}/outside.json"]
        argv = view.command(words, self._storage.cache.engine / "settings", show=self._show)
        return self._storage.attempt(argv, check=False, capture=True, timeout=_SECONDS)


def judge(
    where: str, result: process.Result, attempts: Sequence[str] = tuple(attack.ATTEMPTS), *, interfaces: bool = True
) -> None:
    """Refuse an isolation that the program got out of.

    Args:
        where: it ran.
        result: what it said.
        attempts: that it was to make.
        interfaces: whether the network's were counted before.

    Raises:
        EngineError: it got out, saw a network, or did not answer.
    """
    lines = [line.strip() for line in result.stdout.splitlines()]
    out = [line.removeprefix("@out ") for line in lines if line.startswith("@out ")]
    answered = {line.partition(":")[0] for line in out} | {
        line.removeprefix("@held ") for line in lines if line.startswith("@held ")
    }
    missing = sorted({*attempts} - answered)
    numbers = [number for line in lines if (number := isolation.answer(line)) is not None]
    if numbers and numbers[0] > 0:
        out.append(f"{numbers[0]} network interfaces are visible")
    elif missing or (interfaces and numbers != [0]):
        last = " ".join(result.tail[-3:])
        out.append(f"no answer: {', '.join(missing) or 'the network'} (exit code {result.returncode}): {last}")
    if out:
        raise EngineError(
            "builds are not isolated here",
            why="\n".join(f"{where}: {reason}" for reason in out),
            fix="nothing is built like that; `toolchain doctor` tries it again, and a newer buildah or kernel may hold",
        )
