"""Tests of the user namespace in which an ordinary user works with containers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.cli.verbs import all_verbs
from toolchain.core import process
from toolchain.core.process import contained
from toolchain.engine import namespace
from toolchain.engine.namespace import ENOUGH, INSIDE, enter, require, subordinate_ids
from toolchain.engine.resources import ulimits


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Simulate an ordinary user with everything that a namespace needs."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.delenv(INSIDE, raising=False)
    monkeypatch.setattr(namespace, "user_name", lambda: "somebody")
    monkeypatch.setattr(process, "which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(namespace, "subordinate_ids", lambda *_: ENOUGH)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("somebody:100000:65536\n", 65536),
        ("4711:100000:65536\n", 65536),
        ("other:100000:65536\n", 0),
        ("somebody:100000:1000\nsomebody:300000:70000\n", 1000),
        ("somebody:100000\nsomebody:1:x\nsomebody:1:²\n\0\n", 0),
    ],
)
def test_subordinate_ids_are_those_of_the_first_range(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "subuid").write_text(text)
    assert subordinate_ids(tmp_path / "subuid", "somebody", 4711) == count


@pytest.mark.parametrize(("count", "told"), [(0, "no"), (1000, "1000")])
def test_error_for_too_few_ids_gives_the_usermod_command(user: pytest.MonkeyPatch, count: int, told: str) -> None:
    user.setattr(namespace, "subordinate_ids", lambda *_: count)
    with refused("subordinate-ids-missing", told) as caught:
        require()
    assert "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 somebody" in caught.value.fix


def test_missing_newuidmap_is_reported(user: pytest.MonkeyPatch) -> None:
    user.undo()
    user.setenv("PATH", "/nonexistent")
    with refused("program-missing") as caught:
        require()
    assert caught.value.what == "newuidmap is not installed"
    assert "uidmap" in caught.value.fix


def test_enter_restarts_the_process_with_its_arguments_and_user_id(user: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, list[str], dict[str, str]]] = []
    user.setattr(namespace, "_UNSHARE", ("true",))
    user.setattr(os, "execve", lambda *words: called.append(words))
    user.setattr(sys, "orig_argv", ["python3", "scripts/one.py", "a b", "--json"])
    enter()
    ((program, words, env),) = called
    assert program == "/usr/bin/true"
    assert words[-5:] == [sys.executable, "-P", "scripts/one.py", "a b", "--json"]
    assert env[INSIDE] == "4711"
    called.clear()
    user.setenv(INSIDE, "4711")
    enter()
    assert not called, "it is there already"


def test_restarted_process_ignores_the_current_folder_and_python_variables(
    user: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The test runs the command of `enter` in a folder with modules that have names of imported modules."""
    called: list[tuple[str, list[str], dict[str, str]]] = []
    user.setattr(namespace, "_UNSHARE", ("true",))
    user.setattr(os, "execve", lambda *words: called.append(words))
    user.setattr(sys, "orig_argv", ["python3", "-m", "toolchain", "--version"])
    ran = tmp_path / "ran"
    for name in ("toolchain.py", "json.py", "typer.py", "sitecustomize.py", "usercustomize.py"):
        (tmp_path / name).write_text(f"open({str(ran)!r}, 'w').close()\n")
    user.setenv("PYTHONPATH", str(tmp_path))
    user.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    user.setenv("PYTHONUSERBASE", str(tmp_path))
    user.setenv("PATH", f":.:{os.environ['PATH']}")
    enter()
    ((_, words, env),) = called
    done = subprocess.run(words[words.index("--") + 1 :], env=env, cwd=tmp_path, check=True, capture_output=True)
    assert done.stdout.strip()
    assert not ran.exists()
    assert all(folder.startswith("/") for folder in env["PATH"].split(":"))


def test_root_does_not_enter_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("root was sent into a namespace"))
    enter()


def test_verbs_that_use_containers_are_marked() -> None:
    assert {verb.name for verb in all_verbs() if verb.engine} == {
        "build",
        "reproduce",
        "kernels run",
        "kernels merge",
        "kernels worker",
        "cache prune",
        "shell",
        "kernels cached",
    }


def test_ulimits_of_a_container_do_not_exceed_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: 20000}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, limits.get(kind, resource.RLIM_INFINITY)))
    assert ulimits({}) == ["--ulimit", "nofile=20000:20000"]
    limits[resource.RLIMIT_NOFILE] = 1 << 20
    assert ulimits({}) == []
    assert ulimits({"nproc": 5000}) == ["--ulimit", "nproc=5000:5000"]
    limits[resource.RLIMIT_NPROC] = 4000
    assert ulimits({"nproc": 5000}) == ["--ulimit", "nproc=4000:4000"]


def test_contained_process_has_a_fixed_host_name() -> None:
    """The name is set even if /proc/sys cannot be written, as in a user namespace."""
    if subprocess.run(["unshare", "--uts", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("NOT CHECKED: this user gets no namespace")
    words = contained(["hostname"], network=False)
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "toolchain\n"
    (script,) = [word for word in words if "hostname toolchain" in word]
    blind = script.replace("/proc/sys/kernel/hostname", "/nonexistent/hostname")
    words = [blind if word == script else word for word in words]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "toolchain\n"
