"""Find the source of AOTriton, and make the recipe that builds its library and upstream's plan of its kernels."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.catalog.aotriton_generations import DATABASE, Generation, generation_in, generator_in, refuse, release_of
from toolchain.catalog.floors import floor_of, load_floors
from toolchain.catalog.gpus import short_list
from toolchain.catalog.releases import aotriton_release
from toolchain.catalog.rocm import headers_of, rocm_of, stubs_of
from toolchain.core.digest import sha256_file, sha256_json
from toolchain.core.errors import BuildError, HostileInputError, PinError, UnsupportedError
from toolchain.core.filesystem import emptied, is_inside, read_built, read_built_json
from toolchain.core.pages import page
from toolchain.core.recipe import COMPILER_CACHE, Recipe, digests
from toolchain.request.model import Request
from toolchain.sources.patch import copy_tree
from toolchain.sources.spec import SourceSpec
from toolchain.sources.tree import FetchedSource, Source, require
from toolchain.stages.hip import PLACE, requested_rocms
from toolchain.stages.inputs import source_inputs
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.wheels import wheel_folder

UPSTREAM = "https://github.com/ROCm/aotriton"
DEFAULT_GPUS = ("gfx942",)
_WEIGHTS = {"configure": 60.0, "plan": 30.0, "compile": 1000.0, "install": 5.0}


@dataclass(frozen=True, kw_only=True)
class AotritonDetails:
    """The decisions about AOTriton that follow from a request.

    Args:
        release: the known release that the request names by its name or commit; empty if it names none.
        rocms: the ROCm versions for which the library is linked; empty if it is linked with its base's HIP.
    """

    gpus: tuple[str, ...]
    release: str
    rocms: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> AotritonDetails:
        """Return the details for a request, without reading a source tree."""
        spec, release = request.sources.get("aotriton"), ""
        if spec is not None and spec.kind == "git":
            release = release_of(spec.version)
        elif request.aotriton:
            release = aotriton_release(request.aotriton, allow_unknown=True).name
        rocms = requested_rocms(request) if request.glibc else ()
        return cls(gpus=request.gpus or DEFAULT_GPUS, release=release, rocms=rocms)


@dataclass(frozen=True)
class Library:
    """The settings of upstream's own build.

    Args:
        sha1: the result of `commit_of`.
        dropped: the files of the source that the build does not get.
        rocm: the ROCm versions for which a portable library is linked; empty if it is linked with the base's HIP.
        key: the digest of the inputs of the library and the plan. The selection of kernels is not one of them.
        words: the release's own names for the GPUs; empty if it uses LLVM's names.
        database: the user's tuning database, and the path in the source at which it replaces upstream's; None if the
            user gives none.
    """

    source: FetchedSource
    prefix: str
    sha1: str
    dropped: tuple[str, ...]
    rocm: tuple[str, ...]
    key: str
    words: tuple[str, ...] = ()
    inside: bool = False
    database: tuple[Path, str] | None = None


def library_of(
    planned: Planned[AotritonDetails],
    dependencies: Mapping[str, Built],
    request: Request,
    source: FetchedSource,
    dropped: tuple[str, ...],
    *,
    generation: Generation,
    database: tuple[Path, str] | None = None,
) -> Library:
    """Return the settings of upstream's build; `Library` explains `dropped` and `database`."""
    details, under = planned.details, {name: dependency.input_digest for name, dependency in dependencies.items()}
    key = sha256_json(
        {
            "base": dependencies["base"].input_digest,
            "sources": source_inputs(planned.sources, request.patches),
            "recipe": digests(COMPILER_CACHE, "containerfiles/aotriton"),
            "gpus": list(details.gpus),
            "dropped": list(dropped),
            **portable_inputs(under, details.rocms, request.glibc),
        }
    )
    words = generation.words_of(details.gpus) if generation.words else ()
    return Library(
        source, planned.prefix, commit_of(source), dropped, details.rocms, key, words, generation.inside, database
    )


def portable_inputs(under: Mapping[str, str | None], rocms: Sequence[str], glibc: str) -> dict[str, Any]:
    """Return the inputs that only a portable library has; an empty dictionary if `glibc` is empty."""
    if not glibc:
        return {}
    return {
        "glibc": glibc,
        "rocm": list(rocms),
        "sysroot": under["sysroot"],
        "hip": under["hip"],
        "toolchain": digests("llvm-config/portable.cmake"),
    }


