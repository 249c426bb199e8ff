"""Prove with a container, before any work, that a docker daemon may run checks and kernels.

A container of a tiny image, started as every later one will be, counts the network interfaces that it sees. It reads a
word that this process wrote and the recipes' own files, and writes the word back. A daemon of another machine cannot.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolchain.core import process, recipe
from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError
from toolchain.core.recipe import Mount
from toolchain.engine import namespace
from toolchain.engine.docker import PROGRAM, DockerRunner
from toolchain.engine.isolation import DROPPED, SCRIPT, answer, tiny_root
from toolchain.engine.storage import remove_tree

_TIMEOUT = 120.0
_INSTEAD = "leave --runner away, and buildah runs them"
# Shell alone, see `isolation.SCRIPT`.
_RIGHTS = (
    'while IFS= read -r line; do case "$line" in CapBnd:*|NoNewPrivs:*|Seccomp:*) echo "@right $line" ;; esac; '
    'done </proc/self/status; while read -r line; do echo "@ids $line"; done </proc/self/uid_map'
)
_CAPABILITIES = {
    "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18, "CAP_MKNOD": 27, "CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31,
}  # fmt: skip
# $1 is a folder with a word in it, the others are files.
_SHOW = (
    'IFS= read -r word <"$1/asked"; echo "@asked $word"; echo "$word" >"$1/answer"; shift; for file in "$@"; do '
    'while IFS= read -r line; do printf \'@line %s\\n\' "$line"; done <"$file"; done'
)


def proved(cache: Cache, *, host: str | None = None, scripts: Sequence[Path] | None = None) -> DockerRunner:
    """Return a runner whose containers are proved to see no network, and the folders of this machine.

    Args:
        cache: the tool's folder; most mounts come from it.
        host: the daemon's address; by default the client's own settings decide.
        scripts: files that containers must see unchanged; by default the recipes' own.

    Raises:
        EngineError: docker is missing or its daemon does not answer; its containers do not run, see a network, do
            not see this machine's folders, or leave files in them that are not the user's.
    """
    cache.work.mkdir(parents=True, exist_ok=True)
    runner = DockerRunner(host, scratch=cache.work, settings=cache.engine / "settings")
    version = runner.version()
    process.which("skopeo", fix="apt-get install skopeo: it loads images into docker")
    runner.cleanup()
    if scripts is None:
        top = recipe.root()
        scripts = [top / "llvm-config" / "contract" / "check.sh", top / "aotriton" / "worker.py"]
    with _scratch(cache.work) as folder, _tiny_image(runner, folder) as image:
        refused: EngineError | None = None
        lines: list[str] = []
        for user in _users():
            runner.user = user
            refused, lines = _wrong(runner, image, folder / f"seen-by-{user.partition(':')[0]}", scripts)
            if refused is None:
                break
    if refused is not None:
        raise refused
    runner.facts = {"program": PROGRAM, "version": version, "interfaces": 0, "lacks": lacks(lines)}
    return runner


def describe(runner: DockerRunner) -> str:
    """The result of the probe, in one line."""
    where = f" at {runner.address}" if runner.address else ""
    who = f"; they run as {runner.user}" if runner.user else ""
    lacking = "".join(f"; they lack {what}" for what in runner.facts["lacks"])
    return (
        f"docker {runner.facts['version']}{where}: its containers see no network interface but lo, and the "
        f"folders of this machine{who}{lacking}"
    )


def lacks(lines: Sequence[str]) -> list[str]:
    """The isolation of buildah's containers that these lack.

    Args:
        lines: what a container said of its rights.
    """
    rights = dict(line.removeprefix("@right ").split(":", 1) for line in lines if line.startswith("@right "))
    maps = [line.split()[1:3] for line in lines if line.startswith("@ids ")]
    kept = [name for name in DROPPED if int(rights.get("CapBnd", "0").strip() or "0", 16) >> _CAPABILITIES[name] & 1]
    missing = [f"the drop of {name}" for name in kept]
    missing += ["no_new_privs"] if rights.get("NoNewPrivs", "").strip() != "1" else []
    missing += ["a profile of system calls"] if rights.get("Seccomp", "").strip() != "2" else []
    if any(inside == outside for inside, outside in maps) or not maps:
        missing.append("ids of their own, so a process that escapes has the user's rights")
    return missing


@contextlib.contextmanager
def _scratch(work: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="probe-", dir=work))
    try:
        yield folder
    finally:
        remove_tree(folder)


@contextlib.contextmanager
def _tiny_image(runner: DockerRunner, folder: Path) -> Iterator[str]:
    root = tiny_root(folder / "root")
    with tarfile.open(folder / "root.tar", "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, path.relative_to(root).as_posix(), recursive=False)
    reference = runner.take_tree(folder / "root.tar", f"probe:{secrets.token_hex(6)}")
    try:
        yield reference
    finally:
        runner.forget_image(reference)


def _users() -> list[str]:
    """The users that containers may run as, the image's own first; with the second, files belong to the user."""
    tables = [Path(f"/proc/self/{kind}_map").read_text(encoding="ascii") for kind in ("uid", "gid")]
    mine = f"{outside(tables[0], os.geteuid())}:{outside(tables[1], os.getegid())}"
    return [""] if mine == "0:0" else ["", mine]


