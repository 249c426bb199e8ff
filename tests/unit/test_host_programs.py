"""Tests of programs that run on the host: how Python is started, and which variables each program gets."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolchain.core import environment, process
from toolchain.engine import docker
from toolchain.oci import credential_helper
from toolchain.sources import pip, suites
from toolchain.sources.mirrors import Mirror
from toolchain.stages import triton_tree

TOP = Path(__file__).resolve().parents[2]
FOLDERS = ("toolchain", "lab/src", "scripts", "lab/scripts")
SHELL = ("quickstart", "test", "action.yml", "scripts/*.sh", ".github/workflows/*.yml", "examples/**/*.yml")

AGAIN = {"toolchain/engine/namespace.py"}
"""The one exception to `-I`: the tool starts itself again, without the current folder and Python's variables."""
CONTAINED = {
    "lab/src/toolchain_lab/numbers/contained.py": "in namespaces of its own: see engine/view.py",
    "toolchain/cli/cached_cmd.py": "in a container of the image",
    "toolchain/stages/": "in a container of the stage",
}
"""Where a Python is started that is not of the host."""
STARTERS = {
    "toolchain/core/process.py": {"subprocess"},
    "toolchain/engine/launcher.py": {"exec"},
    "toolchain/engine/namespace.py": {"exec"},
}
"""Modules of the tool that may start programs by themselves; all others call core/process.py."""
KINDS = {
    "subprocess": r"subprocess\.(run|Popen|call|check_call|check_output|getoutput|getstatusoutput)",
    "exec": r"os\.(exec\w+|spawn\w+|posix_spawnp?|system|popen)|pty\.spawn",
}
SEARCHING = {"toolchain/core/process.py", "lab/src/toolchain_lab/emulator/disassembly.py"}
"""Modules that search `PATH` themselves, without its relative entries."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((TOP / folder).rglob("*.py")):
            yield path.relative_to(TOP).as_posix(), parsed(path)


def is_python(word: ast.expr, after: ast.expr | None) -> bool:
    """Return whether a word of a command line names a Python; `python` without an option after it is a stage."""
    if isinstance(word, ast.Constant):
        option = isinstance(after, ast.Constant) and str(after.value).startswith("-")
        named = re.fullmatch(r"(.*/)?python(3(\.\d+)?)?", str(word.value))
        return named is not None and after is not None and (word.value != "python" or option)
    whole = ast.List | ast.Tuple | ast.Dict | ast.JoinedStr | ast.Starred
    return not isinstance(word, whole) and "sys.executable" in ast.unparse(word)


def called(node: ast.Call) -> str:
    """Return the last part of the name of the called function; empty if the function has no name."""
    return str(getattr(node.func, "attr", "") or getattr(node.func, "id", ""))


def starts(tree: ast.Module) -> Iterator[tuple[int, list[ast.expr]]]:
    """Yield the line of each command line that names a Python, and its words from the Python on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            words = list(node.elts)
        elif isinstance(node, ast.Call) and re.match(r"(exec|spawn)[lv]", called(node)):
            words = list(node.args)
        else:
            continue
        for at, (word, after) in enumerate(itertools.zip_longest(words, words[1:])):
            if is_python(word, after):
                yield node.lineno, words[at:]


def isolated(words: list[ast.expr]) -> bool:
    return len(words) > 1 and isinstance(words[1], ast.Constant) and words[1].value == "-I"


def broken(name: str, tree: ast.Module) -> list[str]:
    return [f"{name}:{line}" for line, words in starts(tree) if not isolated(words)]


def test_every_python_of_the_host_is_isolated() -> None:
    found = [line for name, tree in modules(*FOLDERS) for line in broken(name, tree)]
    outside = [line for line in found if not line.startswith((*AGAIN, *CONTAINED))]
    assert not outside, "start these by core.process.python, or in a container"
    assert all(any(line.startswith(name) for line in found) for name in (*AGAIN, *CONTAINED)), (
        "an exception is not used"
    )


