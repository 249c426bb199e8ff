"""Tests of reading and writing `toolchain.lock`, and of comparing locks."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.lock_fixtures import ODD, A, B, base, lock, source, wheel
from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError
from toolchain.pipeline import lockfile
from toolchain.pipeline.lock_differences import differences
from toolchain.pipeline.lockfile import Lock, LockedBase, LockedPackage, LockedPatch
from toolchain.sources.resolve import locate
from toolchain.sources.spec import parse_source_spec

# The file


@pytest.mark.parametrize(
    "value",
    [
        lock(),
        lock(bases=(base(state="open", image="", packages_digest="", packages=()),)),
        lock(bases=(LockedBase(name="local12345678", arch="amd64", state="image", image=A),)),
        lock(bases=(base(packages=(LockedPackage(name="gcc", version="8", arch="x86_64", header="f" * 64),)),)),
        lock(bases=(base(), base(stage="sysroot", arch="arm64"), base(stage="sysroot", arch="s390x", state="open"))),
        lock(bases=(base(stage="sysroot", arch="arm64"),)),
        lock(sources=(), request={}),
        lock(sources=(), request={"stage": "llvm-amdgpu"}),
    ],
)
def test_written_lock_is_parsed_back_unchanged(value: Lock) -> None:
    content = lockfile.render(value)
    again = lockfile.parse(content, "x")
    assert dataclasses.asdict(again) == dataclasses.asdict(value)
    assert lockfile.render(again) == content


@pytest.mark.parametrize(
    "text", [f"file:///srv/my repositories/llvm@{'a' * 40}", f"https://host.example/a\u00a0b.tar.gz#sha256={'b' * 64}"]
)
def test_lock_stores_addresses_with_spaces(text: str) -> None:
    spec = parse_source_spec(text)
    located = locate("llvm", spec, cache=Cache(Path("/nowhere")))
    row = source(kind=spec.kind, ref=located.ref, repository=located.repository, digest=located.digest)
    assert lockfile.parse(lockfile.render(lock(sources=(row,))), "x").sources[0].spec == spec


def test_lock_bytes_do_not_depend_on_the_order_of_rows() -> None:
    parts = (source(), source(name="aaa"), wheel(), wheel(name="wheel-z"))
    bases = (base(), base(stage="sysroot", arch="s390x"), base(stage="sysroot", arch="arm64"))
    packages = base().packages
    written = {
        lockfile.render(lock(sources=order, bases=tuple(dataclasses.replace(one, packages=some) for one in two)))
        for order in itertools.permutations(parts)
        for two in itertools.permutations(bases)
        for some in itertools.permutations(packages)
    }
    assert len(written) == 1


def test_lock_states_whether_it_is_complete() -> None:
    for state in ("open", "unresolved"):
        value = lock(bases=(base(), base(name="debian12", state=state, packages_digest="")))
        assert not value.complete
        assert b"NOT COMPLETE" in lockfile.render(value)
        assert b"complete = false" in lockfile.render(value)
    assert lock().complete
    assert b"NOT COMPLETE" not in lockfile.render(lock())


GOOD = lockfile.render(lock()).decode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a lock of this tool"),
        ('version = 1\n[[package]]\nname = "x"\n', "not a lock of this tool"),
        ("= 1", "TOML"),
        (f"schema = 2\nepoch = {'1' * 5000}\n", "more than 64 bits"),
        # Python reads a hexadecimal number of any length, but cannot print a long one.
        (f"schema = 0x{'f' * 5000}\n", "more than 64 bits"),
        (GOOD.replace("epoch = 1", "epoch = 0x8000000000000000"), "more than 64 bits"),
        # tomllib takes quadratic time for the parts of a key.
        (f"a{'.a' * 5000} = 1\n", "nested too deeply"),
        ("""'a'."a" . """ * 2000 + "a = 1\n", "nested too deeply"),
        (GOOD.replace("[[source]]", "<<<<<<< HEAD\n[[source]]", 1), "column 1: invalid statement"),
        (GOOD.replace("schema = 2", "schema = 1"), "schema 1"),
        (GOOD.replace("epoch = 1", 'epoch = "1"'), "epoch"),
        (GOOD.replace('kind = "archive"', 'kind = "magic"'), "kind"),
        (GOOD + '\n[[source]]\nname = "x"\n', "kind"),
        (GOOD.replace('tree = "', 'treee = "'), "treee"),
        (GOOD.replace("[[source]]", "[[sources]]"), "unknown key 'sources'"),
        (GOOD.replace(f'tree = "{B}"', 'tree = "1"'), "malformed"),
        (GOOD.replace('name = "llvm"', 'name = "../llvm"'), "name is invalid"),
        (GOOD.replace('name = "llvm"', 'name = "triton"'), "twice"),
        (GOOD.replace('"pypi:triton==1"', '"pypi:../triton==1"'), "pypi"),
        (GOOD.replace('kind = "archive"', 'kind = "distro"'), "distro"),
        (GOOD.replace('kind = "pypi"', 'kind = "git"'), "another"),
        (GOOD.replace("[request]", "[request]\nx = " + "[" * 3000), "TOML"),
        (GOOD.replace("source = {", 'source = "boo"\nx = {'), "value is invalid"),
        (GOOD.replace('file = "x.tar.gz"', 'file = "../x.tar.gz"'), "file"),
        (GOOD.replace('parts = ["llvm"', 'parts = [".."'), "parts"),
        (GOOD.replace('name = "debian13"', 'name = "../debian13"'), "invalid name"),
        (GOOD.replace(f'packages_digest = "{A}"\n', ""), "packages"),
        (GOOD.replace(f'digest = "{B}"\nfile = "triton', 'digest = ""\nfile = "triton'), "digest"),
        (GOOD.replace('license = "MIT"', "license = 2026-01-01"), "license"),
    ],
)
def test_malformed_lock_is_refused(content: str, says: str) -> None:
    assert content != GOOD
    with pytest.raises(ConfigError) as caught:
        lockfile.parse(content.encode(), "the file")
    assert says in str(caught.value)


def test_lock_may_have_the_line_ends_and_the_mark_of_windows() -> None:
    content = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert lockfile.render(lockfile.parse(content, "x")) == GOOD.encode()


def test_lock_that_is_not_utf8_is_refused() -> None:
    with refused("lock-malformed"):
        lockfile.parse(b"\xff\xfe", "x")


# The comparison

CHANGES: list[tuple[dict[str, Any], str | None]] = [
    ({"sources": (source(digest=B), wheel())}, "the source llvm: digest"),
    ({"sources": (source(tree=A), wheel())}, "its tree is"),
    ({"sources": (source(kind="git"), wheel())}, "kind"),
    ({"sources": (source(patches=(LockedPatch(name=ODD, digest=B),)), wheel())}, "patches"),
    ({"sources": (source(patches=source().patches[::-1]), wheel())}, "patches"),
    ({"sources": (source(), wheel(digest=A))}, "the wheel triton: digest"),
    ({"sources": (source(), wheel(), source(name="new"))}, "the source new is not in the lock"),
    ({"sources": (source(digest=""), wheel())}, "no digest before it is fetched"),
    ({"bases": (base(name="ubi9"),)}, "base ubi9 (amd64) is not in the lock"),
    ({"bases": (base(recipe=B),)}, "its recipe differs"),
    ({"bases": (base(image=A),)}, "another image"),
    ({"bases": (base(state="image"),)}, None),
    (
        {"bases": (base(packages_digest=B, packages=(*base().packages[:1], LockedPackage(
            name="libc6", version="2.42", arch="amd64", sha256="3" * 64))),)},
        "libc6 1:2.41-12+deb13u1~x 222222222222 is locked, 2.42 333333333333 is here",
    ),
    ({"bases": (base(packages_digest=B),)}, "its list of packages differs"),
    ({"toolchain": "0.2.0"}, "toolchain: 0.1.0 is locked, 0.2.0 is here"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "says"), CHANGES)
@pytest.mark.parametrize("whole", [False, True])
def test_differences_name_each_change(change: dict[str, Any], says: str | None, whole: bool) -> None:
    found = differences(lock(), lock(**change), whole=whole)
    if says is None:
        assert found == []
    else:
        assert says in "\n".join(found)


@pytest.mark.parametrize(
    ("whole", "says"),
    [(False, f"the locked tree is {B}, the tree in "), (True, "kind archive is locked, local is here")],
)
def test_checkout_for_an_archive_differs_by_tree_or_by_kind(whole: bool, says: str) -> None:
    (found,) = differences(lock(), lock(sources=(source(kind="local", tree=A), wheel())), whole=whole)
    assert found.startswith(f"the source llvm: {says}")


def test_equal_locks_do_not_differ_but_missing_rows_do() -> None:
    assert differences(lock(), lock(), whole=True) == []
    assert differences(lock(), lock(sources=(wheel(),)), whole=False) == []
    assert "not in the request" in differences(lock(), lock(sources=(wheel(),)), whole=True)[0]
    assert "not in the request" in differences(lock(), lock(bases=()), whole=True)[0]
    renamed = source(patches=tuple(dataclasses.replace(one, name="x") for one in source().patches))
    assert differences(lock(), lock(sources=(renamed, wheel())), whole=True) == []
    # A source that is not in the store has no tree digest to compare.
    assert differences(lock(), lock(sources=(source(tree=""), wheel())), whole=True) == []


def test_unresolved_base_differs_only_in_a_whole_comparison() -> None:
    free = {"image": "", "packages_digest": "", "packages": ()}
    resolved, unresolved, left_open = base(), base(state="unresolved", **free), base(state="open", **free)

    def told(was: LockedBase, now: LockedBase, whole: bool) -> list[str]:
        return differences(lock(bases=(was,)), lock(bases=(now,)), whole=whole)

    for now in (resolved, unresolved):
        assert told(left_open, now, True) == []
    assert told(unresolved, resolved, False) == []
    assert "resolved here" in told(unresolved, resolved, True)[0]
    assert told(resolved, unresolved, False) == []
    assert "not resolved here" in told(resolved, unresolved, True)[0]
    assert "recipe" in told(left_open, dataclasses.replace(resolved, recipe=B), False)[0]


def test_checkout_with_the_locked_tree_does_not_differ() -> None:
    checkout = source(kind="local", ref="local:x", repository="local", digest=B, file="", tree=B, parts=())
    assert differences(lock(), lock(sources=(checkout, wheel())), whole=False) == []
    assert differences(lock(), lock(sources=(dataclasses.replace(checkout, digest=A), wheel())), whole=False) != []
    # If only parts of a source are used, the whole checkout has another digest, but its parts have the locked digest.
    for tree, good in ((B, True), ("", True), (A, False)):
        part = dataclasses.replace(checkout, digest=A, tree=tree, parts=("llvm", "mlir"))
        assert (differences(lock(), lock(sources=(part, wheel())), whole=False) == []) is good
