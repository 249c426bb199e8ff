"""Make a lock from a plan, and check a plan against a lock."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.catalog.architectures import this_machine
from toolchain.catalog.stages import source_license
from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.digest import EPOCH, FORMAT, sha256_file, sha256_json
from toolchain.core.errors import LockedError, SourceError, UnreachableError
from toolchain.pipeline.fetching import fetch_for
from toolchain.pipeline.lock_differences import differences
from toolchain.pipeline.lockfile import Lock, LockedBase, LockedPackage, LockedPatch, LockedSource, State, read, write
from toolchain.pipeline.records import known_record
from toolchain.request.declaration import declared, plain
from toolchain.request.model import Request
from toolchain.sources.archive import archive_name
from toolchain.sources.distro import known_package
from toolchain.sources.pypi import pypi_row
from toolchain.sources.resolve import part_of
from toolchain.sources.spec import SourceSpec
from toolchain.sources.store import Store
from toolchain.sources.tree import Source
from toolchain.stages.base import BaseStage, LocalImage, read_packages, recipe_digest
from toolchain.stages.makers import make as make_stage
from toolchain.stages.stage import Planned
from toolchain.stages.unpacked import Unpacked

_LISTED = 30


def resolve(request: Request, planned: Sequence[Planned], target: str, *, open_base: bool = False) -> Lock:
    """Return a lock with the inputs of a plan, as far as they are known without a fetch.

    The digest of a source is empty if it is unknown before a fetch. The digest of a tree is empty if the tree is not in
    the store, except for a user's folder that is used as a whole.

    Args:
        planned: the plans of the stages whose inputs the lock lists.
        target: the requested stage, for the request in the lock; empty if the requests are not compared.
        open_base: whether to omit the packages of the base and of the stages `sysroot`, `python` and `torch`, so that a
            build with this lock may use any versions of them. A local image is locked by its digest in both cases.
    """
    sources = {source.name: source for stage in planned for source in stage.sources}
    return Lock(
        toolchain=__version__,
        epoch=EPOCH,
        format=FORMAT,
        request=_request(request, target, sources),
        bases=tuple(_bases(request, {stage.name for stage in planned}, open_base=open_base)),
        sources=tuple(locked_source(request, sources[name]) for name in sorted(sources)),
    )


def fetch_all(request: Request, planned: Sequence[Planned]) -> None:
    """Fetch every source of a plan into the store, so that its tree digest is known.

    With `--offline`, a source that is not in the store is skipped with a note if its own digest is known. If the digest
    is unknown, UnreachableError is raised.
    """
    sources = {source.name: source for stage in planned for source in stage.sources}
    for source in sources.values():
        try:
            fetch_for(request, source)
        except UnreachableError as error:
            if not request.offline or source.digest is None:
                raise
            console.note(f"{source.name}: not in the store, so its tree digest is left out ({error.what})")


def make(request: Request, planned: Sequence[Planned], target: str, path: Path, *, open_base: bool = False) -> Lock:
    """Write the lock of a plan whose sources were fetched to `path`, and return the lock.

    Raise SourceError if a source has no digest in the plan, because the digest was unknown before the fetch.
    """
    lock = _made(resolve(request, planned, target, open_base=open_base))
    loose = [source.ref for source in lock.sources if not source.digest]
    if loose:
        raise SourceError(
            "sources-not-lockable",
            f"the sources {', '.join(loose)} cannot be locked",
            why="their digests are unknown before a fetch",
            fix="run the command again without --offline; sources that were fetched have digests",
        )
    write(lock, path)
    return lock


def check_file(request: Request, planned: Sequence[Planned], target: str, path: Path) -> Lock:
    """Return the lock in a file; raise LockedError if it differs from the lock of a plan (see `differences`).

    Raise ConfigError if the file cannot be read or is not a valid lock.
    """
    locked = read(path, option="-o")
    differing = differences(locked, resolve(request, planned, target), whole=True)
    if differing:
        raise refused(differing, f"{path} does not match the current inputs")
    return locked


def _made(lock: Lock) -> Lock:
    """Return a lock in which the bases whose image is unknown are no longer marked as resolved.

    Their packages are removed from the lock, because a base is fixed only if its image is known too.
    """
    bases = tuple(
        replace(base, state="unresolved", packages_digest="", packages=())
        if base.state == "resolved" and not base.image else base
        for base in lock.bases
    )  # fmt: skip
    return replace(lock, bases=bases)


def lock_of(request: Request) -> Lock | None:
    """Return the lock that a request must match; None without `--locked`."""
    assert request.lock is None or isinstance(request.lock, Lock)  # noqa: S101 - no other class is used
    return request.lock


def check(request: Request, planned: Sequence[Planned]) -> None:
    """With `--locked`, raise LockedError if the inputs of a plan differ from those in the lock (see `differences`)."""
    if (lock := lock_of(request)) is None:
        return
    differing = differences(lock, resolve(request, planned, ""), whole=False)
    if differing:
        raise refused(differing, "--locked: the plan differs from the lock")


def check_tree(request: Request, source: Source) -> None:
    """With `--locked`, raise LockedError if a source, its tree in the store or its patches differ from the lock."""
    if (lock := lock_of(request)) is None:
        return
    now, was = locked_source(request, source), lock.source(source.name)
    differing = differences(replace(lock, bases=()), replace(lock, bases=(), sources=(now,)), whole=False)
    if differing or was is None:
        raise refused(differing, f"--locked: {source.name} differs from the lock")


def refused(differing: Sequence[str], what: str) -> LockedError:
    """Return a LockedError that lists the first differences and the number of the remaining ones."""
    more = [f"… and {len(differing) - _LISTED} more"] if len(differing) > _LISTED else []
    return LockedError(
        "lock-differs",
        what,
        why="\n".join([*differing[:_LISTED], *more]),
        fix="if the change is intended, make the lock again: toolchain lock, with the same options",
    )


def locked_source(request: Request, source: Source) -> LockedSource:
    """Return the row of a lock for a source and its patches; the row's digest is empty if the source has none yet."""
    part = part_of(source.name, tests=request.takes_tests(source.name))
    digest = source.digest or ""
    info = Store(request.cache.store).tree_info(digest, part=part.name) if digest else None
    tree = info.digest if info is not None else ""
    if info is None and source.kind == "local" and source.path is not None and source.path.is_dir() and not part.name:
        tree = digest  # the digest of a whole folder is that of its tree
    return LockedSource(
        name=source.name,
        kind=source.kind,
        ref=source.ref,
        repository=source.repository,
        digest=digest,
        file=_file(source, request),
        parts=part.taken,
        tree=tree,
        license=source.license or source_license(source.name),
        tag=source.tag,
        patches=tuple(
            LockedPatch(name=path.name, digest=sha256_file(path)) for path in request.patches.get(source.name, ())
        ),
    )


