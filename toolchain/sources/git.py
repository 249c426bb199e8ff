"""Fetch the tree of a commit, and find the commit of a tag, with a git that ignores the user's configuration."""

from __future__ import annotations

import os
import re
import resource
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from toolchain.core import process
from toolchain.core.environment import network_environment
from toolchain.core.errors import DigestError, HostileInputError, SourceError, ToolchainError, UnreachableError
from toolchain.core.process import CommandError
from toolchain.sources.network import Mirrors, git_protocol, mirrored, refuse_offline
from toolchain.sources.part import WHOLE, Part
from toolchain.sources.store import Store
from toolchain.sources.unpack import LIMIT_BYTES, LIMIT_FILES, unpack_tar

_SHA = re.compile(r"[0-9a-f]{40}")
# These are parts of git's messages in the C locale for a missing commit, a missing repository and refused access.
_ABSENT = ("not our ref", "couldn't find remote ref", "unadvertised object", "remote error: upload-pack", "bad object")
_NO_REPOSITORY = ("does not appear to be a git repository", "repository not found", "not found", "does not exist")
# `git fetch` writes one pack, and `git archive` one tar, of at most this many bytes; the latter has this much memory.
_LARGEST_FILE = 20 << 30
_MEMORY = 16 << 30
_REFUSED = ("authentication", "could not read username", "permission denied", "returned error: 403")


def git_digest(repository: str, sha: str) -> str:
    """Return the digest of a source at a commit, `git:<40 hex>@<repository>`."""
    return f"git:{sha}@{repository}"


def fetch_git(
    repository_url: str,
    sha: str,
    store: Store,
    *,
    offline: bool,
    part: Part = WHOLE,
    verify: bool = False,
    mirrors: Mirrors = (),
) -> Path:
    """Return the path of a commit's tree in the store, after fetching the tree if the store lacks it.

    git verifies each object against its hash. Submodules are not fetched.

    UnreachableError is raised if the repository does not answer, or if `offline` is set and the store lacks the tree;
    DigestError if the repository sends a different commit; SourceError if it lacks the commit or refuses access; and
    HostileInputError if the tree is too large or not safe to unpack.

    Args:
        repository_url: an https or ssh URL, an http URL of a loopback address, or the file:// URL or absolute path of
            a local repository.
        verify: whether to read every file of a tree that the store already has (see `Store.tree`).
        mirrors: replacements for URL prefixes. The source's digest still names `repository_url`.
    """
    if not _SHA.fullmatch(sha):
        raise SourceError(
            "not-a-commit",
            f"{sha[:80]!r} is not the full hash of a commit",
            why="a branch or tag can move, and a short hash can be ambiguous",
            fix="give all 40 hexadecimal digits",
        )
    url = mirrored(repository_url, mirrors)
    protocol = git_protocol(url)

    def unpack(dest: Path) -> None:
        refuse_offline(f"commit {sha[:12]} of {repository_url}", offline=offline)
        with tempfile.TemporaryDirectory(prefix="git-", dir=_scratch(store)) as name:
            scratch = Path(name)
            archive = _archive(url, sha, scratch, env=_environment(scratch, protocol), part=part)
            unpack_tar(archive, dest, strip=0)

    return store.tree(git_digest(repository_url, sha), unpack, part=part.name, verify=verify, take_brought=offline)


def commit_of_tag(repository_url: str, tag: str, store: Store, *, offline: bool, mirrors: Mirrors = ()) -> str:
    """Return the commit to which a tag in a repository points; the tag may be annotated.

    UnreachableError is raised if the repository does not answer or `offline` is set, and SourceError if the repository
    has no such tag, does not exist or refuses access.
    """
    url = mirrored(repository_url, mirrors)
    protocol = git_protocol(url)
    refuse_offline(f"the commit of tag {tag} of {repository_url}", offline=offline)
    names = (f"refs/tags/{tag}^{{}}", f"refs/tags/{tag}")
    with tempfile.TemporaryDirectory(prefix="git-", dir=_scratch(store)) as folder:
        try:
            output = _git(_environment(Path(folder), protocol), "ls-remote", "--quiet", "--", url, *names[::-1])
        except CommandError as error:
            raise _fetch_error(url, tag, error) from error
    commits = {name: sha for sha, _, name in (line.partition("\t") for line in output.splitlines())}
    commit = next((commits[name] for name in names if name in commits), "")
    if not _SHA.fullmatch(commit):
        raise SourceError(
            "tag-not-found", f"{url} has no tag {tag}", why=output[:200], fix="name a commit: --triton COMMIT"
        )
    return commit


def _scratch(store: Store) -> Path:
    store.partial.mkdir(parents=True, exist_ok=True)
    return store.partial


def _environment(scratch: Path, protocol: str) -> dict[str, str]:
    # For a local path git starts upload-pack, which ignores `-c safe.directory`.
    config = scratch / "config"
    config.write_text("[safe]\n\tdirectory = *\n", encoding="utf-8")
    return {
        **network_environment(),
        "GIT_CONFIG_GLOBAL": os.fspath(config),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": protocol,
        "GIT_DIR": os.fspath(scratch / "repository"),
        "GIT_INDEX_FILE": os.fspath(scratch / "index"),
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=30",
    }


