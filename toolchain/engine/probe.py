"""Prove before the first build that builds are isolated: a program in a build tries to escape from its container.

`engine.attack` makes three attempts in a `buildah build`. Reading one of the caller's files tests the launcher's ids
and mounts, a second chroot tests the capabilities, and keyctl tests the seccomp profile.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

from toolchain.core import process
from toolchain.core.digest import canonical, sha256_file, sha256_json, write_atomically
from toolchain.core.errors import EngineError
from toolchain.core.locks import held
from toolchain.core.recipe import Mount
from toolchain.data import load
from toolchain.engine import attack, container_limits, isolation, launcher, limit_watch, relay, view
from toolchain.engine.resources import ulimits
from toolchain.engine.storage import Storage, build_tag

_PROBE = "/probe"  # the folder of the attack's files in the container
_SECONDS = 120.0


def probe(storage: Storage, *, again: bool = False) -> str:
    """Prove that builds are isolated, and return the name of the isolation.

    The proof is stored in the cache, and is valid for one version of buildah, one kernel and one result of `measures`.
    Only one process makes the attempts at a time. The other processes wait, and use the proof unless `again` is set.

    Args:
        again: whether to make the attempts even if the cache contains a valid proof.

    Raises:
        ConfigError: the cache cannot be used for builds (see `Cache.check`).
        EngineError: buildah is missing, the container does not start or sees a network, or the attack gets out of the
            container.
        LockHeldError: another process has made the attempts for longer than `locks.patience`.
    """
    remembered = storage.cache.engine / "isolation.json"
    proved = canonical(
        {
            "mode": isolation.MODE,
            "interfaces": 0,
            "buildah": storage.version(),
            "kernel": platform.release(),
            "measures": measures(),
            "held": list(attack.ATTEMPTS),
        }
    )

    def is_proved() -> bool:
        return not again and remembered.is_file() and remembered.read_bytes() == proved

    if is_proved():
        return isolation.MODE
    storage.cache.check()
    with held(storage.cache.locks / "isolation.lock", what="the proof that builds are isolated"):
        if is_proved():
            return isolation.MODE
        remembered.unlink(missing_ok=True)
        with storage.invocation("build") as folder:
            tag = build_tag(folder)
            try:
                judge(_try(storage, folder, tag))
            finally:
                storage.call("rmi", "--force", tag, check=False)
        write_atomically(remembered, proved)
    return isolation.MODE


def measures() -> str:
    """Return a digest of the measures that isolate builds.

    It covers buildah's options, the seccomp profiles, the system calls that the launcher refuses by number, and the
    modules of this tool that isolate builds.
    """
    options = [isolation.arguments(verb) for verb in isolation.VERBS]
    modules = (attack, launcher, limit_watch, relay, view)
    programs = [sha256_file(Path(str(module.__file__))) for module in modules]
    profiles = [view.seccomp(), view.seccomp(plain=True)]
    calls = load("syscalls")["by-number"]
    return sha256_json({"options": options, "profiles": profiles, "programs": programs, "calls": calls})


def _try(storage: Storage, folder: Path, tag: str) -> process.Result:
    """Run the attack in a build that mounts this machine's programs instead of using a base, and return the result."""
    context = folder / "context"
    tree = context / "tree"
    tree.mkdir(parents=True)
    show = [Mount(context, "/context"), *_files(folder)]
    volumes = show[1:]
    for name in launcher.SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            (tree / name).symlink_to(place.readlink())
        elif place.is_dir():
            volumes.append(Mount(place, os.fspath(place)))
    for name in ("dev", "proc", "run", "sys", "tmp", "var"):
        (tree / name).mkdir()
    pipes = relay.make(folder)
    program = [os.fspath(Path(sys.executable).resolve()), "-I", "-S", "-B", f"{_PROBE}/attack.py"]
    secrets = [f"{_PROBE}/secret", os.fspath(folder.absolute() / "secret")]
    steps = ["FROM scratch", "COPY tree /", relay.SHELL, isolation.PROOF, f"RUN {shlex.join([*program, *secrets])}"]
    write_atomically(context / "Containerfile", "\n".join(steps).encode())
    words = ["build", "--no-cache", "--layers=false", "--force-rm", *isolation.arguments("build")]
    words += [*ulimits(container_limits.ulimits()), "--tag", tag, "--format", "docker"]
    for mount in volumes:  # in the launcher's namespaces, files have the same paths as in the container
        words += Mount(Path(mount.target), mount.target).arguments()
    argv = storage.command(*words, *relay.options(), "/context", show=show, pipes=pipes)
    return storage.attempt(argv, check=False, capture=True, timeout=_SECONDS)


def _files(folder: Path) -> list[Mount]:
    """Write the attack's secret, and return the mounts for the attack's files and for Python.

    Python needs no mount if it is installed in the system's folders.
    """
    write_atomically(folder / "secret", b"of the caller\n", mode=0o600)
    mounts = [
        Mount(folder / "secret", f"{_PROBE}/secret"),
        Mount(view.visible(Path(attack.__file__), folder / "copies"), f"{_PROBE}/attack.py"),
    ]
    prefix = Path(sys.base_prefix).resolve()
    if prefix.parts[1] not in launcher.SYSTEM:
        mounts.append(Mount(view.visible(prefix, folder / "copies"), os.fspath(prefix)))
    return mounts


def judge(result: process.Result) -> None:
    """Raise an EngineError if the attack got out of the container, saw a network, or did not answer."""
    lines = [line.strip() for line in result.stdout.splitlines()]
    out = [line.removeprefix("@out ") for line in lines if line.startswith("@out ")]
    answered = {line.partition(":")[0] for line in out}
    answered |= {line.removeprefix("@held ") for line in lines if line.startswith("@held ")}
    missing = sorted(attack.ATTEMPTS.keys() - answered)
    numbers = [number for line in lines if (number := isolation.answer(line)) is not None]
    if numbers and numbers[0] > 0:
        out.append(f"{numbers[0]} network interfaces are visible")
    elif missing or numbers != [0]:
        last = " ".join(result.tail[-3:])
        out.append(f"no answer: {', '.join(missing) or 'the network'} (exit code {result.returncode}): {last}")
    if out:
        raise EngineError(
            "build-not-isolated",
            "builds are not isolated on this machine",
            why="\n".join(out),
            fix="try a newer buildah or kernel, and run `toolchain doctor`; the tool builds nothing without isolation",
        )
