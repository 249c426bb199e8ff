"""An ordinary user, made for the test, builds from a clone in its home, and gets the same digests as root."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.escaping_llvm import escaping_llvm, require_nothing_left
from tests.hostile_llvm import hostile_llvm
from tests.integration.conftest import TOP, toolchain
from tests.other_user import read_by_another

pytestmark = [pytest.mark.engine, pytest.mark.beside]
# The name is of this process alone, because concurrent runs must not delete each other's users.
NAME = f"toolchain-test-{os.getpid()}"
PYTHON = "/usr/bin/python3"
_PASSED = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "http", "HTTP")


@dataclass(frozen=True)
class User:
    """A user with a home and subordinate ids, and the tool installed in a clone there."""

    home: Path

    @property
    def source(self) -> Path:
        """Return the folder of the clone."""
        return self.home / "a clone"

    def command(self, *words: str | Path) -> list[str]:
        """Return a command line that this user runs, with this process's settings of pip, certificates and proxies."""
        env = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_PASSED)]
        return ["runuser", "-u", NAME, "--", "env", "-i", f"HOME={self.home}", "PATH=/usr/bin:/bin:/usr/sbin:/sbin",
                "LANG=C.UTF-8", *env, *map(str, words)]  # fmt: skip

    def run(self, *words: str | Path, code: int = 0) -> str:
        """Run a command in the clone, and return its output."""
        done = subprocess.run(self.command(*words), cwd=self.source, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    def tool(self, *words: str | Path, code: int = 0) -> str:
        """Run the tool in the clone, and return its output."""
        return self.run(self.source / ".venv/bin/toolchain", *words, code=code)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Make a user by useradd, and delete the user with all its files afterwards."""
    if os.geteuid() != 0:
        pytest.skip("NO USER IS MADE: that needs root")
    for program in ("useradd", "runuser", "newuidmap", PYTHON):
        if shutil.which(program) is None:
            pytest.skip(f"NOBODY BUILDS WITHOUT ROOT HERE: {program} is missing")
    _remove()
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", NAME], check=True)
    try:
        who = pwd.getpwnam(NAME)
        made = User(Path(who.pw_dir))
        left_out = shutil.ignore_patterns(".venv", ".git", "out", "__pycache__", ".*_cache")
        shutil.copytree(TOP, made.source, symlinks=True, ignore=left_out)
        subprocess.run(["chown", "-R", f"{NAME}:", made.source], check=True)
        made.run(PYTHON, "-m", "venv", ".venv")
        pip = (".venv/bin/pip", "install", "--quiet", "--disable-pip-version-check")
        made.run(*pip, "--no-deps", "--require-hashes", "-r", "requirements/run.lock")
        made.run(*pip, "--no-deps", "--no-build-isolation", "-e", ".")
        yield made
    finally:
        _remove()


def _remove() -> None:
    """End the user's processes, and delete the user."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.owner() == NAME:
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, KeyError):
            continue
    try:
        home = Path(pwd.getpwnam(NAME).pw_dir)
    except KeyError:
        return
    # The home also contains files of the subordinate ids.
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run(["userdel", "--remove", NAME], capture_output=True, check=False)


def test_a_user_s_layer_has_root_s_digest(user: User) -> None:
    """The layer is that of a project of one program."""
    tree = hostile_llvm(user.home / "a tree", says=f"built by two {os.getpid()}")
    words = ["--source", f"llvm={tree}", "--only", "mlir-tblgen", "--base", "debian13"]
    subprocess.run(["chown", "-R", f"{NAME}:", tree], check=True)
    wanted = toolchain("build", "llvm", *words, "--json")
    assert wanted.code == 0, wanted.err
    bundle = user.home / "a bundle"
    brought = toolchain("bundle", "export", f"oci:{bundle}:llvm", "llvm", *words)
    assert brought.code == 0, brought.err
    subprocess.run(["chown", "-R", f"{NAME}:", bundle], check=True)
    # The bundle's lock gets another name, because the clone has a lock of its own.
    user.tool("bundle", "import", f"oci:{bundle}:llvm", "--lock-file", user.home / "of the bundle.lock")
    shutil.rmtree(bundle)
    built = user.tool("build", "llvm", *words, "--offline")
    (row,) = [row for row in wanted.json["stages"] if row["name"] == "llvm"]
    assert row["manifest"] in built, built[-3000:]
    assert json.loads(user.tool("cache", "ls", "--json"))["bytes"] > 0
    user.tool("cache", "prune", "--unused-for", "1")


def test_hostile_source_gets_no_file_of_the_user(user: User) -> None:
    """The build uses the base of the bundle that the test above imported."""
    owned = user.home / "owned"
    secret = f"the user's own words {os.getpid()}"
    user.home.chmod(0o755)
    escaping_llvm(user.home / "hostile", secret=user.home / "secret", owned=owned)
    (user.home / "hostile" / "llvm" / "private.c").write_text(secret)
    (user.home / "hostile").chmod(0o700)
    subprocess.run(["chown", "-R", f"{NAME}:", user.home / "hostile", user.home / "secret"], check=True)
    words = ("--source", f"llvm={user.home}/hostile", "--only", "mlir-tblgen", "--base", "debian13", "--no-contract")
    require_nothing_left(user.tool("build", "llvm", *words), owned)
    cache = user.home / ".cache" / "toolchain"
    assert [path.name for path in cache.glob("store/trees/*/llvm/private.c")] == ["private.c"]
    assert read_by_another(secret, user.home, Path("/run"), Path("/tmp")) == []


def test_fork_bomb_in_a_user_s_build_is_ended(user: User) -> None:
    forks = "i=0; while [ $i -lt 600 ]; do sleep 600 & i=$((i+1)); done; wait"
    hostile_llvm(user.home / "bomb", probe=forks, says="bomb")
    subprocess.run(["chown", "-R", f"{NAME}:", user.home / "bomb"], check=True)
    tool = ("env", "TOOLCHAIN_LIMITS=processes=200", user.source / ".venv/bin/toolchain")
    words = ("--source", f"llvm={user.home}/bomb", "--only", "mlir-tblgen", "--base", "debian13", "--no-contract")
    assert "the limit processes" in user.run(*tool, "build", "llvm", *words, code=26)