def library_recipe(
    planned: Planned[AotritonDetails],
    dependencies: Mapping[str, Built],
    workspace: Workspace,
    what: Library,
    *,
    objects: Path | None = None,
) -> Recipe:
    """Return the recipe that builds the library and makes the plan of its kernels.

    Args:
        objects: the folder of the compiled kernels to build into the library; None for a build without kernels.
    """
    return Recipe(
        name="aotriton",
        containerfile="containerfiles/aotriton/Containerfile",
        base=workspace.image(dependencies["base"]),
        args={
            "PREFIX": what.prefix,
            "GPUS": " ".join(planned.details.gpus),
            "SHA1": what.sha1,
            "TREE_SHA1": what.sha1,
            "DROP": ";".join(what.dropped),
            **({"ROCM": " ".join(f"{row}={rocm_of(row).headers}" for row in what.rocm)} if what.rocm else {}),
            **({"WORDS": " ".join(what.words)} if what.words else {}),
            **({"INSIDE": "1"} if what.inside else {}),
            **({"OBJECTS": "1"} if objects is not None else {}),
            "JOBS": str(workspace.jobs("compile")),
            "INPUT_DIGEST": what.key,
        },
        contexts={
            "aotriton": what.source.path,
            "wheels": wheel_folder([row for row in planned.sources[1:] if row.name != DATABASE], workspace),
            **({"objects": objects} if objects is not None else {}),
            **({"database": _overlay(*what.database, workspace)} if what.database else {}),
            **(
                {
                    "sysroot": workspace.unpack(dependencies["sysroot"]),
                    "hip": workspace.unpack(dependencies["hip"]) / PLACE.lstrip("/"),
                }
                if what.rocm
                else {}
            ),
        },
        cache_key=what.key.removeprefix("sha256:")[:12],
        steps=_WEIGHTS,
    )


def _overlay(database: Path, place: str, workspace: Workspace) -> Path:
    """Return a new folder that contains the user's database at its path in AOTriton's source tree."""
    folder = emptied(workspace.work() / "database")
    target = folder / place
    target.parent.mkdir(parents=True)
    if database.is_dir():
        copy_tree(database, target)
    else:
        shutil.copyfile(database, target)
    return folder


def library_facts(
    built: Path, what: Library | None = None, *, headers: Mapping[str, str] | None = None, glibc: str = ""
) -> dict[str, Any]:
    """Return facts about the libraries that the recipe built; portable libraries are checked first.

    Args:
        what: the settings of the build; it may be None for a library that is linked with its base's HIP.
        headers: the version of HIP in each set of headers, by the name of the set; needed for portable libraries.
        glibc: the oldest glibc that portable libraries must run with.

    Returns:
        `hip`: the version of HIP, or for portable libraries the versions of the headers. `redirected`: the content of
        the recipe's redirected.json. `rocm`, only for portable libraries: for each ROCm the result of `check_linked`,
        the version of its headers, the library's SHA-256 as 64 hex digits, and in `holds` the glibc of each known floor
        on which the library can run.
    """
    facts: dict[str, Any] = {"redirected": read_built_json(built, "redirected.json", dict[str, Any])}
    if what is None or not what.rocm:
        return {"hip": read_built(built, "hip-version").strip(), **facts}
    from toolchain.stages.binary_checks import check_linked, holds_on  # noqa: PLC0415 - plans read no ELF
    from toolchain.stages.elf import read_linked  # noqa: PLC0415

    headers = headers or {}
    stubs = {stub.soname: stub for stub in stubs_of(what.rocm)}
    floor, rows = floor_of(glibc), {}
    for major in what.rocm:
        row = rocm_of(major)
        path = library_in(built / "prefix" / what.prefix.lstrip("/"), major)
        require_no_link(path, built)
        linked = read_linked(path)
        rows[major] = {
            **check_linked(path, stubs, soname=row.soname, floor=floor),
            "headers": headers[row.headers],
            "sha256": sha256_file(path).removeprefix("sha256:"),
            "holds": [row.glibc for row in load_floors().values() if holds_on(linked, row)],
        }
    return {"hip": ", ".join(headers[row.name] for row in headers_of(what.rocm)), "rocm": rows, **facts}


def require_no_link(path: Path, tree: Path) -> None:
    """Raise HostileInputError if links in the parent folders of a path lead out of the built tree `tree`."""
    if not is_inside(path, tree):
        raise HostileInputError(
            "aotriton-library-link",
            f"AOTriton's build left a link in the place of {path.relative_to(tree)}",
            why="the link leads out of the built tree",
            fix="check the source tree, which may be hostile",
        )


