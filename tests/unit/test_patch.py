"""Tests of patches, which are applied to a copy of a tree or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.errors import PatchError
from toolchain.sources.patch import _unquote, apply_patches, check_patch
from toolchain.sources.tree import tree_digest

GOOD = """A word about it.
--- a/sub/f
+++ b/sub/f
@@ -1 +1 @@
-old
+new
"""
NEW = """diff --git a/made here b/made here
new file mode 100755
--- /dev/null
+++ b/made here
@@ -0,0 +1 @@
+x
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "a tree"
    (top / "sub").mkdir(parents=True)
    (top / "sub" / "f").write_text("old\n")
    (tmp_path / "victim").write_text("old\n")
    return top


def patch(tmp_path: Path, text: str, name: str = "it's one.patch") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_patches_are_applied_to_a_copy(tmp_path: Path, tree: Path) -> None:
    before = tree_digest(tree)
    dest = tmp_path / "dest"
    apply_patches(tree, [patch(tmp_path, GOOD), patch(tmp_path, NEW, "2")], dest)
    assert (dest / "sub" / "f").read_text() == "new\n"
    assert (dest / "made here").stat().st_mode & 0o111
    assert tree_digest(tree) == before, "the source itself stays what it was"


def test_git_attributes_of_the_user_are_ignored(tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = tmp_path / "home" / ".config" / "git" / "attributes"
    attributes.parent.mkdir(parents=True)
    attributes.write_text("* text eol=crlf\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    apply_patches(tree, [patch(tmp_path, GOOD)], tmp_path / "dest")
    assert (tmp_path / "dest" / "sub" / "f").read_bytes() == b"new\n"


def test_git_repository_around_the_tree_is_ignored(tmp_path: Path, tree: Path) -> None:
    (tmp_path / ".git").mkdir()
    apply_patches(tree, [patch(tmp_path, GOOD)], tmp_path / "dest")
    assert (tmp_path / "dest" / "sub" / "f").read_text() == "new\n"


def test_patches_are_applied_in_the_given_order(tmp_path: Path, tree: Path) -> None:
    second = GOOD.replace("-old", "-new").replace("+new", "+newer")
    one, two = patch(tmp_path, GOOD, "1"), patch(tmp_path, second, "2")
    apply_patches(tree, [one, two], tmp_path / "dest")
    assert (tmp_path / "dest" / "sub" / "f").read_text() == "newer\n"
    with refused("patch-does-not-apply"):
        apply_patches(tree, [two, one], tmp_path / "dest2")


def header(name: str, other: str | None = None) -> str:
    return f"--- {name}\n+++ {other or name}\n@@ -1 +1 @@\n-old\n+new\n"


LEAVING = {
    "dot-dot": header("a/../victim", "b/../victim"),
    "dot-dot at the start": header("../victim"),
    "absolute": header("/etc/passwd"),
    "quoted": header('"a/\\056\\056/victim"'),
    "git folder": header("a/.git/config", "b/.git/config"),
    "rename": "diff --git a/sub/f b/../victim\nsimilarity index 100%\nrename from sub/f\nrename to ../victim\n",
    "copy": "diff --git a/sub/f b/sub/g\nsimilarity index 100%\ncopy from sub/f\ncopy to /tmp/toolchain-victim\n",
}
UNFIT = {
    "empty": "",
    "words": "nothing here is a patch\n",
    "other content": GOOD.replace("-old", "-older"),
    "other file": GOOD.replace("sub/f", "sub/g"),
    "cut": GOOD[:-5],
}
LINK = """diff --git a/l b/l
new file mode 120000
--- /dev/null
+++ b/l
@@ -0,0 +1 @@
+../..
\\ No newline at end of file
"""
THROUGH = """diff --git a/l/victim b/l/victim
--- a/l/victim
+++ b/l/victim
@@ -1 +1 @@
-old
+new
"""


@pytest.mark.parametrize("name", [*LEAVING, *UNFIT])
def test_patch_that_leaves_the_tree_or_does_not_apply_is_refused(tmp_path: Path, tree: Path, name: str) -> None:
    text = LEAVING.get(name) or UNFIT[name]
    with pytest.raises(PatchError) as caught:
        apply_patches(tree, [patch(tmp_path, text)], tmp_path / "dest")
    if name in LEAVING:
        assert caught.value.id == "patch-escapes"
    assert (tmp_path / "victim").read_text() == "old\n"


def test_missing_patch_is_refused(tmp_path: Path) -> None:
    with refused("patch-unreadable"):
        check_patch(tmp_path / "none")


def test_patch_that_adds_a_link_out_of_the_tree_is_refused(tmp_path: Path, tree: Path) -> None:
    with refused("patch-link-escapes"):
        apply_patches(tree, [patch(tmp_path, LINK)], tmp_path / "dest")


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("change", [THROUGH, NEW.replace("made here", "l/made")], ids=["change", "new file"])
def test_patch_that_writes_through_a_link_is_refused(tmp_path: Path, tree: Path, change: str, together: bool) -> None:
    """The link points to the folder above the tree. A new file needs no file at the place to which the link leads."""
    link = LINK.replace("../..", "..")
    texts = [link + change] if together else [link, change]
    with refused("patch-does-not-apply"):
        apply_patches(tree, [patch(tmp_path, text, f"{n}") for n, text in enumerate(texts)], tmp_path / "dest")
    assert (tmp_path / "victim").read_text() == "old\n"
    assert not (tmp_path / "made").exists()


def test_binary_patch_that_states_a_huge_size_is_refused(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git allocates the size that a binary patch states. A patch of three megabytes took three gigabytes."""
    monkeypatch.setattr("toolchain.sources.patch._MEMORY", 64 << 20)
    text = (
        "diff --git a/z b/z\nnew file mode 100644\n"
        f"index {'0' * 40}..{'1' * 40}\nGIT binary patch\nliteral {1 << 30}\nHcmV?d00001\n\nliteral 0\nHcmV?d00001\n\n"
    )
    with pytest.raises(PatchError) as caught:
        apply_patches(tree, [patch(tmp_path, text)], tmp_path / "dest")
    assert "memory" in caught.value.why
    assert not (tmp_path / "dest" / "z").exists()


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (rb'"a/x\ry"', "a/x\ry"),
        (rb'"a/x\\101"', "a/x\\101"),
        (rb'"a/\101\"b"', 'a/A"b'),
        (rb'"a/\303\274"', "a/ü"),
        (rb"a/\101", "a/\\101"),
    ],
)
def test_quoted_paths_are_decoded_as_git_does(raw: bytes, path: str) -> None:
    assert _unquote(raw) == path