def _file(source: Source, request: Request) -> str:
    """Return the name of a source's file, or an empty string if the source is not a file or the name is unknown."""
    if source.kind == "pypi":
        return pypi_row(source.where, source.version).file
    if source.kind == "distro":
        row = known_package(source.where, source.version, request.cache)
        if row is not None:
            return row.file
        held = lock.source(source.name) if (lock := lock_of(request)) is not None else None
        # Neither data/distro.toml nor an earlier fetch gives the name of the file, and only a fetch reads the
        # distribution's index. So the name in the lock is used if the digest is the same.
        return held.file if held is not None and held.digest == source.digest else ""
    name = ""
    if source.kind == "archive":
        name = archive_name(source.where)
    elif source.kind == "local" and source.path is not None and source.path.is_file():
        name = source.where  # the store may have the file under another name
    return safe_name(name) if name else ""


def safe_name(text: str) -> str:
    """Return a string as a file name that a lock accepts.

    `_` replaces each character that is not accepted. Punctuation at the beginning and characters after the 255th are
    removed. If only a suffix is left, or nothing, `file` is put in front, because the suffix names the format.
    """
    name = re.sub(r"[^A-Za-z0-9._+~!-]", "_", text)
    rest = name.lstrip("._+~!-")
    only_suffix = rest and name.partition(".")[2] == rest
    return (f"file.{rest}" if only_suffix else rest or "file")[:255]


def _bases(request: Request, stages: Collection[str], *, open_base: bool) -> Iterator[LockedBase]:
    """Yield the planned base for this machine, and the planned unpacked systems for each requested architecture."""
    here = this_machine()
    if "base" in stages:
        yield _base(replace(request, arch=(here,)), open_base=open_base)
    for name in ("sysroot", "python", "torch"):  # builds compile against these systems or import from them
        if name in stages:
            for of_arch in (replace(request, arch=(arch,)) for arch in request.arch):
                if (stage := make_stage(name, of_arch)) is not None:
                    yield _system(stage.plan(of_arch, {}), of_arch, open_base=open_base)