def library_in(prefix: Path, major: str) -> Path:
    """Return the path of the library that is linked for a ROCm; raise BuildError if there is not exactly one."""
    folder = prefix / f"rocm{major}" / "lib"
    libraries = [
        path for path in sorted(folder.glob("libaotriton*_v2.so*")) if path.is_file() and not path.is_symlink()
    ]
    if len(libraries) != 1:
        raise BuildError(
            "library-missing", f"the build left no library for ROCm {major}", why=f"in {folder}", fix="see the log"
        )
    return libraries[0]


def aotriton_source(request: Request) -> Source:
    """Return the source of the request's AOTriton, without using the network.

    An error is raised if the library would be linked with the HIP of a named base, because none of them has a HIP. An
    error is also raised if the request names no AOTriton, or a release whose commit is unknown.
    """
    # A library without a glibc floor is linked with the HIP of its base. A base with a name is refused, because none of
    # them has a HIP; the user's own image may have one.
    if not request.glibc and request.base.image is None:
        raise UnsupportedError(
            "base-without-hip",
            f"AOTriton cannot be built on {request.base}",
            why="the base has no HIP, and a library for one base is linked with the HIP of that base",
            fix="leave out --base: the portable library is linked for ROCm 5, 6 or 7; or use your own image with HIP",
        )
    spec = request.sources.get("aotriton")
    if spec is None and request.aotriton:
        commit = aotriton_release(request.aotriton, allow_unknown=True).commit
        if not commit:
            raise PinError(
                "aotriton-commit-unknown",
                f"the commit of AOTriton {request.aotriton} is not known",
                fix="give --source aotriton=PATH or URL@COMMIT",
            )
        spec = SourceSpec(kind="git", where=UPSTREAM, version=commit)
    if spec is None:
        raise PinError(
            "aotriton-not-named", "no AOTriton is named", fix="give --aotriton RELEASE or --source aotriton=PATH"
        )
    return request.locate("aotriton", spec)


def commit_of(source: Source) -> str:
    """Return the hex digits that the library reports as its commit.

    They are the commit of a git source, or the first 40 digits of the digest of any other source.
    """
    if source.kind == "git":
        return source.version
    return (source.digest or "").removeprefix("sha256:")[:40]


def name_of(source: Source, gpus: Sequence[str]) -> str:
    """Return the part of an image's name that identifies its AOTriton by the short id of the source and the GPUs."""
    return f"{source.short_id}-{short_list(gpus)}"


def database_source(request: Request) -> Source | None:
    """Return the source of the user's tuning database, without using the network; None if the user gives none."""
    spec = request.sources.get(DATABASE)
    return request.locate(DATABASE, spec) if spec is not None else None


def refuse_unbuildable(request: Request) -> None:
    """Raise an error if the request names a release that is unknown or cannot be built as requested; see `refuse`."""
    details = AotritonDetails.of(request)
    if details.release:
        refuse(details.release, details.gpus, own_triton="triton" in request.sources, without=request.without)


_NEEDED = {
    "aotriton": ("v3src/CMakeLists.txt", "python/generate.py", "modules"),
    "v3python": ("v3src/CMakeLists.txt", "v3python/generate.py", "tritonsrc"),
    "v2python": ("v2src/CMakeLists.txt", "v2python/generate_compile.py", "tritonsrc"),
}


# Each release of AOTriton contains at least one of these folders.
_GENERATORS = ("v2python", "v3python", "modules")


def require_aotriton(tree: Path, release: str = "") -> Generation:
    """Return the generation of an AOTriton tree.

    An error is raised if the tree is incomplete, does not contain the given release, or cannot be built.

    Args:
        release: the release that the tree must contain; empty if it may be any tree.
    """
    if (tree / "third_party").is_dir() and not any((tree / name).exists() for name in _GENERATORS):
        raise UnsupportedError(
            "aotriton-not-buildable",
            "this AOTriton cannot be built",
            why=f"it has no folder {' or '.join(_GENERATORS)}, so it is older than the first release",
            fix=f"use a release; {page('docs/compatibility.md')} lists the releases that can be built",
        )
    require(tree, "CMakeLists.txt", what="AOTriton")
    require(tree, *_NEEDED[generator_in(tree) or "aotriton"], what="AOTriton")
    generation = generation_in(tree, release)
    if generation.refused:
        raise UnsupportedError(
            "aotriton-not-buildable",
            "this AOTriton cannot be built",
            why=f"it plans its kernels as {', '.join(generation.releases)}: {generation.refused}",
            fix=f"use another release; {page('docs/compatibility.md')} lists the releases that can be built",
        )
    return generation
