"""Tests of Triton at a commit and at a tag, from a git server on loopback that --mirror puts in place of upstream."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.git_server import git, served, triton_repository
from tests.refusals import refused
from tests.small_llvm import small_llvm
from toolchain.catalog.releases import triton_release
from toolchain.cli.app import app
from toolchain.pipeline import lockfile
from toolchain.sources.network import mirrored, parse_mirrors

UPSTREAM = "https://github.com/triton-lang/triton"
LLVM = triton_release("3.6.0").llvm
OTHER = triton_release("3.8.0").llvm


@dataclass
class Place:
    """A folder to work in, and an upstream that can change."""

    top: Path
    commit: str
    mirror: str
    options: tuple[str, ...]
    asked: list[str]

    @property
    def repository(self) -> Path:
        return self.top / "served" / "triton"

    def call(self, *words: str, cache: str = "cache") -> tuple[int, Any, str]:
        env = {"TOOLCHAIN_CACHE": str(self.top / cache), "TOOLCHAIN_MIRROR": self.mirror}
        done = CliRunner().invoke(app, [*words, *self.options], env=env)
        assert done.exit_code != 1, done.exception
        try:
            value = json.loads(done.stdout)
        except ValueError:
            value = done.stdout
        return done.exit_code, value, done.stderr

    def move(self, **changes: str) -> str:
        """Move the upstream tag v3.6.0 to a new commit, and return that commit."""
        (self.repository / "setup.py").write_text("# moved\n")
        return triton_repository(self.repository, **{"version": "3.6.0", "llvm": LLVM, "tag": "v3.6.0", **changes})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    llvm = small_llvm(tmp_path / "llvm")
    commit = triton_repository(tmp_path / "served" / "triton", version="3.6.0", llvm=LLVM, tag="v3.6.0")
    with served(tmp_path / "served") as (url, asked):
        mirror = f"https://github.com/triton-lang/={url}/"
        yield Place(tmp_path, commit, mirror, ("--source", f"llvm={llvm}"), asked)


def triton_of(value: Any) -> dict[str, Any]:
    rows = value.get("stages", [value])
    return next(source for row in rows for source in row["sources"] if source["name"] == "triton")


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the download from PyPI, which other tests cover."""
    monkeypatch.setattr("toolchain.sources.resolve.fetch_pypi", lambda *_, **__: tmp_path / "wheel")


@pytest.mark.usefixtures("no_wheels")
def test_tag_is_resolved_by_fetch_and_not_by_plan(place: Place) -> None:
    words = ("triton", "--triton", "3.6.0", "--json")
    code, before, _ = place.call("plan", *words)
    assert code == 0
    assert triton_of(before) == {
        "name": "triton", "ref": "v3.6.0", "repository": UPSTREAM, "digest": None, "tag": "v3.6.0",
    }  # fmt: skip
    assert before["stages"][-1]["input_digest"] is None
    assert place.asked == [], "a plan asks nobody"
    assert "tag, resolved when fetched" in place.call("plan", *words[:-1])[1]

    code, fetched, said = place.call("fetch", *words)
    assert code == 0, said
    assert f"tag v3.6.0 of {UPSTREAM} is commit {place.commit}" in said
    source = triton_of(fetched)
    assert source["digest"] == f"git:{place.commit}@{UPSTREAM}", "the mirror is no part of what it is"
    assert (Path(source["path"]) / "python/triton/__init__.py").read_text() == "__version__ = '3.6.0'\n"

    asked = len(place.asked)
    code, after, _ = place.call("plan", *words)
    assert (triton_of(after)["ref"], len(place.asked)) == (place.commit, asked)
    assert after["stages"][-1]["image"] == f"triton-{place.commit[:8]}-debian13"


def test_llvm_of_an_unknown_commit_is_read_from_the_fetched_tree(place: Place) -> None:
    words = ("llvm", "--triton", place.commit, "--json")
    place = replace(place, options=())

    def llvm(plan: Any) -> dict[str, Any]:
        sources: list[dict[str, Any]] = [source for row in plan["stages"] for source in row["sources"]]
        return next(source for source in sources if source["name"] == "llvm")

    code, before, _ = place.call("plan", *words)
    assert (code, llvm(before)["ref"], llvm(before)["digest"]) == (0, "", None)
    assert place.commit in llvm(before)["pending"]
    assert "prefix" not in before["stages"][-1]
    code, _, said = place.call("fetch", *words, "--offline")
    assert (code, place.asked) == (18, []), said
    # `fetch` gets the tree of Triton first; no server has the LLVM that the tree names.
    absent = f"https://github.com/llvm/={place.mirror.partition('=')[2]}absent/"
    code, _, said = place.call("fetch", *words, "--mirror", place.mirror, "--mirror", absent)
    assert code in {5, 18}, said
    code, after, _ = place.call("plan", *words)
    assert (code, llvm(after)["ref"], "pending" in llvm(after)) == (0, LLVM, False)


