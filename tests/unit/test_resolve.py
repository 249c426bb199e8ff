"""Resolution of a source specification to a source, and to its tree in the store."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.core import digest
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file, sha256_json
from toolchain.core.errors import DigestError, SourceError
from toolchain.pipeline.fetching import patches_as_they_are
from toolchain.request import model as request_module
from toolchain.request.model import Request
from toolchain.sources import distro, pypi, resolve
from toolchain.sources.distro import known_packages
from toolchain.sources.pypi import PypiFile, known_files
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store
from toolchain.sources.suites import Package
from toolchain.sources.tree import tree_digest
from toolchain.stages.llvm_choice import llvm_pin
from toolchain.stages.triton_origin import from_source
from toolchain.stages.triton_wheel import wheel_source

SHA = "0123456789abcdef0123456789abcdef01234567"
HEX = hashlib.sha256(b"").hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "the 'cache'")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "my llvm"
    (top / "mlir").mkdir(parents=True)
    (top / "mlir" / "CMakeLists.txt").write_text("old\n")
    (top / "docs").mkdir()
    (top / "docs" / "x").write_text("x")
    (top / ".git").mkdir()
    (top / ".git" / "HEAD").write_text("x")
    return top


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        f"https://example.test/r@{SHA[:-1]}",
        "https://example.test/a.tar#sha256=12",
        f"https://user:pass@example.test/r@{SHA}",
        "distro:../x",
        f"https://user:pass@[abc@{SHA}",
        "distro:a=$(id)",
        "pypi:a==1;b",
    ],
)
def test_invalid_source_spec_is_refused_without_its_password(text: str) -> None:
    with pytest.raises((SourceError, DigestError)) as caught:
        parse_source_spec(text)
    assert "pass@" not in str(caught.value)


def test_locate_needs_no_network(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    git = locate("llvm", parse_source_spec(f"https://example.test/r@{SHA}"), cache=cache)
    assert git.digest == f"git:{SHA}@https://example.test/r"
    assert git.ref == SHA
    assert git.locked
    distro = locate("llvm", parse_source_spec("distro:llvm-toolchain-22"), cache=cache)
    assert distro.as_plan() == {
        "name": "llvm",
        "ref": "distro:llvm-toolchain-22=22.1.8",
        "repository": "debian",
        "digest": "sha256:b49b9277aef97616320b2da259e1f8174c65b0ce2fbe2e8629644a97693402fe",
    }
    assert distro.locked
    unknown = locate("llvm", parse_source_spec("distro:llvm-toolchain-15"), cache=cache)
    assert unknown.digest is None
    assert not unknown.locked
    wheel = locate("triton", parse_source_spec("pypi:triton"), cache=cache)
    assert wheel.ref == "pypi:triton==3.7.1"
    assert wheel.digest is not None
    with refused("wheel-digest-unknown"):
        locate("x", parse_source_spec("pypi:triton==1.0"), cache=cache)
    assert not cache.root.exists()


def test_known_files_have_complete_rows() -> None:
    rows: list[Package | PypiFile] = [*known_packages(), *known_files()]
    for row in rows:
        assert len(row.sha256) == 64
        assert row.size > 0
        assert row.version in row.file
        assert row.license
        # A released suite keeps its files; the other suites delete a file when a newer version replaces it.
        kept = isinstance(row, PypiFile) or not {"main", "security", "sid"}.issuperset(row.suites)
        assert row.mirrors or kept, f"{row.file}: no second address"
        assert all(url.startswith("https://") for url in row.mirrors)
    for row in known_files():
        assert all(
            re.fullmatch(
                rf"https://[a-z.]+/packages/[0-9a-f]{{2}}/[0-9a-f]{{2}}/[0-9a-f]{{60}}/{re.escape(row.file)}", url
            )
            for url in row.mirrors
        )


def test_local_wheel_must_match_a_wheel_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "triton-9-cp313-cp313-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    request = request_module.Request(cache=Cache(tmp_path / "cache"), sources=specs({"triton": str(wheel)}))
    assert not from_source(request), "a wheel is not a source tree"
    with refused("not-a-wheel-of-index"):
        wheel_source(request)
    row = dataclasses.replace(known_files()[1], sha256=hashlib.sha256(b"wheel").hexdigest())
    for module in (pypi, resolve):
        monkeypatch.setattr(module, "known_files", lambda: (row,))
    named = wheel_source(dataclasses.replace(request, sources=specs({"triton": f"pypi:{row.version}"})))
    assert dataclasses.replace(wheel_source(request), path=None) == named
    assert llvm_pin(request) == llvm_pin(dataclasses.replace(request, sources=specs({"triton": "pypi:triton"})))


def test_local_checkout_is_copied_to_the_store(checkout: Path, cache: Cache) -> None:
    source = locate("thing", parse_source_spec(str(checkout)), cache=cache)
    assert source.kind == "local"
    assert not source.locked
    assert source.digest == tree_digest(checkout)
    assert str(checkout.parent) not in str(source.as_plan()), "records hold no path of this machine"
    got = fetch_source(source, cache=cache, offline=True)
    assert got.path is not None
    assert got.path.is_relative_to(cache.store)
    assert tree_digest(got.path) == source.digest
    assert not (got.path / ".git").exists()
    assert (got.path / "docs" / "x").stat().st_mtime == digest.EPOCH
    # A later edit makes another source, and the old snapshot is kept.
    (checkout / "docs" / "x").write_text("y")
    again = fetch_source(locate("thing", parse_source_spec(str(checkout)), cache=cache), cache=cache, offline=True)
    assert again.path != got.path
    assert (got.path / "docs" / "x").read_text() == "x"


def test_edit_between_plan_and_fetch_is_refused(checkout: Path, cache: Cache) -> None:
    source = locate("thing", parse_source_spec(str(checkout)), cache=cache)
    (checkout / "docs" / "x").write_text("y")
    with refused("source-changed"):
        fetch_source(source, cache=cache, offline=True)


@pytest.mark.parametrize("name", ["thing", "llvm"])
def test_folder_replaced_by_a_link_while_it_is_copied_is_not_stored(
    name: str, tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other user who owns the checkout restores it before it is read again. Of LLVM, only a part is copied."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    inner, away = tree / "llvm/lib/sub", tmp_path / "away"
    for folder in (inner, outside):
        folder.mkdir(parents=True)
        (folder / "key").write_text(folder.name)
    (tree / "other").write_text("x")

    def copy(source: Path, dest: Path) -> None:
        inner.rename(away)
        inner.symlink_to(outside)
        subprocess.run(["cp", "-rL", "--no-target-directory", source, dest], check=True)
        inner.unlink()
        away.rename(inner)

    source = locate(name, parse_source_spec(str(tree)), cache=cache)
    with monkeypatch.context() as racing:
        racing.setattr(resolve, "copy_tree", copy)
        with refused("source-changed"):
            fetch_source(source, cache=cache, offline=True)
    assert not list(cache.store.rglob("key"))
    assert (fetch_source(source, cache=cache, offline=True).path / "llvm/lib/sub/key").read_text() == "sub"


def test_local_archive_is_unpacked_and_local_file_is_copied(tmp_path: Path, checkout: Path, cache: Cache) -> None:
    archive = tmp_path / "a b.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(checkout, "top")
    got = fetch_source(locate("thing", parse_source_spec(str(archive)), cache=cache), cache=cache, offline=True)
    assert got.path is not None
    assert (got.path / "mlir" / "CMakeLists.txt").read_text() == "old\n"
    assert archive.exists()
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"w")
    got = fetch_source(locate("thing", parse_source_spec(str(wheel)), cache=cache), cache=cache, offline=True)
    assert got.path is not None
    assert got.path.name == wheel.name
    assert got.path.is_relative_to(cache.store)


def test_linked_local_file_is_copied(tmp_path: Path, cache: Cache) -> None:
    """The store keeps a copy, not the link: the user's file keeps its mode, and a stored link is replaced."""
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"w")
    wheel.chmod(0o600)
    for target in (wheel, Path(wheel.name)):
        link = tmp_path / "latest.whl"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        other = Cache(cache.root / target.name / str(target.is_absolute()))
        source = locate("thing", parse_source_spec(str(link)), cache=other)
        got = fetch_source(source, cache=other, offline=True)
        assert got.path is not None
        assert not got.path.is_symlink()
        assert wheel.stat().st_mode & 0o777 == 0o600
        got.path.unlink()
        got.path.symlink_to(wheel)
        assert Store(other.store).file(str(source.digest)) is None, "a link counts as nothing"
        assert fetch_source(source, cache=other, offline=True).path == got.path
        assert not got.path.is_symlink()