def outside(table: str, number: int) -> int:
    """A user's or group's number outside of the user namespace whose `uid_map` or `gid_map` is `table`."""
    for line in table.splitlines():
        inside, there, count = map(int, line.split())
        if inside <= number < inside + count:
            return there + number - inside
    return number


def _wrong(
    runner: DockerRunner, image: str, shown: Path, scripts: Sequence[Path]
) -> tuple[EngineError | None, list[str]]:
    """Run the probe's container: the error, if another user may avoid it, and the container's output."""
    word = secrets.token_hex(16)
    shown.mkdir()
    (shown / "asked").write_text(f"{word}\n", encoding="ascii")
    inside = [f"/seen/{number}" for number, _ in enumerate(scripts)]
    try:
        done = runner.run(
            image,
            ["/bin/sh", "-c", f"{SCRIPT}; {_RIGHTS}; {_SHOW}", "sh", "/probe", *inside],
            mounts=[Mount(shown, "/probe", read_only=False), *map(Mount, scripts, inside)],
            capture=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except EngineError as error:
        if any(str(path) in error.why for path in (shown, *scripts)):
            raise _unseen(runner, error.why) from error
        raise EngineError(
            "docker cannot run containers without network here",
            why=error.why,
            fix=f"mend it, and try again: toolchain doctor --runner docker; {_INSTEAD}",
        ) from error
    lines, last = done.stdout.splitlines(), "\n".join(done.tail[-3:])
    numbers = [number for line in lines if (number := answer(line)) is not None]
    if numbers != [0]:
        if not numbers:
            saw = f"the probe did not answer (exit code {done.returncode}): {last}"
        elif numbers[0] < 0:
            saw = "the network could not be looked at"
        else:
            saw = f"a container that was started with --network none sees {numbers[0]} interfaces besides lo"
        raise EngineError(
            "docker is refused: its containers are not cut off from the network",
            why=saw,
            fix=f"no check runs like that; mend what starts docker's containers, or {_INSTEAD}",
        )
    ours = [f"@line {line}" for path in scripts for line in path.read_text(encoding="utf-8").splitlines()]
    theirs = [line for line in lines if line.startswith("@line ")]
    word_read = f"@asked {word}" in lines
    if word_read and theirs != ours:
        raise _unseen(runner, f"{' or '.join(map(str, scripts))} is another file there")
    if not word_read:
        # Another user of the container may have the right to.
        return _unseen(runner, f"a word written to {shown} was not read in a container: {last}"), lines
    back = shown / "answer"
    if not back.is_file() or back.read_text(encoding="ascii") != f"{word}\n":
        return _unseen(runner, f"what a container wrote to {shown} did not arrive: {last}"), lines
    if back.stat().st_uid != os.geteuid():
        return EngineError(
            f"docker is refused: what its containers write here would not be {namespace.user_name()}'s",
            why=f"a file that a container wrote belongs to user {back.stat().st_uid}",
            fix=f"switch the daemon's remapping of users off, or run a rootless one; {_INSTEAD}",
        ), lines
    return None, lines


def _unseen(runner: DockerRunner, why: str) -> EngineError:
    where = f" at {runner.address}" if runner.address else ""
    return EngineError(
        f"docker is refused: its daemon{where} does not see the folders of this machine",
        why=why,
        fix=f"name a daemon of this machine (DOCKER_HOST, `docker context`), or let it share them; {_INSTEAD}",
    )
