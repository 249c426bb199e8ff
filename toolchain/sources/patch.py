"""Check patches, and apply them to a copy of a source tree."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from toolchain.core import process
from toolchain.core.digest import sha256_file
from toolchain.core.errors import HostileInputError, PatchError, SourceError
from toolchain.core.process import CommandError
from toolchain.sources.edits import SUFFIX as EDITS
from toolchain.sources.edits import apply_edits, read_edits
from toolchain.sources.tree import check_links

_LIMIT = 64 << 20
# git's address space is limited to this many bytes, because a small binary patch may unpack to gigabytes.
_MEMORY = 2 << 30


def listed(patches: Sequence[Path]) -> list[dict[str, str]]:
    """Return the `name` and the `digest` of each patch file, in the form that plans and records contain."""
    return [{"name": patch.name, "digest": sha256_file(patch)} for patch in patches]


def copy_tree(source: Path, dest: Path) -> None:
    """Copy a file or tree with its times and links, as a reflink if the file system supports that."""
    try:
        process.run(["cp", "-a", "--reflink=auto", "--no-target-directory", "--", source, dest])
    except CommandError as error:
        raise SourceError(
            "source-not-copied",
            f"cannot copy {source}",
            why=error.why,
            fix="check the free space and the permissions of the cache folder",
        ) from error


def apply_patches(tree: Path, patches: Sequence[Path], dest: Path) -> None:
    """Copy `tree` to `dest`, which must be missing or empty, and apply the patches to the copy in the given order.

    Edit files (`sources.edits`) are applied by this tool, and other patches by `git apply`.
    """
    for patch in patches:
        check_patch(patch)
    copy_tree(tree, dest)
    # The last two variables keep git from using a repository above the tree.
    env = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_DIR": os.devnull,
        "GIT_CEILING_DIRECTORIES": os.fspath(dest.absolute().parent),
    }
    for patch in patches:
        if patch.suffix == EDITS:
            apply_edits(read_edits(patch), dest)
            continue
        # The user's git attributes are ignored, because they could change line endings.
        argv: list[str | os.PathLike[str]] = ["prlimit", f"--as={_MEMORY}", "git"]
        argv += ["-c", "core.attributesFile=/dev/null", "apply", "-p1", "--whitespace=nowarn"]
        for mode in (["--check"], []):
            try:
                process.run([*argv, *mode, "--", patch.absolute()], cwd=dest, env=env)
            except CommandError as error:
                raise PatchError(
                    "patch-does-not-apply",
                    f"{patch.name} does not apply",
                    why=error.why,
                    fix="make the patch against exactly this source, with paths for `patch -p1`",
                ) from error
    try:
        check_links(dest)
    except HostileInputError as error:
        raise PatchError(
            "patch-link-escapes",
            f"the patches create a link that is not allowed: {error.what}",
            why=error.why,
            fix="do not use this patch",
        ) from error


def check_patch(patch: Path) -> None:
    """Raise PatchError if a patch is unreadable, too large or empty, or names a path outside the tree or in `.git`.

    For an edit file that is readable and not too large, raise the errors of `read_edits` instead.
    """
    try:
        content = patch.read_bytes() if patch.stat().st_size <= _LIMIT else None
    except OSError as error:
        raise PatchError(
            "patch-unreadable", f"cannot read the patch {patch}", why=str(error.strerror), fix="check --patch NAME=FILE"
        ) from error
    if content is None:
        raise PatchError(
            "patch-too-large",
            f"{patch.name} is larger than {_LIMIT} bytes",
            fix="split the patch, or use a source that already has the change",
        )
    if patch.suffix == EDITS:
        read_edits(patch)
        return
    names = list(_names(content))
    if not names:
        raise PatchError(
            "patch-empty", f"{patch.name} is empty", why="it changes no file", fix="check --patch NAME=FILE"
        )
    for name in names:
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or ".git" in parts or "\0" in name:
            raise PatchError(
                "patch-escapes",
                f"{patch.name} changes a file outside the tree",
                why=f"it names {name!r}",
                fix="do not use this patch",
            )


_HEADER = re.compile(
    rb'^(?:(?:---|\+\+\+) (?P<file>"(?:[^"\\]|\\.)*"|[^\t\n]+)|(?:rename|copy) (?:from|to) (?P<moved>[^\n]+))',
    re.MULTILINE,
)
_ESCAPES = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
}  # fmt: skip
_GIT_HEADER = re.compile(rb"^diff --git (?P<both>[^\n]+)", re.MULTILINE)


def _names(content: bytes) -> list[str]:
    """Return the decoded paths in the headers of a patch, such as `a/sub/file`, without /dev/null."""
    names = []
    for match in _HEADER.finditer(content):
        raw = match["file"] if match["file"] is not None else match["moved"]
        if (name := _unquote(raw.strip())) != "/dev/null":
            names.append(name)
    for match in _GIT_HEADER.finditer(content):
        names += [_unquote(word) for word in re.findall(rb'"(?:[^"\\]|\\.)*"|\S+', match["both"])]
    return names


def _unquote(raw: bytes) -> str:
    """Decode a path in a patch. Git writes a path that contains special characters as a C string literal."""
    if raw.startswith(b'"') and raw.endswith(b'"') and len(raw) > 1:
        raw = raw[1:-1]
        raw = re.sub(rb"\\([0-7]{1,3}|.)", _unescaped, raw)
    return os.fsdecode(raw)


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 255]) if code.isdigit() and code < b"8" else _ESCAPES.get(code, code)