def test_local_file_changed_after_plan_is_refused(tmp_path: Path, cache: Cache) -> None:
    """The error must not say that the file was removed, because the user's file still exists."""
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"PK\x03\x04")
    source = locate("thing", parse_source_spec(str(wheel)), cache=cache)
    wheel.write_bytes(b"PK\x03\x04 and more")
    with refused("source-changed"):
        fetch_source(source, cache=cache, offline=True)
    assert wheel.exists()


def test_checkout_with_link_to_the_outside_is_refused(checkout: Path, cache: Cache) -> None:
    """A virtual environment contains such links. The message names the user's folder, not its copy."""
    (checkout / "python").symlink_to("/usr/bin/python3")
    with refused("link-escapes", checkout):
        fetch_source(locate("thing", parse_source_spec(str(checkout)), cache=cache), cache=cache, offline=True)
    assert not list((cache.store / "trees").iterdir())


def test_misspelt_suite_is_refused_without_a_fetch(cache: Cache) -> None:
    def suite(name: str) -> str:
        return locate("llvm", parse_source_spec(f"distro:llvm-toolchain-22@{name}", project="llvm"), cache=cache).suite

    with refused("unknown-suite") as refusal:
        suite("trixi")
    assert "distro:llvm-toolchain-22@trixie" in refusal.value.fix
    for name in ("trixie", "trixie-backports", "unstable", "jammy", "buster-security"):
        assert suite(name) == name