def test_only_listed_modules_start_programs() -> None:
    """All other modules use core/process.py, which gives every program a neutral folder and a clean environment."""
    for name, tree in modules("toolchain", "lab/src"):
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        used = {kind for kind, pattern in KINDS.items() if any(re.fullmatch(pattern, call) for call in called)}
        assert used <= STARTERS.get(name, set()), name
        assert "shutil.which" not in called or name in SEARCHING, f"{name}: use core.process.find"
        spawned = any(call.startswith("multiprocessing.") and "context" in call for call in called)
        assert not spawned or "python_children" in called, f"{name}: start the processes in python_children"


def test_no_script_starts_python_in_the_current_folder() -> None:
    """`-c`, `-m` and standard input put the current folder first in the module path."""
    start = re.compile(r"""python3?["']?\s+(-c|-m|-)(?=\s)(?!\s+(scripts\.|venv|pip\s+install\s+--no-))""")
    for pattern in SHELL:
        for path in sorted(TOP.glob(pattern)):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                assert not start.search(line), f"{path.relative_to(TOP)}:{number}: add -I"


HOSTILE = dict.fromkeys(
    (
        "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PERL5LIB",
        "PERL5OPT", "BASH_ENV", "ENV", "GIT_DIR", "GIT_EXEC_PATH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF",
        "TAR_OPTIONS", "APT_CONFIG", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "BUILDAH_ISOLATION",
        "CCACHE_CONFIGPATH", "XDG_CONFIG_HOME", "GCONV_PATH", "DPKG_ROOT", "OPENSSL_CONF", "DEBUGINFOD_URLS",
    ),
    "/evil",
)  # fmt: skip


def test_program_gets_only_listed_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**HOSTILE, "SECRET": "x", "TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    done = process.run(["env"], capture=True)
    got = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert got <= {"PATH", *environment.INHERITED, *environment.FIXED}
    assert "TMPDIR" in got


def test_programs_start_in_a_neutral_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("content")
    assert process.run(["pwd"], capture=True).stdout == "/\n"
    assert process.run(["cat", Path("a")], capture=True).stdout == "content"
    with process.output(["pwd"]) as stream:
        assert stream.read() == b"/\n"
    with process.piped(["pwd"]) as child:
        assert child.stdout is not None
        assert child.stdout.read() == "/\n"


def test_processes_that_an_ended_child_left_running_are_killed() -> None:
    with process.piped(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]) as child:
        assert child.stdout is not None
        left = int(child.stdout.read())
        assert Path(f"/proc/{left}").exists()
    end = time.monotonic() + 120
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while "State:\tZ" not in Path(f"/proc/{left}/status").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.parametrize("entry", ["", ".", "bin", "./bin", "../here/bin"])
def test_relative_entries_of_path_are_not_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str) -> None:
    """The test covers a program that the tool starts, and a program that such a program starts."""
    here = tmp_path / "here"
    for folder in (here, here / "bin"):
        folder.mkdir()
        for name in ("git", "uname"):
            (folder / name).write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
            (folder / name).chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{entry}:{os.environ['PATH']}")
    assert Path(process.which("git")).is_absolute()
    process.run(["git", "--version"])
    process.run(["sh", "-c", "uname"], cwd=here)
    assert not (tmp_path / "ran").exists()


