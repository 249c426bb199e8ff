"""Tests of fetching the trees of commits, mostly from a local git repository."""

from __future__ import annotations

import http.server
import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.git_server import git
from tests.refusals import refused
from toolchain.core.errors import SourceError, ToolchainError, UnreachableError
from toolchain.sources import git as git_source
from toolchain.sources.git import fetch_git, git_digest
from toolchain.sources.part import Part
from toolchain.sources.store import Store


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "the 'origin'"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    (path / "llvm").mkdir()
    (path / "llvm" / "CMakeLists.txt").write_text("one\n")
    (path / "docs").mkdir()
    (path / "docs" / "left-out").write_text("d\n")
    (path / "run").write_text("#!/bin/sh\n")
    (path / "run").chmod(0o755)
    (path / "link").symlink_to("llvm/CMakeLists.txt")
    # The tree does not contain docs/, like an archive of a forge.
    (path / ".gitattributes").write_text("docs export-ignore\n")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "1")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "st ore")


@pytest.mark.parametrize("form", ["path", "file"])
def test_tree_of_a_commit_is_fetched(repository: Path, store: Store, form: str) -> None:
    sha = git(repository, "rev-parse", "HEAD")
    # The branch now has a newer commit, whose tree must not be fetched.
    (repository / "run").write_text("moved\n")
    git(repository, "commit", "-qam", "2")
    url = str(repository) if form == "path" else f"file://{repository}"
    tree = fetch_git(url, sha, store, offline=False)
    found = {path.relative_to(tree).as_posix() for path in tree.rglob("*")}
    assert found == {".gitattributes", "link", "llvm", "llvm/CMakeLists.txt", "run"}
    assert (tree / "run").read_text() == "#!/bin/sh\n"
    assert os.access(tree / "run", os.X_OK)
    assert (tree / "link").is_symlink()
    assert fetch_git(url, sha, store, offline=True) == tree
    assert not list(store.partial.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT: no repository of another user can be made")
def test_repository_of_another_user_is_accepted(repository: Path, store: Store) -> None:
    sha = git(repository, "rev-parse", "HEAD")
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    assert fetch_git(repository.as_uri(), sha, store, offline=False).is_dir()


def test_only_the_paths_of_a_part_are_fetched(repository: Path, store: Store) -> None:
    sha = git(repository, "rev-parse", "HEAD")
    tree = fetch_git(str(repository), sha, store, offline=False, part=Part(("llvm", "not-there")))
    assert [path.name for path in tree.iterdir()] == ["llvm"]
    with refused("commit-tree-empty"):
        fetch_git(str(repository), sha, store, offline=False, part=Part(("mlir",)))


def test_missing_commit_or_repository_is_refused(repository: Path, tmp_path: Path, store: Store) -> None:
    with refused("commit-not-found"):
        fetch_git(str(repository), "0123456789" * 4, store, offline=False)
    assert not [path for path in (store.root / "trees").iterdir() if path.is_dir()]
    with refused("repository-not-found"):
        fetch_git(str(tmp_path / "none"), "a" * 40, store, offline=False)


def test_unreachable_server_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with refused("repository-unreachable", "--mirror", "--source"):
        fetch_git("http://127.0.0.1:9/r", "a" * 40, store, offline=False)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (403, SourceError, "repository-refused"),
        (404, SourceError, "repository-not-found"),
        (500, UnreachableError, "repository-unreachable"),
    ],
)
def test_error_depends_on_the_http_status_of_the_server(
    store: Store, status: int, kind: type[ToolchainError], says: str
) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            return

        def do_GET(self) -> None:
            self.send_error(status)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with refused(says):
            fetch_git(f"http://127.0.0.1:{server.server_address[1]}/r.git", "a" * 40, store, offline=False)
        server.shutdown()


@pytest.mark.parametrize("sha", ["main", "a" * 39, "A" * 40, "--upload-pack=evil", "a" * 41])
def test_revision_that_is_not_a_full_commit_is_refused(repository: Path, store: Store, sha: str) -> None:
    with refused("not-a-commit"):
        fetch_git(str(repository), sha, store, offline=False)


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c evil",
        "git://example.test/r",
        "http://example.test/r",
        "--upload-pack=evil",
        "https://user:hunter2@example.test/r",
        "https://hunter2@example.test/r",
    ],
)
def test_unsafe_url_is_refused_without_showing_its_password(store: Store, url: str) -> None:
    with pytest.raises(SourceError) as caught:
        fetch_git(url, "a" * 40, store, offline=False)
    assert "hunter2" not in str(caught.value)


def test_link_that_leaves_the_tree_is_refused(repository: Path, store: Store) -> None:
    (repository / "out").symlink_to("../../etc/passwd")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "out")
    commit = git(repository, "rev-parse", "HEAD")
    with refused("link-escapes", commit):
        fetch_git(str(repository), commit, store, offline=False)


def test_submodules_are_not_fetched(repository: Path, store: Store, tmp_path: Path) -> None:
    (repository / ".gitmodules").write_text(f'[submodule "s"]\n path = s\n url = file://{tmp_path}/private\n')
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'b' * 40},s")
    git(repository, "add", ".gitmodules")
    git(repository, "commit", "-qm", "sub")
    tree = fetch_git(str(repository), git(repository, "rev-parse", "HEAD"), store, offline=False)
    assert not list((tree / "s").rglob("*"))


