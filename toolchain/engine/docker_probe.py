"""Prove that a docker daemon's containers have no network and see the folders of this machine.

A container of a tiny image counts its network interfaces. It prints some files of this machine and a word that this
process wrote to a folder, and writes the word back.
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
from toolchain.engine.isolation import SCRIPT, answer, tiny_root
from toolchain.engine.storage import remove_tree

_TIMEOUT = 120.0
_INSTEAD = "leave out --runner, so that buildah runs the containers"
# The first argument of this script is the folder with the word; the other arguments are files to print.
_SHOW = (
    'IFS= read -r word <"$1/asked"; echo "@asked $word"; echo "$word" >"$1/answer"; shift; for file in "$@"; do '
    'while IFS= read -r line; do printf \'@line %s\\n\' "$line"; done <"$file"; done'
)


def proved(cache: Cache, *, host: str | None = None, scripts: Sequence[Path] | None = None) -> DockerRunner:
    """Prove that the daemon's containers see the folders of this machine but no network, and return a runner.

    Args:
        host: the daemon's address; see `DockerRunner`.
        scripts: files whose content must be the same in a container as here; by default two files of the recipes.

    Raises:
        EngineError: docker or skopeo is missing, docker does not answer, or its containers do not run, see a network,
            do not see this machine's folders, or leave files there that belong to another user.
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
        for user in _users():
            runner.user = user
            refused = _refusal(runner, image, folder / f"seen-by-{user.partition(':')[0]}", scripts)
            if refused is None:
                break
    if refused is not None:
        raise refused
    runner.facts = {"program": PROGRAM, "version": version, "interfaces": 0}
    return runner


def describe(runner: DockerRunner) -> str:
    """Return one line that describes the daemon and the result of the probe."""
    where = f" at {runner.address}" if runner.address else ""
    who = f"; they run as {runner.user}" if runner.user else ""
    return (
        f"docker {runner.facts['version']}{where}: its containers see the folders of this machine, but no network "
        f"interface other than lo{who}"
    )


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
    """Return the values of `DockerRunner.user` to try: empty and, unless it is `0:0`, the caller's `UID:GID`.

    These are the caller's ids outside of its user namespace.
    """
    tables = [Path(f"/proc/self/{kind}_map").read_text(encoding="ascii") for kind in ("uid", "gid")]
    mine = f"{outside(tables[0], os.geteuid())}:{outside(tables[1], os.getegid())}"
    return [""] if mine == "0:0" else ["", mine]


def outside(table: str, number: int) -> int:
    """Return the id that `number` has outside of the user namespace whose `uid_map` or `gid_map` is `table`.

    An id that the table does not map is returned unchanged.
    """
    for line in table.splitlines():
        inside, there, count = map(int, line.split())
        if inside <= number < inside + count:
            return there + number - inside
    return number


def _refusal(runner: DockerRunner, image: str, shown: Path, scripts: Sequence[Path]) -> EngineError | None:
    """Run the probe's container, and return None if it passes all checks.

    An error that might not occur with another user is returned. Every other error is raised.
    """
    word = secrets.token_hex(16)
    shown.mkdir()
    (shown / "asked").write_text(f"{word}\n", encoding="ascii")
    inside = [f"/seen/{number}" for number, _ in enumerate(scripts)]
    try:
        done = runner.run(
            image,
            ["/bin/sh", "-c", f"{SCRIPT}; {_SHOW}", "sh", "/probe", *inside],
            mounts=[Mount(shown, "/probe", read_only=False), *map(Mount, scripts, inside)],
            capture=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except EngineError as error:
        if any(str(path) in error.why for path in (shown, *scripts)):
            raise _unseen(runner, error.why) from error
        raise EngineError(
            "docker-without-network-isolation",
            "docker cannot run a container without a network",
            why=error.why,
            fix=f"correct the cause, and run `toolchain doctor --runner docker`; or {_INSTEAD}",
        ) from error
    lines, last = done.stdout.splitlines(), "\n".join(done.tail[-3:])
    numbers = [number for line in lines if (number := answer(line)) is not None]
    if numbers != [0]:
        if not numbers:
            saw = f"the probe did not answer (exit code {done.returncode}): {last}"
        elif numbers[0] < 0:
            saw = "the container could not read its list of network interfaces"
        else:
            saw = f"a container that was started with --network none sees {numbers[0]} interfaces other than lo"
        raise EngineError(
            "docker-not-isolated",
            "docker is refused, because its containers may have a network",
            why=saw,
            fix=f"correct the configuration of docker, or {_INSTEAD}",
        )
    ours = [f"@line {line}" for path in scripts for line in path.read_text(encoding="utf-8").splitlines()]
    theirs = [line for line in lines if line.startswith("@line ")]
    word_read = f"@asked {word}" in lines
    if word_read and theirs != ours:
        raise _unseen(runner, f"in a container, {' or '.join(map(str, scripts))} has other content")
    if not word_read:
        # This error is returned, because a container that runs as another user may be able to read the word.
        return _unseen(runner, f"a container could not read a file that was written to {shown}: {last}")
    back = shown / "answer"
    if not back.is_file() or back.read_text(encoding="ascii") != f"{word}\n":
        return _unseen(runner, f"a file that a container wrote to {shown} did not arrive: {last}")
    if back.stat().st_uid != os.geteuid():
        return EngineError(
            "docker-remapped",
            f"docker is refused, because files from its containers would not belong to {namespace.user_name()}",
            why=f"a file that a container wrote belongs to user {back.stat().st_uid}",
            fix=f"turn off the daemon's remapping of users, or run a rootless daemon; or {_INSTEAD}",
        )
    return None


def _unseen(runner: DockerRunner, why: str) -> EngineError:
    where = f" at {runner.address}" if runner.address else ""
    return EngineError(
        "docker-other-machine",
        f"docker is refused, because its daemon{where} does not see the folders of this machine",
        why=why,
        fix=f"choose a daemon that sees them (DOCKER_HOST, `docker context`), or share them with it; or {_INSTEAD}",
    )
