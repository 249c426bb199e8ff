"""Tests of sources.edits and stages.triton_edits: how edit files are applied, chosen and refused."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from tests.small_llvm import small_llvm
from toolchain.cli.build_options import make_request
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, PatchError
from toolchain.pipeline.fetching import Prefetch
from toolchain.request.model import Request
from toolchain.sources import edits as edits_module
from toolchain.sources.edits import apply_edits, read_edits, shipped
from toolchain.sources.patch import apply_patches, check_patch, copy_tree
from toolchain.sources.resolve import part_of
from toolchain.sources.store import Store
from toolchain.stages.triton_edits import check_edits, llvm_release, with_edits

FILE = "lib/code.cpp"
TEXT = "one\ntwo\nthree\nfour\n"
HEAD = 'source = "triton"\ncommit = "{commit}"\nllvm = "22.1"\n'


def row(first: int, last: int, text: str, *, file: str = FILE, of: str = TEXT) -> str:
    digest = hashlib.sha256(of.encode()).hexdigest()
    return (
        f'[[edit]]\nfile = "{file}"\nsha256 = "{digest}"\nfirst = {first}\nlast = {last}\n'
        f'text = {text!r}\nwhy = "w"\n'.replace("text = '", 'text = "').replace("'\nwhy", '"\nwhy')
    )


def edit_file(path: Path, *rows: str, commit: str = "c" * 40) -> Path:
    path.write_text(HEAD.format(commit=commit) + "".join(rows))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree/lib").mkdir(parents=True)
    (tmp_path / "tree" / FILE).write_text(TEXT)
    return tmp_path / "tree"


def test_lines_are_replaced_regardless_of_the_order_of_the_rows(tree: Path, tmp_path: Path) -> None:
    path = edit_file(tmp_path / "e.toml", row(5, 4, "end\n"), row(2, 3, "new\nnewer\n"), row(1, 0, "top\n"))
    apply_edits(read_edits(path), tree)
    assert (tree / FILE).read_text() == "top\none\nnew\nnewer\nfour\nend\n"


def test_edit_file_is_applied_like_a_patch_to_a_copy_of_the_source(tree: Path, tmp_path: Path) -> None:
    path = edit_file(tmp_path / "e.toml", row(2, 2, ""))
    patch = tmp_path / "then.patch"
    patch.write_text(f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,3 +1,3 @@\n-one\n+1\n three\n four\n")
    apply_patches(tree, [path, patch], tmp_path / "dest")
    assert (tmp_path / "dest" / FILE).read_text() == "1\nthree\nfour\n"
    assert (tree / FILE).read_text() == TEXT


def test_file_with_another_digest_is_refused_before_any_file_is_edited(tree: Path, tmp_path: Path) -> None:
    (tree / "other").write_text("x\n")
    path = edit_file(tmp_path / "e.toml", row(1, 1, "y\n", file="other", of="x\n"), row(1, 1, "1\n"))
    (tree / FILE).write_text(TEXT + "mine\n")
    with refused("edit-tree-mismatch"):
        apply_edits(read_edits(path), tree)
    assert (tree / "other").read_text() == "x\n"
    (tree / FILE).unlink()
    with refused("edit-tree-mismatch"):
        apply_edits(read_edits(path), tree)


def test_a_link_is_not_written_through(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(TEXT)
    (tree / FILE).unlink()
    (tree / FILE).symlink_to(tmp_path / "outside")
    with pytest.raises(PatchError):
        apply_edits(read_edits(edit_file(tmp_path / "e.toml", row(1, 1, "1\n"))), tree)
    assert (tmp_path / "outside").read_text() == TEXT


def test_a_linked_folder_is_not_written_through(tree: Path, tmp_path: Path) -> None:
    (tree / "lib").rename(tmp_path / "outside")
    (tree / "lib").symlink_to(tmp_path / "outside")
    with refused("edit-tree-mismatch"):
        apply_edits(read_edits(edit_file(tmp_path / "e.toml", row(1, 1, "1\n"))), tree)
    assert (tmp_path / "outside" / "code.cpp").read_text() == TEXT


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, 1, "x\n", file="../out")],
        [row(1, 1, "x\n", file="/etc/passwd")],
        [row(1, 1, "x\n"), row(2, 2, "y\n", file=f"./{FILE}")],
        [row(1, 1, "x\n", file=".git/config")],
        [row(0, 0, "x\n")],
        [row(3, 1, "x\n")],
        [row(1, 1, "no newline")],
        [row(1, 2, "x\n"), row(2, 3, "y\n")],
        [row(2, 1, "x\n"), row(2, 1, "y\n")],
        [],
    ],
)
def test_edit_file_with_invalid_rows_is_refused(rows: list[str], tmp_path: Path) -> None:
    with pytest.raises(PatchError):
        read_edits(edit_file(tmp_path / "e.toml", *rows))


def test_file_that_is_not_an_edit_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    for text in ("", "not toml", 'source = "triton"\n', '[[edit]]\nfile = "x"\n'):
        path.write_text(text)
        with pytest.raises(PatchError):
            check_patch(path)
    path.write_text(HEAD.format(commit="c" * 40) + row(1, 1, "x\n") + 'more = "x"\n')
    with pytest.raises(ConfigError):
        check_patch(path)


def test_lines_after_the_end_of_the_file_are_refused(tree: Path, tmp_path: Path) -> None:
    for lines in ((5, 5), (6, 5)):
        with refused("edit-line-missing"):
            apply_edits(read_edits(edit_file(tmp_path / "e.toml", row(*lines, "x\n"))), tree)


def test_shipped_edit_files_are_named_after_source_commit_and_llvm(tmp_path: Path) -> None:
    for edits in shipped():
        assert edits.path.name == f"{edits.source}-{edits.commit[:12]}-llvm-{edits.llvm}.toml"
        assert all(len(edit.sha256) == 64 and edit.why for edit in edits.edits)
    commit = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
    request = make_request(cache=tmp_path, target="triton", triton=commit, source=["llvm=distro:llvm-toolchain-22"])
    assert [path.name for path in request.patches["triton"]] == ["triton-d8da7c998c75-llvm-22.1.toml"]


@pytest.fixture
def repository(tree: Path) -> Callable[..., str]:
    def commit() -> str:
        git = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    return commit


def ship(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(edits_module, "shipped", lambda: (read_edits(path),))
    monkeypatch.setattr("toolchain.stages.triton_edits.shipped", lambda: (read_edits(path),))


def asked(tmp_path: Path, **sources: str) -> Request:
    return Request(cache=Cache(tmp_path / "cache"), sources=specs(sources))


def taken(request: Request, target: str = "triton") -> list[str]:
    return [path.name for path in with_edits(request, target).get("triton", ())]


def test_edits_apply_to_a_checkout_at_the_commit_only_on_their_llvm(
    tree: Path, tmp_path: Path, repository: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository()
    ship(monkeypatch, edit_file(tmp_path / "e.toml", row(1, 1, "1\n"), commit=head))
    request = asked(tmp_path, triton=str(tree), llvm="distro:llvm-toolchain-22")
    assert taken(request) == taken(request, "aotriton") == ["e.toml"]
    assert taken(request, "llvm") == []
    assert taken(asked(tmp_path, triton=str(tree), llvm="distro:llvm-toolchain-21")) == []
    assert taken(asked(tmp_path, triton=str(tree))) == []
    mine = replace(request, patches={"triton": (tmp_path / "mine.patch",)})
    assert taken(mine) == ["e.toml", "mine.patch"]
    brought = replace(request, patches={"triton": (tmp_path / "bundle/e.toml",)})
    assert with_edits(brought, "triton")["triton"] == (tmp_path / "bundle/e.toml",)


def test_checkout_at_the_commit_with_a_changed_file_is_refused(
    tree: Path, tmp_path: Path, repository: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository()
    ship(monkeypatch, edit_file(tmp_path / "e.toml", row(1, 1, "1\n"), commit=head))
    request = asked(tmp_path, triton=str(tree), llvm="distro:llvm-toolchain-22")
    (tree / FILE).write_text(TEXT + "mine\n")
    with refused("edit-tree-mismatch"):
        with_edits(request, "triton")
    repository()
    assert taken(request) == []


def test_edits_apply_to_a_folder_without_commit_if_the_digests_match(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(monkeypatch, edit_file(tmp_path / "e.toml", row(1, 1, "1\n")))
    request = asked(tmp_path, triton=str(tree), llvm="distro:llvm-toolchain-22=22.1.8")
    assert taken(request) == ["e.toml"]
    (tree / FILE).write_text("another Triton's\n")
    assert taken(request) == []


def test_edits_apply_to_a_commit_that_is_not_fetched_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, edit_file(tmp_path / "e.toml", row(1, 1, "1\n")))
    llvm = asked(tmp_path, llvm="distro:llvm-toolchain-22")
    assert taken(replace(llvm, triton="c" * 40)) == ["e.toml"]
    assert taken(replace(llvm, triton="d" * 40)) == []
    assert taken(replace(llvm, triton="3.0.0")) == []


def test_plan_is_outdated_if_the_fetched_llvm_needs_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the edits, the compilation of Triton fails after hours."""
    ship(monkeypatch, edit_file(tmp_path / "e.toml", row(1, 1, "1\n")))
    llvm = f"https://github.com/llvm/llvm-project@{'1' * 40}"
    request = replace(asked(tmp_path, llvm=llvm), triton="c" * 40)
    check_edits(request)
    digest = str(request.locate("llvm", request.sources["llvm"]).digest)
    part = part_of("llvm").name
    Store(request.cache.store).tree(digest, lambda folder: copy_tree(small_llvm(tmp_path / "llvm"), folder), part=part)
    with refused("plan-outdated") as refusal:
        check_edits(request)
    assert "e.toml" in refusal.value.why
    check_edits(replace(request, patches=with_edits(request, "triton")))

    def prefetched(*names: str) -> Prefetch:
        prefetch = Prefetch(request, [request.locate(name, specs({name: llvm})[name]) for name in names])
        prefetch.wait("llvm")
        return prefetch

    monkeypatch.setattr("toolchain.pipeline.fetching.fetch_for", lambda *_, **__: None)
    with refused("plan-outdated"):  # while LLVM is built
        prefetched("llvm", "triton").check()
    prefetched("llvm").check()


@pytest.mark.parametrize("file", ["cmake/Modules/LLVMVersion.cmake", "llvm/CMakeLists.txt"])
def test_llvm_version_is_read_from_either_cmake_file(tmp_path: Path, file: str) -> None:
    path = tmp_path / "llvm-project" / file
    path.parent.mkdir(parents=True)
    numbers = {"MAJOR": 22, "MINOR": 1, "PATCH": 8}
    path.write_text("".join(f"  set(LLVM_VERSION_{part} {number})\n" for part, number in numbers.items()))
    request = asked(tmp_path, llvm=str(tmp_path / "llvm-project"))
    assert llvm_release(request.sources["llvm"], request) == "22.1.8"
    path.write_text("set(LLVM_VERSION_MAJOR 22)\n")
    assert llvm_release(request.sources["llvm"], request) == ""
