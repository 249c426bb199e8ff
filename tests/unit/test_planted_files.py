"""Links, pipes and devices in place of files that verbs read or write: no private file is shown or changed."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lock_fixtures import lock
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.cli.config_file import read_config
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, ResourceError
from toolchain.kernels.result_name import FORMAT
from toolchain.kernels.result_store import KernelStore
from toolchain.pipeline import lockfile
from toolchain.trust.keys import new_key

SECRET = b"jobs = 4 # root:$6$secret\n"
NAME = "ab" + "0" * 62
PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, secret: path.symlink_to(secret),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "socket": lambda path, _: bound(path),
}


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file in another folder that only its owner may read."""
    path = tmp_path / "private" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which stands for a folder that other users can write to."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    return folder


def untouched(secret: Path) -> bool:
    return (secret.read_bytes(), stat.S_IMODE(secret.lstat().st_mode)) == (SECRET, 0o600)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", PLANTED)
def test_planted_toolchain_toml_is_refused_without_showing_its_content(here: Path, secret: Path, kind: str) -> None:
    PLANTED[kind](here / "toolchain.toml", secret)
    with refused("config-unreadable") as error:
        read_config(None)
    assert "secret" not in str(error.value).replace(str(secret), "")
    done = CliRunner().invoke(app, ["plan", "base"])
    assert done.exit_code == 3
    assert "$6$" not in done.output


# Locks


LOCK = lock()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", PLANTED)
def test_planted_lock_is_refused(here: Path, secret: Path, kind: str) -> None:
    PLANTED[kind](here / "toolchain.lock", secret)
    with refused("lock-unreadable"):
        lockfile.read(here / "toolchain.lock")
    if kind != "pipe":
        with pytest.raises(ConfigError) as caught:
            lockfile.write(LOCK, here / "toolchain.lock")
        assert caught.value.id in {"output-unwritable", "output-is-link"}
    assert untouched(secret)


def test_lock_written_through_link_in_same_folder_keeps_the_link(here: Path) -> None:
    (here / "toolchain.lock").symlink_to("real.lock")
    lockfile.write(LOCK, here / "toolchain.lock")
    assert (here / "toolchain.lock").is_symlink()
    assert lockfile.read(here / "toolchain.lock") == LOCK


# Keys


def test_new_key_does_not_follow_a_planted_link(here: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link appears between the check and the write."""
    real = os.link

    def planted(source: Path, target: Path, **how: bool) -> None:
        Path(target).symlink_to(secret)
        real(source, target, **how)

    monkeypatch.setattr("os.link", planted)
    with refused("output-unwritable"):
        new_key(here / "key")
    assert untouched(secret)
    assert [path.name for path in here.iterdir()] == ["key"]
    assert (here / "key").is_symlink()


# Kernel stores


def add(store: KernelStore) -> None:
    store.add(NAME, b"record")


@pytest.mark.parametrize("name", ["kernel-store.json", f"results/ab/{NAME[2:]}", "results", "results/ab"])
def test_kernel_store_does_not_write_through_planted_links(here: Path, secret: Path, name: str) -> None:
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    folder = name.startswith("results") and name.count("/") < 2
    (here / name).symlink_to(secret.parent if folder else secret)
    if name != "kernel-store.json":
        (here / "kernel-store.json").write_bytes(canonical({"format": FORMAT}))
    with contextlib.suppress(ConfigError, ResourceError):
        add(KernelStore(here))
    assert untouched(secret)
    assert [path.name for path in secret.parent.rglob("*")] == [secret.name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", PLANTED)
def test_planted_kernel_record_is_not_read(here: Path, secret: Path, kind: str) -> None:
    store = KernelStore(here)
    add(store)
    path = here / "results" / NAME[:2] / NAME[2:]
    path.unlink()
    PLANTED[kind](path, secret)
    assert list(store.fetch([NAME])) == [(NAME, None)]
    add(store)
    assert untouched(secret)