def test_tree_of_a_bundle_is_replaced_by_the_tree_of_the_repository(repository: Path, store: Store) -> None:
    """A tree cannot be compared with a commit, so the tree of a bundle is used only without the repository."""
    sha = git(repository, "rev-parse", "HEAD")

    def evil(dest: Path) -> None:
        (dest / "run").write_text("evil\n")

    store.tree(git_digest(str(repository), sha), evil, brought=True)
    assert (fetch_git(str(repository), sha, store, offline=True) / "run").read_text() == "evil\n"
    assert (fetch_git(str(repository), sha, store, offline=False) / "run").read_text() == "#!/bin/sh\n"
    assert (fetch_git(str(repository), sha, store, offline=True) / "run").read_text() == "#!/bin/sh\n"


def test_git_configuration_of_the_user_is_ignored(
    repository: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[url "{tmp_path}/elsewhere"]\n insteadOf = {repository}\n[core]\n autocrlf = true\n'
    )
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "attributes").write_text("* text eol=crlf\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    sha = git(repository, "rev-parse", "HEAD")
    tree = fetch_git(str(repository), sha, store, offline=False)
    assert (tree / "llvm" / "CMakeLists.txt").read_bytes() == b"one\n"


@pytest.mark.parametrize("kind", ["PGP SIGNATURE", "SIGNED MESSAGE"])
def test_commit_makes_no_program_of_the_user_verify_its_signature(
    repository: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    programs, started = tmp_path / "programs", tmp_path / "started"
    programs.mkdir()
    for name in ("gpg", "gpgsm"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {started}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (repository / ".gitattributes").write_text("run export-subst\n")
    (repository / "run").write_text("$Format:%G? %s$\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "subject")
    head, _, message = git(repository, "cat-file", "commit", "HEAD").partition("\n\n")
    signed = tmp_path / "signed"
    signed.write_text(f"{head}\ngpgsig -----BEGIN {kind}-----\n \n aaaa\n -----END {kind}-----\n\n{message}\n")
    sha = git(repository, "hash-object", "-t", "commit", "-w", str(signed))
    git(repository, "update-ref", "refs/heads/main", sha)
    tree = fetch_git(str(repository), sha, store, offline=False)
    assert (tree / "run").read_text() == "N subject\n"
    assert not started.exists()


@pytest.mark.parametrize("swapped", ["commit", "tree", "blob"])
def test_object_that_differs_from_its_git_id_is_refused(repository: Path, store: Store, swapped: str) -> None:
    """The repository has the bytes of another object under the name of an object."""
    sha = git(repository, "rev-parse", "HEAD")
    victim = git(repository, "rev-parse", {"commit": sha, "tree": f"{sha}^{{tree}}", "blob": f"{sha}:run"}[swapped])
    (repository / "run").write_text("evil\n")
    git(repository, "commit", "-qam", "evil")
    other = git(repository, "rev-parse", {"commit": "HEAD", "tree": "HEAD^{tree}", "blob": "HEAD:run"}[swapped])
    places = [repository / ".git" / "objects" / name[:2] / name[2:] for name in (victim, other)]
    content = places[1].read_bytes()
    places[0].unlink()
    places[0].write_bytes(content)
    with pytest.raises((SourceError, UnreachableError)):
        fetch_git(str(repository), sha, store, offline=False)
    assert not any(path.read_bytes() == b"evil\n" for path in store.root.rglob("run") if path.is_file())


@pytest.mark.parametrize("folders", [0, 3])
def test_tree_that_unpacks_to_too_much_is_refused_before_it_is_written(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    """Tree objects name the same file many times, so a small repository unpacks to any number of files."""
    path = tmp_path / "bomb"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    (path / "f0").write_bytes(b"\0" * 1000)
    git(path, "add", "-A")
    blob = git(path, "rev-parse", ":f0")
    rows = "".join(f"100644 blob {blob}\tf{n}\n" for n in range(10))
    tree = ""
    for _ in range(folders + 1):
        tree = subprocess.run(
            ["git", "-C", path, "mktree"], input=rows, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        rows = "".join(f"040000 tree {tree}\td{n}\n" for n in range(10))
    sha = git(path, "commit-tree", tree, "-m", "bomb")
    git(path, "update-ref", "refs/heads/main", sha)
    monkeypatch.setattr(git_source, "LIMIT_FILES" if folders else "LIMIT_BYTES", 9999)
    wrote = []
    monkeypatch.setattr(git_source, "unpack_tar", lambda *_args, **_how: wrote.append(1))
    with refused("archive-bomb", sha):
        fetch_git(str(path), sha, store, offline=False)
    assert not wrote
    assert not list(store.partial.iterdir())


def test_endless_pack_of_a_server_is_not_written(
    repository: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "run").write_bytes(os.urandom(1 << 20))
    git(repository, "commit", "-qam", "large")
    monkeypatch.setattr(git_source, "_LARGEST_FILE", 100_000)
    with refused("git-objects-refused"):
        fetch_git(str(repository), git(repository, "rev-parse", "HEAD"), store, offline=False)
    assert not list(store.partial.iterdir())
