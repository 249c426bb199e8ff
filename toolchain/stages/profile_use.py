"""A profile of LLVM and Triton at work on kernels: what it is of, whether it fits, and how a build uses it.

It is a source like others, `--source profile=FILE`: in locks, digests, SBOMs and provenance. It tells the compiler what
code runs often. It was made by running code, so it enters by `--allow-binary profile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.digest import sha256_file
from toolchain.core.errors import PinError, SourceError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.tree import Source, require

SOURCE = "profile"
DATA, ABOUT, CLANG = "llvm-triton.profdata", "profile.json", "clang"
FORMAT = 1
# What shapes an LLVM that counts, or that is made by a profile; the first is the folder of its Containerfile.
LLVM_RECIPE = ("containerfiles/llvm-profile", "llvm-config/profiled.cmake", "llvm-config/profiled-llvm.cmake")
TRITON_RECIPE = ("llvm-config/profiled.cmake", "llvm-config/profiled-triton.cmake")
_AGAIN = "make one: toolchain build profile, with the sources of this build"


def profile_source(request: Request) -> Source | None:
    """The profile that a request names, without any network.

    Raises:
        UnsupportedError: the request is for a base.
    """
    spec = request.sources.get(SOURCE)
    if spec is None:
        return None
    require_portable(request)
    return request.locate(SOURCE, spec)


def require_portable(request: Request) -> None:
    """Refuse a layer that is bound to a base: its recipe takes no profile and makes none.

    Raises:
        UnsupportedError: it is.
    """
    if not request.glibc:
        raise UnsupportedError(
            f"no profile is made or used on base {request.base}",
            why="profiles are only for the portable LLVM",
            fix="leave --base out",
        )


def about(llvm: Source, triton: Source, patches: Mapping[str, Sequence[Path]], **more: Any) -> dict[str, Any]:
    """The description that a profile carries."""
    return {"format": FORMAT, "llvm": _identity(llvm, patches), "triton": _identity(triton, patches), **more}


def check_profile(tree: Path, llvm: Source, patches: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Check that a profile is of this LLVM, and return its description.

    The recipe holds the compiler against it.

    Raises:
        SourceError: it is not a profile.
        PinError: it is of another LLVM.
    """
    require(tree, DATA, ABOUT, CLANG)
    try:
        facts: dict[str, Any] = strict_json.read((tree / ABOUT).read_bytes())
        known, of = facts["format"], facts["llvm"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError("this profile has no usable description", why=f"{ABOUT}: {error}", fix=_AGAIN) from error
    if known != FORMAT:
        raise SourceError(f"this profile has format {known!r}", why=f"this version reads {FORMAT}", fix=_AGAIN)
    if of != _identity(llvm, patches):
        raise PinError(
            f"this profile is not of {llvm.ref}",
            why=f"it is of {of.get('ref') if isinstance(of, dict) else of}; counts of other code are misleading",
            fix=f"leave --source {SOURCE} out, or {_AGAIN}",
        )
    return facts


def triton_options(profile: str | None) -> str:
    """CMake options for a Triton with instrumentation, or compiled by a profile.

    Args:
        profile: where its data are in the build; None lets it count.
    """
    hook = f"-DCMAKE_PROJECT_triton_INCLUDE=/recipe/{TRITON_RECIPE[-1]}"
    return f"{hook} -DTOOLCHAIN_PROFILE={profile or 'count'}"


def _identity(source: Source, patches: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    made = [sha256_file(path) for path in patches.get(source.name, ())]
    return {"ref": source.ref, "digest": source.digest, "patches": made}
