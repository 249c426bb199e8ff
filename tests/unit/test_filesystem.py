"""Tests that the tool does not follow, wait for or overwrite what other users put into a shared folder."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.places import publish
from tests.refusals import refused
from tests.registry_fixtures import small_index
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.core.digest import sha256_bytes, write_atomically
from toolchain.core.errors import HostileInputError, RegistryError
from toolchain.core.filesystem import NewFile, copy_built, open_regular, read_built, read_regular
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.layer import HashedFile
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef
from toolchain.stages.aotriton import assemble
from toolchain.stages.aotriton_library import library_facts

SECRET = b"a secret of somebody\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Create a file outside the shared folder that only its owner may read."""
    path = tmp_path / "private" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


def untouched(secret: Path) -> bool:
    return (secret.read_bytes(), stat.S_IMODE(secret.lstat().st_mode)) == (SECRET, 0o600)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


NOT_REGULAR: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, secret: path.symlink_to(secret),
    "link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path, _: path.symlink_to("nowhere"),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: _socket(path),
    "folder": lambda path, _: path.mkdir(),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", NOT_REGULAR)
@pytest.mark.parametrize("within", [True, False])
def test_only_regular_files_are_read(
    tmp_path: Path, secret: Path, kind: str, within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.chdir(shared)
    NOT_REGULAR[kind](shared / "file", secret)
    with pytest.raises(OSError) as error:  # noqa: PT011 - every OSError is correct
        read_regular(shared / "file", 1000, within=shared if within else None)
    assert error.value.strerror


def test_link_inside_the_folder_is_followed_only_if_allowed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    assert read_regular(tmp_path / "link", 1, within=tmp_path) == b"x"
    with pytest.raises(OSError, match="link"):
        open_regular(tmp_path / "link")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="4"):
        read_regular(tmp_path / "file", 4)


def _hashed(path: Path, content: bytes) -> None:
    with HashedFile(path) as sink:
        sink.write(content)


@pytest.mark.parametrize("write", [write_atomically, _hashed])
def test_a_link_under_the_final_name_is_replaced(
    tmp_path: Path, secret: Path, write: Callable[[Path, bytes], None]
) -> None:
    (tmp_path / "file").symlink_to(secret)
    write(tmp_path / "file", b"new")
    assert untouched(secret)
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_planted_partial_is_not_written_to(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test assumes that an attacker has guessed the name."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    for target in (secret, tmp_path / "nothing yet"):
        planted = tmp_path / ".file.guessed.partial"
        planted.symlink_to(target)
        with pytest.raises(FileExistsError):
            write_atomically(tmp_path / "file", b"new")
        planted.unlink()
    assert untouched(secret)
    assert not (tmp_path / "nothing yet").exists()


def test_partial_files_have_unguessable_names_and_are_private(tmp_path: Path) -> None:
    with NewFile(tmp_path / "f"), NewFile(tmp_path / "f"):
        names = {path.name for path in tmp_path.iterdir()}
        assert len(names) == 2
        assert not any(str(os.getpid()) == part for name in names for part in name.split("."))
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert list(tmp_path.iterdir()) == []


def test_file_with_the_longest_possible_name_is_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("é" * 127), b"x")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"x"]