def test_docker_gets_only_listed_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """python-on-whales passes all variables to its client."""
    client = tmp_path / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(f"#!/bin/sh\nenv > {tmp_path}/got; pwd >> {tmp_path}/got; exit 1\n")
    client.chmod(0o755)
    for name, value in {**HOSTILE, "SECRET": "x", "DOCKER_HOST": "unix:///nowhere"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    docker.DockerRunner().forget_image("localhost/toolchain/x")
    got = (tmp_path / "got").read_text().splitlines()
    assert "DOCKER_HOST=unix:///nowhere" in got
    allowed = {"PATH", "PWD", "_", "SHLVL", "OLDPWD", *environment.INHERITED, *environment.FIXED}
    assert {line.partition("=")[0] for line in got[:-1]} <= {*allowed, *docker.VARIABLES, *docker.FILES}
    assert got[-1] == "/"


def test_credential_helper_gets_no_hostile_or_secret_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    helper = tmp_path / "bin" / "docker-credential-test"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\nenv > {tmp_path}/got; exit 1\n")
    helper.chmod(0o755)
    for name, value in {**HOSTILE, "SECRET": "x", "AWS_PROFILE": "p", "GNUPGHOME": "/g"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    assert credential_helper.ask_helper("test", "reg.example") is None
    got = {line.partition("=")[0] for line in (tmp_path / "got").read_text().splitlines()}
    assert {"AWS_PROFILE", "GNUPGHOME"} <= got
    assert not got & (set(HOSTILE) - set(credential_helper.FILES) | {"SECRET"})


@pytest.mark.parametrize("name", ["../bin/evil", "/bin/evil", "", ".."])
def test_path_as_the_name_of_a_credential_helper_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    evil = tmp_path / "docker-credential-.." / "bin" / "evil"
    for path in (evil, tmp_path / "bin" / "evil", tmp_path / "docker-credential-" / "bin" / "evil"):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert credential_helper.ask_helper(name, "reg.example") is None
    assert not (tmp_path / "ran").exists()


def test_multiprocessing_imports_no_module_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, ran = tmp_path / "here", tmp_path / "ran"
    here.mkdir()
    for name in ("multiprocessing.py", "sitecustomize.py", "json.py"):
        (here / name).write_text(f"open({str(ran)!r}, 'w').close()\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, os\n"
        "from toolchain.core.environment import python_children\n"
        "if __name__ == '__main__':\n"
        "    with python_children({'A': 'b'}), multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(os.getenv, ('A',)))\n"
        "    print('A' in os.environ, os.environ['PYTHONDONTWRITEBYTECODE'])\n"
    )
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, program], cwd=here, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["b", "False", "1"]
    assert not ran.exists()


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="APT IS NOT INSTALLED: its hooks are NOT tested")
def test_apt_runs_no_hooks_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")
    machine = tmp_path / "apt.conf"
    machine.write_text("".join(f'APT::Update::{name} {{ "touch {tmp_path}/{name}"; }};\n' for name in names))
    monkeypatch.setattr(suites, "network_environment", lambda: {"APT_CONFIG": str(machine)})
    mirror = Mirror(site="http://127.0.0.1:9/", suite="trixie", components=("main",), keyring="")
    lines = suites.Suite(tmp_path / "cache", mirror)._run("apt-config", "dump").splitlines()
    assert 'Dir::Etc::sourcelist "/dev/null";' in lines
    assert not [line for line in lines if line.startswith("APT::Update::P") and "Invoke" in line and "::" in line[13:]]


@pytest.mark.skipif(
    shutil.which("git") is None, reason="GIT IS NOT INSTALLED: what it runs in a checkout is NOT tested"
)
@pytest.mark.parametrize("url", ["ext::sh -c touch% {ran}", "{tree}"])
def test_missing_object_of_a_partial_clone_is_not_fetched(tmp_path: Path, url: str) -> None:
    """In a partial clone, git would fetch a missing object from the remote that the checkout's configuration names."""
    tree, ran = tmp_path / "tree", tmp_path / "ran"

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", tree, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    tree.mkdir()
    git("init", "-q")
    (tree / "file").touch()
    git("add", "-A")
    git("-c", "user.name=t", "-c", "user.email=t@example.test", "commit", "-qm", "1")
    head, top = git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")
    for name, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", url.format(ran=ran, tree=tree)),
        ("remote.origin.uploadpack", f"touch {ran};"),
        ("protocol.allow", "always"),
    ):
        git("config", name, value)
    (tree / ".git" / "objects" / top[:2] / top[2:]).unlink()
    assert triton_tree.head_of(tree) == head
    assert not triton_tree.gitlink_of(tree, "file")
    assert not ran.exists()
    subprocess.run(["git", "-C", tree, "ls-tree", "HEAD"], capture_output=True, check=False)
    assert ran.exists(), "git itself runs it"


def test_every_variable_is_documented() -> None:
    page = (TOP / "docs" / "isolation.md").read_text(encoding="utf-8")
    tables = (
        environment.INHERITED, environment.NETWORK_FILES, pip.KEPT, pip.KEPT_FILES, docker.VARIABLES, docker.FILES,
        credential_helper.VARIABLES, credential_helper.FILES, credential_helper.PREFIXES,
    )  # fmt: skip
    missing = sorted({name for table in tables for name in table if f"`{name}" not in page})
    assert not missing
