"""What an LLVM layer must hold for a given Triton, and whether an installed one does. The facts are data:
`llvm-config/components.toml`."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolchain import recipe
from toolchain.errors import ConfigError, ContractError, PinError, UnsupportedError

_LINE = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(?:\+[A-Za-z0-9.]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ORDER = ("filecheck", "lld", "clang")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a Triton wants from its LLVM.

    Args:
        projects: LLVM_ENABLE_PROJECTS.
        components: LLVM_DISTRIBUTION_COMPONENTS.
        tools: programs that must lie in the prefix's bin/.
        libtriton: libraries that Triton names for its Python module, without `lib` and `.a`, sorted.
        bin_tools: libraries that Triton names for the programs it always builds, alike.
        clang, lld, filecheck: whether those are among the above.
        keep, drop: globs; libraries of the tree that match `keep` and not `drop` are kept beside those named here.
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

    @property
    def roots(self) -> tuple[str, ...]:
        """All libraries that Triton names, sorted; the layer holds these and what they reach."""
        return tuple(sorted({*self.libtriton, *self.bin_tools}))


def needs_for(version: str | None, arch: str = "amd64") -> Needs:
    """The needs of a Triton version (`3.7.1`, `v3.7`), of a full Triton commit, or of no Triton in particular (None).

    None is for a release of LLVM: mlir, lld and FileCheck, no clang.

    Args:
        arch: OCI architecture that Triton will run on; decides which host code generator it links by name.

    Raises:
        UnsupportedError: a Triton or an architecture that the data does not hold.
        PinError: `version` is no version.
    """
    data = _data()
    if arch not in data["host"]:
        raise UnsupportedError(
            f"unknown architecture {arch!r}", why=f"known: {', '.join(data['host'])}", fix="give one of these"
        )
    extra: dict[str, Any] = {}
    wanted = data["unnamed"] if version is None else version.strip()
    if _COMMIT.fullmatch(wanted.lower()):
        extra = next((row for row in data["commit"] if row["commit"] == wanted.lower()), {})
        if not extra:
            raise UnsupportedError(
                f"what Triton {wanted} needs from LLVM is not on record",
                why="only releases and a few commits are",
                fix="give the release it is nearest to: --triton VERSION",
            )
        wanted = extra["like"]
    line = _line(wanted)
    rows = [row for row in data["triton"] if _line(row["from"]) <= line]
    if not rows or line > _line(data["last"]):
        known = f"known: {data['triton'][0]['from']} to {data['last']}"
        fix = f"use Triton {data['last']} or older" if rows else "use a newer Triton"
        raise UnsupportedError(f"what Triton {version} needs from LLVM is not on record", why=known, fix=fix)
    return _assemble(data, [*rows, extra], arch)


def missing_in(prefix: Path, needs: Needs) -> list[str]:
    """What an installed LLVM lacks, as paths below `prefix`, sorted; empty when nothing.

    Looks for the tools, the CMake packages, the headers and every library that Triton names. That the libraries
    also link is for the contract check to show.
    """
    packages = {"llvm": "LLVM", "mlir": "MLIR"} | ({"lld": "LLD"} if needs.lld else {})
    wanted = [f"lib/cmake/{low}/{name}Config.cmake" for low, name in packages.items()]
    wanted += [f"lib/lib{name}.a" for name in {*needs.libtriton, *needs.bin_tools}]
    missing = [name for name in wanted if not (prefix / name).is_file()]
    missing += [f"include/{low}" for low in packages if not (prefix / "include" / low).is_dir()]
    for tool in needs.tools:
        path = prefix / "bin" / tool
        if not (path.is_file() and os.access(path, os.X_OK)):
            missing.append(f"bin/{tool}")
    # clang finds its own headers beside itself; without them it compiles nothing.
    if needs.clang and not any(prefix.glob("lib/clang/*/include/stddef.h")):
        missing.append("lib/clang/*/include/stddef.h")
    return sorted(missing)


def check_prefix(prefix: Path, needs: Needs, *, consumer: str) -> None:
    """Refuse to build `consumer` (`Triton 3.8.0`) on an LLVM that lacks what it needs, before any long work.

    Raises:
        ContractError: with everything that is missing.
    """
    missing = missing_in(prefix, needs)
    if not missing:
        return
    shown = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
    parts = [name for name in ("clang", "lld") if getattr(needs, name) and any(name in entry for entry in missing)]
    what = f" without {' and '.join(parts)}" if parts else ""
    raise ContractError(
        f"{consumer} cannot be built on the LLVM in {prefix}{what}",
        why=f"missing: {shown}",
        fix=f"build the layer for it: projects {';'.join(needs.projects)}, as `toolchain build llvm --triton` does",
    )


def _assemble(data: dict[str, Any], rows: list[dict[str, Any]], arch: str) -> Needs:
    libtriton: set[str] = set()
    bin_tools: set[str] = set()
    features: set[str] = set()
    hosts: set[str] = set()
    for row in rows:
        libtriton = (libtriton | set(row.get("libtriton", ()))) - set(row.get("without", ()))
        bin_tools |= set(row.get("bin-tools", ()))
        features |= set(row.get("features", ()))
        hosts |= set(row.get("hosts", ()))
    if arch in hosts:
        libtriton |= {f"LLVM{data['host'][arch]}{part}" for part in ("CodeGen", "AsmParser")}
    parts = [data["base"], *(data["feature"][name] for name in _ORDER if name in features)]

    def joined(key: str) -> tuple[str, ...]:
        return tuple(entry for part in parts for entry in part.get(key, ()))

    return Needs(
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
    )


def _line(version: str) -> tuple[int, int]:
    found = _LINE.fullmatch(version)
    if not found:
        fix = "give a version such as 3.7.1 or a commit of 40 digits"
        raise PinError(f"{version!r} is no Triton version", why="it reads MAJOR.MINOR[.PATCH]", fix=fix)
    return int(found[1]), int(found[2])


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    path = recipe.root() / "llvm-config" / "components.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is unusable", why=str(error), fix="reinstall toolchain") from error
