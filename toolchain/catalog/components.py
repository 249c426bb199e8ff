"""The parts of LLVM that each Triton needs, from llvm-config/components.toml, and checks of an LLVM against them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolchain.catalog.release_data import is_commit
from toolchain.core import recipe
from toolchain.core.errors import ContractError, PinError, UnsupportedError
from toolchain.core.filesystem import source_text
from toolchain.data import read_toml

_LINE = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]{1,4})?(?:\+[A-Za-z0-9.]+)?")
_ORDER = ("filecheck", "lld", "clang")
_STDDEF = re.compile(r"lib/clang/[^/]+/include/stddef\.h")
# These patterns in Triton's CMake files show which optional parts of LLVM Triton needs.
_ASKS = {
    "clang": re.compile(r"find_program\([^)]*\bclang\+\+"),
    "lld": re.compile(r"find_package\(\s*LLD\b"),
    "filecheck": re.compile(r"\bFileCheck\b"),
}


@dataclass(frozen=True, kw_only=True)
class LlvmRequirements:
    """The parts of LLVM that a Triton needs.

    Args:
        projects: the value of LLVM_ENABLE_PROJECTS.
        components: the value of LLVM_DISTRIBUTION_COMPONENTS.
        tools: the programs that bin/ in LLVM's prefix must contain.
        libtriton: the libraries that Triton's Python module links, without `lib` and `.a`, sorted.
        bin_tools: the libraries that Triton's command-line programs link, without `lib` and `.a`, sorted.
        clang, lld, filecheck: whether Triton needs clang, lld's libraries or the program FileCheck, respectively.
        keep: globs for libraries to keep in the layer even if Triton does not link them.
        drop: globs for libraries that are not kept although they match `keep`.
        serves: the version or commit of Triton.
        llvm: the major version of the LLVM that this Triton pins, `22` for 22.0.0git.
        since: the first major version of LLVM that installs all of these parts; 0 if every version does.
    """

    projects: tuple[str, ...]
    components: tuple[str, ...]
    tools: tuple[str, ...]
    libtriton: tuple[str, ...]
    bin_tools: tuple[str, ...]
    clang: bool
    lld: bool
    filecheck: bool
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    serves: str = ""
    llvm: int = 0
    since: int = 0

    @property
    def roots(self) -> tuple[str, ...]:
        """Return all libraries that Triton links directly, sorted; the layer also contains their dependencies."""
        return tuple(sorted({*self.libtriton, *self.bin_tools}))


def needs_for(version: str, arch: str = "amd64", *, features: Collection[str] = ()) -> LlvmRequirements:
    """Return the parts of LLVM that a Triton needs; raise an UnsupportedError if they or `arch` are unknown.

    Raise a PinError if `version` is neither a version nor a full commit.

    Args:
        version: a Triton version (`3.7.1`, `v3.7`) or a full commit.
        arch: the OCI architecture that Triton will run on, which decides the host code generator that Triton links.
        features: the features (see `features_of`) to add to those of the version.
    """
    data = _data()
    if arch not in data["host"]:
        raise UnsupportedError(
            "unknown-architecture",
            f"unknown architecture {arch!r}",
            why=f"known: {', '.join(data['host'])}",
            fix="use one of these",
        )
    extra: dict[str, Any] = {}
    wanted = version.strip()
    if is_commit(wanted.lower()):
        extra = next((row for row in data["commit"] if row["commit"] == wanted.lower()), {})
        if not extra:
            raise UnsupportedError(
                "triton-needs-unknown",
                f"the parts of LLVM that Triton {wanted} needs are unknown",
                why="they are known only for releases and a few commits",
                fix="give the release that is closest to this commit: --triton VERSION",
            )
        wanted = extra["like"]
    line = _line(wanted)
    rows = [row for row in data["triton"] if _line(row["from"]) <= line]
    if not rows or line > _line(data["last"]):
        known = f"known: {data['triton'][0]['from']} to {data['last']}"
        older = f"use Triton {data['last']} or older, or raise `last` in llvm-config/components.toml"
        fix = older if rows else "use a newer Triton"
        raise UnsupportedError(
            "triton-needs-unknown", f"the parts of LLVM that Triton {version} needs are unknown", why=known, fix=fix
        )
    return replace(_assemble(data, [*rows, extra, {"features": sorted(features)}], arch), serves=version.strip())


def line_of(version: str) -> str:
    """Return the minor version of a Triton (`3.7` for `3.7.1`) or, for a known commit, of the most similar release.

    Raise a PinError if `version` is neither a version nor a known commit.
    """
    extra = next((row for row in _data()["commit"] if row["commit"] == version.lower()), None)
    major, minor = _line(extra["like"] if extra else version)
    return f"{major}.{minor}"


def newest_triton_on(llvm: int) -> str:
    """Return the newest Triton, such as `3.5`, for a major version of LLVM; raise UnsupportedError if there is none."""
    rows = _data()["llvm"]
    for row in rows:
        if row["version"] == llvm:
            return str(row["triton"])
    older = llvm < rows[0]["version"]
    edge = rows[0] if older else rows[-1]
    raise UnsupportedError(
        "llvm-unfit",
        f"LLVM {llvm} is too {'old' if older else 'new'} for every known Triton",
        why=f"the {'oldest' if older else 'newest'} usable LLVM is {edge['version']}, for Triton {edge['triton']}",
        fix=f"use an LLVM from {rows[0]['version']} to {rows[-1]['version']}",
    )


def fitting_llvms(needs: LlvmRequirements) -> tuple[int, ...]:
    """Return the major versions of LLVM on which a Triton may be tried.

    These are the versions released just before and just after the commit that the Triton pins, without a version that
    lacks a library that the Triton links.
    """
    return tuple(version for version in (needs.llvm - 1, needs.llvm) if version >= needs.since)


def check_generation(needs: LlvmRequirements, llvm: int, *, where: str) -> None:
    """Raise an UnsupportedError if the major version `llvm` is too old or too new for a Triton."""
    fitting = fitting_llvms(needs)
    if llvm in fitting:
        return
    own, named = needs.llvm, " or ".join(map(str, fitting)) or f"{needs.since} or newer"
    how = "old" if llvm <= own else "new"
    what = f"{where} is too {how} for Triton {needs.serves}: LLVM {llvm}, not {named}"
    if llvm in {own - 1, own}:
        raise UnsupportedError(
            "llvm-unfit",
            what,
            why=f"this Triton links libraries of LLVM, MLIR or lld that LLVM installs only since version {needs.since}",
            fix=f"use LLVM {named}",
        )
    raise UnsupportedError(
        "llvm-unfit",
        what,
        why=f"Triton {needs.serves} pins a commit of LLVM between the releases {own - 1} and {own}",
        fix=f"use LLVM {named}, or {_tritons_for(llvm)}",
    )


def _tritons_for(llvm: int) -> str:
    try:
        return f"Triton {newest_triton_on(llvm)} for this LLVM"
    except UnsupportedError:
        return "another Triton, although no known version fits this LLVM"


def features_of(checkout: Path) -> frozenset[str]:
    """Return the features (`clang`, `lld`, `filecheck`) that a checkout of Triton needs in its LLVM.

    The features are read from the CMake files, because the version number of a development branch may be outdated.
    """
    features = set()
    for path in sorted(checkout.rglob("CMakeLists.txt")):
        text = source_text(checkout, os.fspath(path.relative_to(checkout)))
        features |= {feature for feature, asks in _ASKS.items() if asks.search(text)}
    return frozenset(features)


def missing_in(files: Collection[str], needs: LlvmRequirements) -> list[str]:
    """Return what an LLVM lacks for a Triton, as sorted paths or globs below its prefix.

    Args:
        files: the files of the LLVM, as paths below its prefix.
    """
    packages = {"llvm": "LLVM", "mlir": "MLIR"} | ({"lld": "LLD"} if needs.lld else {})
    wanted = [f"lib/cmake/{low}/{name}Config.cmake" for low, name in packages.items()]
    wanted += [f"lib/lib{name}.a" for name in {*needs.libtriton, *needs.bin_tools}]
    wanted += [f"bin/{tool}" for tool in needs.tools]
    missing = [name for name in wanted if name not in files]
    tops = {name.split("/")[1] for name in files if name.startswith("include/")}
    missing += [f"include/{low}" for low in packages if low not in tops]
    # Without its own headers, such as stddef.h, clang cannot compile most programs.
    if needs.clang and not any(_STDDEF.fullmatch(name) for name in files):
        missing.append("lib/clang/*/include/stddef.h")
    return sorted(missing)


def check_files(files: Collection[str], needs: LlvmRequirements, *, where: str, consumer: str) -> None:
    """Raise a ContractError if an LLVM with `files`, paths below its prefix, lacks a file that a Triton needs."""
    missing = missing_in(files, needs)
    if not missing:
        return
    shown = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
    parts = [name for name in ("clang", "lld") if getattr(needs, name) and any(name in entry for entry in missing)]
    what = f" without {' and '.join(parts)}" if parts else ""
    raise ContractError(
        "llvm-layer-unfit",
        f"{consumer} cannot be built on the LLVM in {where}{what}",
        why=f"missing: {shown}",
        fix=f"use an LLVM with the projects {';'.join(needs.projects)}; `toolchain build llvm --triton` builds one",
    )


def _assemble(data: dict[str, Any], rows: list[dict[str, Any]], arch: str) -> LlvmRequirements:
    libtriton: set[str] = set()
    bin_tools: set[str] = set()
    features: set[str] = set()
    hosts: set[str] = set()
    llvm = since = 0
    for row in rows:
        llvm, since = row.get("llvm", llvm), max(since, row.get("since", 0))
        libtriton = (libtriton | set(row.get("libtriton", ()))) - set(row.get("without", ()))
        bin_tools |= set(row.get("bin-tools", ()))
        features |= set(row.get("features", ()))
        hosts |= set(row.get("hosts", ()))
    if arch in hosts:
        libtriton |= {f"LLVM{data['host'][arch]}{part}" for part in ("CodeGen", "AsmParser")}
    parts = [data["base"], *(data["feature"][name] for name in _ORDER if name in features)]

    def joined(key: str) -> tuple[str, ...]:
        return tuple(entry for part in parts for entry in part.get(key, ()))

    return LlvmRequirements(
        projects=joined("projects"),
        components=joined("components"),
        tools=joined("tools"),
        libtriton=tuple(sorted(libtriton)),
        bin_tools=tuple(sorted(bin_tools)),
        clang="clang" in features,
        lld="lld" in features,
        filecheck="filecheck" in features,
        keep=tuple(data["libraries"]["keep"]),
        drop=tuple(data["libraries"]["drop"]),
        llvm=llvm,
        since=max([since, *(part.get("since", 0) for part in parts)]),
    )


def _line(version: str) -> tuple[int, int]:
    match = _LINE.fullmatch(version)
    if not match:
        fix = "give a version such as 3.7.1 or a commit of 40 digits"
        raise PinError(
            "not-a-triton-version",
            f"{version!r} is not a Triton version",
            why="a version has the form MAJOR.MINOR[.PATCH]",
            fix=fix,
        )
    return int(match[1]), int(match[2])


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return read_toml(recipe.root() / "llvm-config" / "components.toml")