@pytest.mark.usefixtures("no_wheels")
@pytest.mark.parametrize("cache", ["cache", "another cache"])
def test_a_tag_that_moved_since_the_lock_is_refused(place: Place, cache: str) -> None:
    words = ("triton", "--triton", "3.6.0")
    code, _, said = place.call("lock", *words, "--open-base")
    assert code == 0, said
    held = lockfile.read(Path(lockfile.DEFAULT)).source("triton")
    assert held is not None
    assert (held.ref, held.tag, held.repository) == (place.commit, "v3.6.0", UPSTREAM)
    assert place.call("fetch", *words, "--locked", cache=cache)[0] == 0

    now = place.move()
    assert now != place.commit
    for verb in ("fetch",) if cache == "cache" else ("fetch", "build"):
        code, _, said = place.call(verb, *words, "--locked", cache=f"{cache} {verb}" if verb == "build" else cache)
        assert code == 21, said
        assert place.commit in said
        assert now in said
    # `plan` still uses the locked commit, and an offline `fetch` does not check the tag.
    code, planned, _ = place.call("plan", *words, "--locked", "--json", cache="a third")
    assert (code, triton_of(planned)["ref"]) == (0, place.commit)
    assert place.call("fetch", *words, "--locked", "--offline", cache=cache)[0] == 0
    # Without --locked, the tag resolves to the new commit, which is printed.
    code, fetched, said = place.call("fetch", *words, "--json", cache=cache)
    assert (code, triton_of(fetched)["ref"]) == (0, now)
    assert now in said


@pytest.mark.usefixtures("no_wheels")
def test_unreachable_server_stops_only_a_fetch_of_missing_sources(place: Place) -> None:
    words = ("fetch", "triton", "--triton", "3.6.0")
    assert place.call(*words)[0] == 0
    place.mirror = f"{UPSTREAM}=http://127.0.0.1:9/triton"
    code, _, said = place.call(*words)
    assert code == 0
    assert "could not check whether the tag" in said
    assert place.call(*words, cache="empty")[0] == 18
    assert place.call(*words, "--offline", cache="empty")[0] == 18


def test_tag_missing_upstream_is_an_error(place: Place) -> None:
    code, _, said = place.call("fetch", "triton", "--triton", "3.5.0")
    assert code == 5
    assert "[tag-not-found]" in said
    assert "v3.5.0" in said


@pytest.mark.usefixtures("no_wheels")
def test_llvm_pin_unlike_the_release_row_stops_the_build_before_any_stage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build compares the LLVM of the release row with the pin in the tree of Triton."""
    now = place.move(llvm=OTHER)
    place.options = ()  # no LLVM is given, so the release row names it
    monkeypatch.setattr("toolchain.pipeline.run._ready", lambda *_: None)
    begun: list[str] = []
    monkeypatch.setattr("toolchain.pipeline.run._build_stages", lambda *_: begun.append("x"))
    code, _, said = place.call("build", "triton", "--triton", "3.6.0")
    assert (code, begun) == (4, []), said
    assert OTHER in said
    assert LLVM in said
    assert "[pin-differs]" in said
    # The LLVM of a request is not compared with the pin.
    llvm = f"llvm=https://github.com/triton-lang/llvm-project@{OTHER}"
    code, planned, _ = place.call("plan", "triton", "--triton", "3.6.0", "--source", llvm, "--json")
    assert (code, triton_of(planned)["ref"]) == (0, now)
    # A commit whose tree has another version than the requested one is refused.
    place.move(version="3.5.9")
    head = git(place.repository, "rev-parse", "HEAD")
    named = ("--source", f"triton={UPSTREAM}@{head}", "--triton", "3.6.0")
    code, _, said = place.call("build", "triton", *named)
    assert (code, begun) == (4, [])
    assert "3.5.9" in said


def test_mirrors_replace_whole_url_segments_longest_first() -> None:
    mirrors = parse_mirrors(
        ["https://github.com=https://git.example/gh", f"{UPSTREAM}=file:///srv/triton.git", "https://a.example/x/=/m/"]
    )
    assert mirrored("https://github.com/llvm/llvm-project", mirrors) == "https://git.example/gh/llvm/llvm-project"
    assert mirrored(UPSTREAM, mirrors) == "file:///srv/triton.git"
    assert mirrored(f"{UPSTREAM}-ext", mirrors) == "https://git.example/gh/triton-lang/triton-ext"
    assert mirrored("https://github.company/x", mirrors) == "https://github.company/x"
    assert mirrored("https://GitHub.com/LLVM/x", mirrors) == "https://git.example/gh/LLVM/x"
    assert mirrored("https://a.b/C", parse_mirrors(["https://A.b/=/m/"])) == "/m/C"
    for pair in ("https://github.com/=https://git.example", "https://github.com=https://git.example/"):
        there = mirrored("https://github.com/llvm/llvm-project", parse_mirrors([pair]))
        assert there == "https://git.example/llvm/llvm-project", "it would lead to another host"
    assert mirrored("https://a.example/x/y.tar", mirrors) == "/m/y.tar"
    for wrong in ("https://github.com", "https://github.com=", "=https://x.example/", "a=b"):
        with refused("mirror-invalid", "URL=URL"):
            parse_mirrors([wrong])
    for wrong in ("https://github.com=https://x.example:99999/", "https:///=https://x.example/"):
        with refused("mirror-invalid") as caught:
            parse_mirrors([wrong])
        assert caught.value.code == 3
    assert parse_mirrors(["HTTPS://github.com=HTTPS://x.example"]) == (("https://github.com", "https://x.example"),)
    with refused("option-twice"):
        parse_mirrors(["https://github.com=https://x.example/", "https://github.com/=https://y.example/"])
    with refused("mirror-invalid") as caught:
        parse_mirrors(["https://github.com=https://me:hunter2@x.example/"])
    assert "hunter2" not in str(caught.value)