@pytest.mark.parametrize("kind", ["other bytes", "link", "gone"])
def test_replacement_of_a_written_file_is_detected(
    tmp_path: Path, secret: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "file"
    real = Path.replace

    def swapped(self: Path, target: Path) -> Path:
        real(self, target)
        there.unlink()
        if kind == "other bytes":
            there.write_bytes(b"old")
        elif kind == "link":
            (tmp_path / "copy").write_bytes(b"new")
            there.symlink_to("copy")
        return target

    monkeypatch.setattr(Path, "replace", swapped)
    with refused("written-file-changed"):
        write_atomically(there, b"new", check=True)
    write_atomically(there, b"new")  # without `check`, the replacement is not detected


def plant(folder: Path, target: Path) -> None:
    """Create links at the paths of the partial files of earlier versions, whose names contained the process id."""
    names = {f".{'0' * 16}.{pid}.partial" for pid in range(os.getpid() - 5, os.getpid() + 5)}
    names |= {f".index.json.{os.getpid()}-{threading.get_ident()}.partial"}
    for name in names:
        (folder / name).symlink_to(target)


def test_publish_does_not_follow_links(tmp_path: Path, secret: Path) -> None:
    """The links are at the paths of the blobs, and of the partial files of earlier versions."""
    made = Layout(tmp_path / "made").ensure()
    index = small_index(made, tmp_path, size=1000)
    there = tmp_path / "there"
    blobs = there / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for item in made.walk(index):
        (blobs / item.digest.removeprefix("sha256:")).symlink_to(secret)
    plant(blobs, secret)
    plant(there, secret)
    publish(made, index, LayoutRef(there, "x"))
    assert untouched(secret)
    assert verify_layout(Layout(there), index) == []
    assert not any(blobs.joinpath(item.digest[7:]).is_symlink() for item in made.walk(index))


@pytest.mark.parametrize("name", ["blobs", "blobs/sha256", ".index.lock", "index.json", "oci-layout"])
def test_publishing_into_a_folder_with_a_link_that_leads_out_is_refused(
    tmp_path: Path, secret: Path, name: str
) -> None:
    made = Layout(tmp_path / "made").ensure()
    index = small_index(made, tmp_path, size=1000)
    there = tmp_path / "there"
    (there / name).parent.mkdir(parents=True)
    target = secret.parent if name.startswith("blobs") else secret
    (there / name).symlink_to(target)
    with pytest.raises(RegistryError):
        publish(made, index, LayoutRef(there, "x"))
    assert untouched(secret)
    assert [path.name for path in secret.parent.iterdir()] == [secret.name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_blob_that_is_not_a_regular_file_is_missing(
    tmp_path: Path, secret: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / "layout").ensure()
    digest = sha256_bytes(SECRET)
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    monkeypatch.chdir(blobs)
    NOT_REGULAR[kind](blobs / digest.removeprefix("sha256:"), secret)
    assert not layout.has(digest)
    assert not layout.holds(digest)
    with pytest.raises(RegistryError):
        layout.verify(digest)
    if kind != "folder":
        layout.put_bytes(SECRET, media.CONFIG)
        assert layout.holds(digest)
        assert untouched(secret)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "kind"), [*(("index.json", kind) for kind in NOT_REGULAR), ("oci-layout", "link"), ("oci-layout", "pipe")]
)
def test_layout_file_that_is_not_regular_is_refused(
    tmp_path: Path, secret: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / "layout").ensure()
    monkeypatch.chdir(layout.root)
    (layout.root / name).unlink()
    NOT_REGULAR[kind](layout.root / name, secret)
    with pytest.raises(RegistryError) as error:
        layout.refs()
    assert "secret of somebody" not in str(error.value)


# The sources decide which files a build leaves, so the tool must not trust these files.


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_build_output_that_is_not_a_regular_file_is_refused(
    tmp_path: Path, secret: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "built"
    built.mkdir()
    monkeypatch.chdir(built)
    NOT_REGULAR[kind](built / "said", secret)
    with pytest.raises(HostileInputError) as error:
        read_built(built, "said")
    assert "a secret of somebody" not in str(error.value)
    with pytest.raises(HostileInputError):
        copy_built(built, "said", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_build_output_is_read_and_copied_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"x")
    (tmp_path / "program").chmod(0o700)
    (tmp_path / "link").symlink_to("program")
    assert read_built(tmp_path, "link") == "x"
    copy_built(tmp_path, "link", tmp_path / "copy")
    assert ((tmp_path / "copy").read_bytes(), stat.S_IMODE((tmp_path / "copy").stat().st_mode)) == (b"x", 0o755)
    with refused("build-not-copied"):
        copy_built(tmp_path, "link", Path("/dev/full"))


def test_facts_of_a_build_contain_no_file_outside_the_build(tmp_path: Path, secret: Path) -> None:
    """The facts are recorded and published."""
    built = tmp_path / "built"
    built.mkdir()
    (built / "redirected.json").write_text("{}")
    (built / "hip-version").write_text("7.1\n")
    assert library_facts(built)["hip"] == "7.1"
    for text in ("{", "[]", '{"a": NaN}'):
        (built / "redirected.json").write_text(text)
        with refused("build-left-unreadable"):
            library_facts(built)
    (built / "redirected.json").write_text("{}")
    (built / "hip-version").unlink()
    (built / "hip-version").symlink_to(secret)
    with pytest.raises(HostileInputError):
        library_facts(built)


def test_library_refuses_links_in_the_place_of_its_folders(tmp_path: Path, secret: Path) -> None:
    """Upstream's installation may contain a link in the place of the folder for kernel images."""
    installed, build = tmp_path / "installed", tmp_path / "build"
    (installed / "usr/lib").mkdir(parents=True)
    (installed / "usr/lib/aotriton.images").symlink_to(secret.parent)
    (build / "amd-gfx942").mkdir(parents=True)
    (build / "amd-gfx942" / "__signature__").write_text("x")
    made = SimpleNamespace(packs=["amd-gfx942"], folder=build, archives=(), result=None, partial=False)
    with refused("aotriton-library-link"):
        assemble(tmp_path / "tree", "/usr", installed, made, gpus=["gfx942"], of=generation_of("0.13b"))  # type: ignore[arg-type]
    (secret.parent / "lib").mkdir()
    (installed / "usr/rocm6").symlink_to(secret.parent)
    with refused("aotriton-library-link"):
        assemble(tmp_path / "tree", "/usr", installed, made, gpus=["gfx942"], of=generation_of("0.13b"))  # type: ignore[arg-type]
    (secret.parent / "lib").rmdir()
    assert [path.name for path in secret.parent.iterdir()] == [secret.name]