def _base(request: Request, *, open_base: bool) -> LockedBase:
    planned, (arch,) = BaseStage().plan(request, {}), request.arch
    recipe = planned.details
    if isinstance(recipe, LocalImage):
        return LockedBase(name=recipe.name, arch=arch, state="image", image=recipe.digest)
    base = LockedBase(
        name=recipe.name,
        arch=arch,
        state="open" if open_base else "unresolved",
        recipe=recipe_digest(recipe),
        suite=recipe.suite,
        start=recipe.image,
    )
    return base if open_base else _resolved(base, request.cache, planned)


def _system(planned: Planned[Unpacked], request: Request, *, open_base: bool) -> LockedBase:
    stage: Any = planned.name
    what, arch = planned.details, request.arch[0]
    state: State = "open" if open_base else "unresolved"
    base = LockedBase(name=what.name, arch=arch, state=state, stage=stage, recipe=what.digest, suite=what.suite)
    return base if open_base else _resolved(base, request.cache, planned)


def _resolved(base: LockedBase, cache: Cache, planned: Planned) -> LockedBase:
    """Return a base as resolved; return it unchanged if the cache has no package list for its recipe."""
    lock = read_packages(cache.package_list(base.stage, base.name, base.arch), base.recipe)
    if lock is None:
        return base
    record = known_record(cache, planned.input_digest)
    return replace(
        base,
        state="resolved",
        image=record.manifest if record is not None else "",
        packages_digest=sha256_json(lock),
        packages=locked_packages(lock),
    )


def locked_packages(resolved: Mapping[str, Any]) -> tuple[LockedPackage, ...]:
    """Return the packages in a package list of the form that `stages.base.read_packages` returns.

    Raise SourceError if a row cannot be read.
    """
    return tuple(_package(row) for row in resolved["packages"])


def _package(row: Any) -> LockedPackage:
    """Return the package in a row of a package list; raise SourceError if the row cannot be read.

    A row is an object with dpkg's fields, or a string from rpm: `NAME:ARCH=EPOCH:VERSION,SHA256HEADER`.
    """
    if isinstance(row, dict):
        name, version, arch, sha256 = (row.get(key, "") for key in ("name", "version", "architecture", "sha256"))
        if name and all(isinstance(text, str) for text in (name, version, arch, sha256)):
            return LockedPackage(name=name, version=version, arch=arch, sha256=sha256)
    match = re.fullmatch(r"([^:=]+):([^=]+)=([^,]+),?(.*)", row) if isinstance(row, str) else None
    if match is None:
        raise SourceError(
            "base-packages-unreadable",
            f"the base's list of packages cannot be read: {str(row)[:80]!r}",
            why="each row must name a package, its architecture and its version",
            fix="build the base again: toolchain build base",
        )
    return LockedPackage(name=match[1], arch=match[2], version=match[3].removeprefix("0:"), header=match[4])


def _asked_source(spec: SourceSpec, source: Source | None) -> str:
    if spec.kind not in {"local", "stored"}:
        return str(spec)
    # `PATH` replaces the path, because a lock contains no path of this machine. `source` is None if the plan reads only
    # the pin in the folder.
    return source.ref if source is not None and source.kind != "local" else "PATH"


def _asked_sources(request: Request, sources: Mapping[str, Source]) -> dict[str, str]:
    """Return the sources that a request names, without paths of this machine.

    If the request uses only the LLVM pin of a local Triton folder, the result contains that LLVM's repository and
    commit instead of the folder, because another machine may lack the folder.
    """
    asked = {name: _asked_source(spec, sources.get(name)) for name, spec in sorted(request.sources.items())}
    llvm = sources.get("llvm")
    only_pin = asked.get("triton") == "PATH" and "triton" not in sources and "llvm" not in asked
    if only_pin and llvm is not None and llvm.kind == "git":
        del asked["triton"]
        asked["llvm"] = f"{llvm.repository}@{llvm.ref}"
    return asked


def _request(request: Request, target: str, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Return the requested stage and the values of options for a lock, by name and without paths of this machine."""
    instead = {
        # The base of a portable LLVM is omitted, because a request that names a base gets an LLVM for that base only.
        "base": "" if request.glibc else "oci:DIR" if request.base.image is not None else str(request.base),
        "source": _asked_sources(request, sources),
        "patch": {name: [path.name for path in paths] for name, paths in sorted(request.patches.items())},
    }
    values = {"stage": target}
    for row in declared(request):
        name, value = row.name, getattr(request, row.field)
        if row.lock == "always" or (row.lock == "changed" and value != row.default):
            values[name] = instead.get(name, plain(value))
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}
