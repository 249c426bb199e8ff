"""Real things that several tests share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.registry_fixtures import running_registry

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def registry_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a docker-registry on loopback."""
    with running_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@dataclass(frozen=True)
class Said:
    """What a call of the tool left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as data."""
        return json.loads(self.out)


def toolchain(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Said:
    """Run the tool as a user does, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "toolchain", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Quickstart:
    """A finished ./quickstart: what it printed and the layout it published to."""

    said: Said
    out: Path
    options: tuple[str, ...] = ("--source", "llvm=distro:llvm-toolchain-22", "--only", "tablegen")
    gpus: tuple[str, ...] = ("--gpu", "gfx942,gfx1100")
    allow: tuple[str, ...] = ("--allow-binary", "triton-wheel")


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """`./quickstart`, run once for all tests that need what it makes. Its cache is the user's own."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: ./quickstart installs packages and makes a base from apt's mirrors")
    out = tmp_path_factory.mktemp("published") / 'oci out "quoted"'
    venv = str(Path(sys.executable).parent.parent)
    done = subprocess.run(
        [str(TOP / "quickstart")],
        capture_output=True,
        text=True,
        env={**os.environ, "QUICKSTART_OUT": str(out), "TOOLCHAIN_VENV": venv},
        check=False,
    )
    said = Said(done.returncode, done.stdout, done.stderr)
    assert said.code == 0, f"./quickstart failed:\n{said.err[-6000:]}"
    return Quickstart(said, out)
