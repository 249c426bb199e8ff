"""Compare a lock with a lock of the current inputs or of a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolchain.pipeline.lockfile import Lock, LockedBase, LockedPackage, LockedSource

_LISTED = 20  # the largest number of differing packages that are listed by name


def differences(locked: Lock, now: Lock, *, whole: bool) -> list[str]:
    """Return a line for display about each difference between two locks; of many packages, only the first are listed.

    The packages of a base that is open in `locked`, and the tags of sources, are not compared.

    Args:
        now: the lock of the current inputs or of a bundle.
        whole: whether to compare the requests and licenses too, and to report the inputs that only `locked` contains.
            Otherwise only the inputs in `now` are compared, because `locked` may be for another request and contain
            more inputs. The packages of a base are then compared only if both locks contain them.
    """
    request = _request(locked, now) if whole else ()
    return [*_tool(locked, now), *request, *_bases(locked, now, whole), *_sources(locked, now, whole)]


def _tool(locked: Lock, now: Lock) -> Iterator[str]:
    for name in ("toolchain", "format", "epoch"):
        if (was := getattr(locked, name)) != (is_now := getattr(now, name)):
            yield f"{name}: {was} is locked, {is_now} is here"


def _request(locked: Lock, now: Lock) -> Iterator[str]:
    for key in sorted(locked.request.keys() | now.request.keys()):
        was, is_now = (json.dumps(lock.request.get(key), sort_keys=True) for lock in (locked, now))
        if was != is_now:
            option = "the stage" if key == "stage" else f"--{key}"
            yield f"{option}: the lock contains {was}, the request contains {is_now}"


def _bases(locked: Lock, now: Lock, whole: bool) -> Iterator[str]:
    there = {(base.stage, base.name, base.arch): base for base in locked.bases}
    for base in now.bases:
        was = there.pop((base.stage, base.name, base.arch), None)
        if was is None:
            yield f"{base} is not in the lock"
        else:
            yield from _base(was, base, whole)
    if whole:
        yield from (f"{base} is in the lock and not in the request" for base in there.values())


def _base(was: LockedBase, now: LockedBase, whole: bool) -> Iterator[str]:
    if was.recipe != now.recipe:
        yield f"{now}: its recipe differs: {was.recipe or 'none'} is locked, {now.recipe or 'none'} is here"
    elif was.state == "image" or now.state == "image":
        if was.image != now.image:
            yield f"{now}: the image {was.image or 'none'} is locked, {now.image or 'none'} is here"
    elif was.state == "open":
        return
    elif was.state == "unresolved":
        if whole and now.state != "unresolved" and now.image:
            yield f"{now} is unresolved in the lock, and resolved here"
    elif now.state != "resolved":
        if whole:
            yield f"{now} is not resolved here"
    elif was.packages_digest != now.packages_digest or set(was.packages) != set(now.packages):
        yield from _packages(was, now)
    elif was.image and now.image and was.image != now.image:
        yield f"{now}: the same packages in another image: {was.image} is locked, {now.image} is here"


def _packages(was: LockedBase, now: LockedBase) -> Iterator[str]:
    old = {(package.name, package.arch): package for package in was.packages}
    new = {(package.name, package.arch): package for package in now.packages}
    rows = []
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            rows.append(f"{now}: {key[0]} {_told(old.get(key))} is locked, {_told(new.get(key))} is here")
    yield from rows[:_LISTED] or [f"{now}: its list of packages differs"]
    if len(rows) > _LISTED:
        yield f"{now}: … and {len(rows) - _LISTED} more packages"


def _told(package: LockedPackage | None) -> str:
    if package is None:
        return "nothing"
    return f"{package.version} {(package.sha256 or package.header)[:12]}".rstrip()


def _sources(locked: Lock, now: Lock, whole: bool) -> Iterator[str]:
    for source in now.sources:
        was = locked.source(source.name)
        if was is None:
            yield f"{_what(source)} is not in the lock ({source.ref})"
        else:
            yield from _source(was, source, whole)
    if whole:
        yield from (f"{_what(source)} is in the lock and not in the request" for source in locked.sources
                    if now.source(source.name) is None)  # fmt: skip


def _what(source: LockedSource) -> str:
    return f"the {'wheel' if source.wheel else 'source'} {source.name}"


def _source(was: LockedSource, now: LockedSource, whole: bool) -> Iterator[str]:
    if not now.digest:
        yield f"{_what(now)} ({now.ref}) has no digest before it is fetched; {was.digest} is locked"
        return
    if now.kind == "local" and not whole:
        # A checkout has no address that could be compared, so its tree must be the locked tree. If the build uses only
        # a part of the checkout, that part is compared again when it is in the store.
        expected = was.digest if was.kind == "local" else was.tree
        of_part = now.digest if was.kind == "local" else now.tree
        # If the build uses the whole checkout, the checkout's digest is the digest of its tree, so the tree that the
        # store contains under this digest must also be the locked one.
        seen = [of_part] if now.parts else [now.digest, now.tree]
        if wrong := next((tree for tree in seen if tree and tree != expected), ""):
            yield f"{_what(now)}: the locked tree is {expected or 'unknown'}, the tree in {now.ref} is {wrong}"
        keys: tuple[str, ...] = ()
    else:
        keys = ("kind", "repository", "digest", "file", "parts", *(("license",) if whole else ()))
        keys = keys if now.kind == "local" else (*keys, "ref")
    for key in keys:
        if (before := getattr(was, key)) != (after := getattr(now, key)):
            yield f"{_what(now)}: {key} {_shown(before)} is locked, {_shown(after)} is here"
    if was.tree and now.tree and was.kind == now.kind and was.parts == now.parts and was.tree != now.tree:
        yield f"{_what(now)}: its tree is {was.tree} in the lock, {now.tree} in the store"
    # Only the content of patches is compared, because the names of their files do not affect the build.
    if [patch.digest for patch in was.patches] != [patch.digest for patch in now.patches]:
        yield f"{_what(now)}: the patches {_patches(was)} are locked, {_patches(now)} are here"


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value) or "nothing"


def _patches(source: LockedSource) -> str:
    return ", ".join(f"{patch.name} ({patch.digest[:19]})" for patch in source.patches) or "(none)"