# fmt: off
_FIXED = (
    "-c", "protocol.version=2", "-c", "fetch.fsckObjects=true", "-c", "core.protectHFS=true",
    "-c", "core.protectNTFS=true", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false",
    "-c", "core.symlinks=true", "-c", "core.bare=false", "-c", "core.attributesFile=/dev/null",
    "-c", "gc.auto=0", "-c", "advice.detachedHead=false", "-c", "fetch.unpackLimit=1",
    "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60",
)
# fmt: on


def _git(env: Mapping[str, str], *words: str, on_line: Callable[[str], None] | None = None) -> str:
    reaches_out = words[0] in {"fetch", "ls-remote"}
    wanted = {"fsize": _LARGEST_FILE, **({"as": _MEMORY} if words[0] == "archive" else {})}
    argv = ["prlimit", *(_limit(name, most) for name, most in wanted.items()), process.which("git"), *_FIXED, *words]
    return process.run(argv, env=env, capture=on_line is None, on_line=on_line, helpers=reaches_out).stdout.strip()


def _limit(name: str, most: int) -> str:
    """Return an option for prlimit; only root could raise a limit that the caller has set."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return f"--{name}={most if hard == resource.RLIM_INFINITY else min(most, hard)}"


class _Size:
    """Count the entries of a tree and the bytes of its files, from the lines that `git ls-tree -l` prints."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries = self._bytes = 0

    def add(self, line: str) -> None:
        """Count an entry; raise HostileInputError if the tree unpacks to more than `unpack_tar` allows."""
        size = line.partition("\t")[0].rpartition(" ")[2]
        self._entries += 1
        self._bytes += int(size) if size.isascii() and size.isdigit() else 0
        if self._entries > LIMIT_FILES or self._bytes > LIMIT_BYTES:
            raise HostileInputError(
                "archive-bomb",
                f"{self._what}: it unpacks to more than is allowed",
                why=f"limits: {LIMIT_FILES} members, {LIMIT_BYTES} bytes",
                fix="do not use this source",
            )


def _archive(url: str, sha: str, scratch: Path, *, env: Mapping[str, str], part: Part) -> Path:
    """Fetch a commit, and return the path of a tar archive that contains `part` of its tree.

    The archive is made by `git archive`, which applies attributes such as `export-ignore` and `eol`.
    """
    archive = scratch / f"commit {sha}"  # `unpack_tar` shows this name in its errors
    try:
        _git(env, "init", "--quiet", "--bare", "--template=", env["GIT_DIR"])
    except CommandError as error:
        raise _git_failed("git cannot create a repository in the cache", error) from error
    try:
        _git(env, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, sha)
    except CommandError as error:
        raise _fetch_error(url, sha, error) from error
    try:
        head = _git(env, "rev-parse", "--verify", "--end-of-options", "FETCH_HEAD^{commit}")
        if head != sha:
            raise DigestError(
                "commit-mismatch",
                f"{url} sent another commit than requested",
                why=f"expected {sha}, found {head}",
                fix="do not use this repository; report it to its operator",
            )
        top = _git(env, "ls-tree", "--name-only", sha).splitlines()
        names = [name for name in top if part.holds(name)]
        if not names:
            raise SourceError(
                "commit-tree-empty",
                f"the tree of {sha[:12]} is empty or contains none of {', '.join(part.taken)}",
                fix="check the commit and the repository",
            )
        wanted = [f":(top,literal){name}" for name in names] if part.only else []
        # A few small tree objects can name the same files a billion times, and `git archive` remembers each name.
        _git(env, "ls-tree", "-r", "-t", "-l", sha, on_line=_Size(archive.name).add)
        wanted += [f":(top,exclude,literal){name}/{inner}" for name in names for inner in sorted(part.without)]
        # A `$Format:%G?$` in a file with the attribute `export-subst` makes git verify the commit's signature. It finds
        # no gpg, which would read the user's keyring, and write to it.
        alone = {**env, "PATH": os.fspath(scratch / "programs")}
        _git(alone, "archive", "--format=tar", f"--output={archive}", sha, "--", *wanted)
    except CommandError as error:
        raise _git_failed(f"git cannot write the tree of {sha[:12]}", error) from error
    return archive


def _git_failed(what: str, error: CommandError) -> SourceError:
    return SourceError(
        "git-failed", what, why=error.why, fix="check the free space and the permissions of the cache folder"
    )


def _fetch_error(url: str, sha: str, error: CommandError) -> ToolchainError:
    output = "\n".join(error.tail[-5:])
    low = output.lower()
    if "fsck" in low or "invalid index-pack" in low:
        return SourceError(
            "git-objects-refused", f"{url} sent invalid git objects", why=output, fix="do not use this repository"
        )
    if any(mark in low for mark in _ABSENT):
        return SourceError(
            "commit-not-found",
            f"{url} has no commit {sha}",
            why=output,
            fix="check the commit and the repository; the commit may be in a fork",
        )
    if any(mark in low for mark in _NO_REPOSITORY):
        return SourceError("repository-not-found", f"there is no repository {url}", why=output, fix="check the URL")
    if any(mark in low for mark in _REFUSED):
        return SourceError(
            "repository-refused",
            f"{url} refuses access",
            why=output,
            fix="put credentials into ~/.netrc or load an SSH key",
        )
    what = "reported an error" if "returned error" in low else "does not answer"
    return UnreachableError(
        "repository-unreachable",
        f"{url} {what}",
        why=output,
        fix="check the network, or give a mirror (--mirror URL=URL) or a checkout (--source NAME=PATH)",
    )