def test_package_row_of_a_bundle_is_checked_against_the_index(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle's row is used offline; online, the signed index of the distribution must confirm it once."""
    store = Store(cache.store)
    store.partial.mkdir(parents=True)
    (store.partial / "x_1.orig.tar.xz").write_bytes(b"evil")
    digest = sha256_file(store.partial / "x_1.orig.tar.xz")
    store.add_file(store.partial / "x_1.orig.tar.xz", digest)
    row = Package(
        name="xy", version="1", file="x_1.orig.tar.xz", sha256=digest.removeprefix("sha256:"), size=4, brought=True
    )
    distro.note(row, cache)
    source = locate("thing", parse_source_spec("distro:xy=1"), cache=cache)
    assert source.digest == digest
    assert distro.fetch_distro(source, store, cache=cache, offline=True)[0] == source
    asked = []

    def first(
        _suites: object, package: str, version: str, expected: str, _store: Store, *, bound: bool
    ) -> tuple[Package, Path]:
        assert not bound, "what a bundle said is no reason to take an old index"
        asked.append((package, version, expected))
        return dataclasses.replace(row, brought=False), Path("there")

    monkeypatch.setattr(distro, "_suites", lambda *_: [])
    monkeypatch.setattr(distro, "_first", first)
    distro.fetch_distro(source, store, cache=cache, offline=False)
    distro.fetch_distro(source, store, cache=cache, offline=False)
    assert asked == [("xy", "1", digest)], "once it agreed it counts"
    with refused("not-a-package"):
        distro.note(dataclasses.replace(row, name="../../evil"), cache)


def test_package_noted_by_earlier_fetch_is_located(cache: Cache) -> None:
    """Each noted version is known. Without a version, the last note is used, unless the spec names another suite."""
    for version, suite in (("1", "trixie"), ("2", "sid")):
        row = Package(
            name="xy", version=version, file=f"xy_{version}.orig.tar.xz", sha256=version * 64, size=4, suites=(suite,)
        )
        distro.note(row, cache)

    def known(text: str) -> tuple[str, str | None]:
        source = locate("thing", parse_source_spec(text), cache=cache)
        return source.version, source.digest

    assert known("distro:xy") == ("2", "sha256:" + "2" * 64)
    assert known("distro:xy=1") == ("1", "sha256:" + "1" * 64)
    assert known("distro:xy@sid") == ("2", "sha256:" + "2" * 64)
    assert known("distro:xy@trixie") == ("", None), "only its index knows what that suite has"
    for note in (cache.store / "distro").iterdir():
        note.write_text(note.read_text().replace('version = "2"', "version = 2"))
    assert known("distro:xy") == ("", None), "a damaged note is none"


def test_patch_is_applied_to_a_copy_of_the_source(tmp_path: Path, checkout: Path, cache: Cache) -> None:
    patch = tmp_path / "p"
    patch.write_text("--- a/mlir/CMakeLists.txt\n+++ b/mlir/CMakeLists.txt\n@@ -1 +1 @@\n-old\n+new\n")
    source = locate("thing", parse_source_spec(str(checkout)), cache=cache)
    plain = fetch_source(source, cache=cache, offline=True)
    got = fetch_source(source, cache=cache, offline=True, patches=[patch])
    assert got.path is not None
    assert plain.path is not None
    assert (got.path / "mlir" / "CMakeLists.txt").read_text() == "new\n"
    assert (plain.path / "mlir" / "CMakeLists.txt").read_text() == "old\n"
    assert got.digest == plain.digest, "patches count apart"


def test_patch_changed_during_fetch_is_refused(
    tmp_path: Path, checkout: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the stored tree would have the digest of the earlier patch, and later builds would use it."""
    text = "--- a/mlir/CMakeLists.txt\n+++ b/mlir/CMakeLists.txt\n@@ -1 +1 @@\n-old\n+new\n"
    patch = tmp_path / "p"
    patch.write_text(text)
    source = locate("thing", parse_source_spec(str(checkout)), cache=cache)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(resolve, "_keep", lambda *_: None)

        def edited(what: object) -> str:
            patch.write_text(text.replace("+new", "+evil"))
            return sha256_json(what)

        meanwhile.setattr(resolve, "sha256_json", edited)
        with refused("source-changed"):
            fetch_source(source, cache=cache, offline=True, patches=[patch])
    patch.write_text(text)
    got = fetch_source(source, cache=cache, offline=True, patches=[patch])
    assert (got.path / "mlir" / "CMakeLists.txt").read_text() == "new\n"


def test_a_build_reads_its_patches_once(tmp_path: Path, cache: Cache) -> None:
    patches = tuple(tmp_path / name / "same name.patch" for name in "ab")
    for patch in patches:
        patch.parent.mkdir()
        patch.write_text(f"{patch}")
    with patches_as_they_are(Request(cache=cache, patches={"llvm": patches})) as kept:
        for patch in patches:
            patch.write_text("edited during the build")
        assert [path.read_text() for path in kept.patches["llvm"]] == [f"{patch}" for patch in patches]
        assert [path.name for path in kept.patches["llvm"]] == ["same name.patch"] * 2
    assert list(cache.work.iterdir()) == []
    with patches_as_they_are(request := Request(cache=cache)) as same:
        assert same is request


def test_missing_source_is_refused_offline(cache: Cache) -> None:
    for text in (
        f"https://example.test/r@{SHA}",
        f"https://example.test/a.tar#sha256={HEX}",
        "distro:llvm-toolchain-22",
        "pypi:triton",
    ):
        with refused("offline-missing"):
            fetch_source(locate("x", parse_source_spec(text), cache=cache), cache=cache, offline=True)


def test_stored_files_are_checked_before_use(tmp_path: Path, checkout: Path, cache: Cache) -> None:
    """A corrupt distribution tarball in the store is not unpacked."""
    archive = tmp_path / "llvm-toolchain-9_9.orig.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(checkout, "top")
    digest = sha256_file(archive)
    store = Store(cache.store)
    stored = store.add_file(archive, digest)
    source = dataclasses.replace(
        locate("thing", parse_source_spec("distro:llvm-toolchain-22"), cache=cache), digest=digest
    )
    assert fetch_source(source, cache=cache, offline=True).path is not None
    with stored.open("ab") as stream:
        stream.write(b"\0")
    with refused("offline-missing"):
        fetch_source(source, cache=cache, offline=True)
