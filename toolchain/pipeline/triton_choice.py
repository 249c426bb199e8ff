"""Decide which Triton and which LLVM to build, from the options and the lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.catalog.aotriton_generations import release_of
from toolchain.catalog.pin_files import AOTRITON_SUBMODULE, pin_files, read_pin
from toolchain.catalog.release_data import LlvmPin, TritonRelease, is_commit
from toolchain.catalog.releases import aotriton_release, is_version, newest_patch, triton_at, triton_release
from toolchain.catalog.stages import involves
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, PinError, UnsupportedError
from toolchain.sources.pypi import pypi_row
from toolchain.sources.resolve import locate
from toolchain.sources.spec import SourceSpec, of_folder, of_github, parse_source_spec, users_path
from toolchain.stages.triton_origin import AMD_FORK
from toolchain.stages.triton_tree import compare, gitlink_of, head_of, older_than_backends, submodule_url

if TYPE_CHECKING:
    from toolchain.pipeline.lockfile import Lock

_MARKS = ("setup.py", "python/setup.py", "CMakeLists.txt", "third_party")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options that decide which Triton and which LLVM are built.

    Args:
        target: the requested stage; empty if no stage is requested.
        triton: the value of `--triton`: a version, a commit, a folder or a pin file; None if it is not given. After
            `resolve_triton` it is a version, a commit or None.
        aotriton: the release that `--aotriton` names; None if it is not given.
        sources: the values of `--source`, by the name of the source.
        notes: lines for display: the decisions that no option made, and the warnings about a pin file's LLVM.
    """

    target: str
    triton: str | None = None
    aotriton: str | None = None
    sources: Mapping[str, SourceSpec] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def noting(self, note: str, **changes: object) -> Choice:
        """Return a copy of the choice with these changes and one more note."""
        return replace(self, notes=(*self.notes, note), **changes)  # type: ignore[arg-type]


def resolve_triton(choice: Choice, *, lock: Lock | None, cache: Cache) -> Choice:
    """Return the choice with `triton` as a version, a commit or None.

    A folder that `--triton` names becomes Triton's source, and a pin file becomes LLVM's source unless `--source llvm`
    is given. PinError is raised if `--triton` names no Triton, if the Triton of `--source aotriton` is unknown, or if
    two options contradict each other. UnsupportedError is raised for an unknown release, and ConfigError if the lock
    names no valid Triton.

    Args:
        lock: the lock whose Triton is used if no option names one; None without a lock.
    """
    if lock is not None:
        choice = _as_locked(choice, lock)
    choice = _as_released(choice, cache)
    if choice.triton is None:
        return choice if lock is not None else _unnamed(choice, Path.cwd())
    text = choice.triton.strip()
    if is_version(text):
        choice = _as_version(choice, text)
    elif is_commit(text.lower()):
        choice = replace(choice, triton=text.lower())
    elif text and os.path.lexists(users_path(text)):
        return _as_path(choice, users_path(text), cache)
    else:
        raise PinError(
            "not-a-triton",
            f"--triton {choice.triton!r} does not name a Triton",
            why="it is neither a version such as 3.7.1 nor a commit of 40 digits, and no file or folder has this name",
            fix="give a version, a commit or the folder of a checkout",
        )
    _compare(choice, cache)
    # If `--source triton` is given too, a commit in `--triton` is dropped, because the source alone identifies Triton.
    return replace(choice, triton=None) if is_commit(str(choice.triton)) and "triton" in choice.sources else choice


def doubts(choice: Choice) -> tuple[str, ...]:
    """Return the warnings about the LLVM that the chosen release of AOTriton or Triton pins, each as a line.

    The result is empty if no known release is chosen. It is also empty if that LLVM is not built, because an option
    names another LLVM or a wheel of Triton, or because the target needs no LLVM.
    """
    triton = choice.sources.get("triton")
    if "llvm" in choice.sources or (triton is not None and triton.wheel) or not involves(choice.target, "llvm"):
        return ()
    with contextlib.suppress(PinError, UnsupportedError):  # an unknown release is refused later, with advice
        if choice.aotriton:
            return aotriton_release(choice.aotriton).pin.warnings
        if choice.triton and is_version(choice.triton):
            return triton_release(choice.triton).pin.warnings
    return ()


def _as_locked(choice: Choice, lock: Lock) -> Choice:
    """Return the choice with the Triton, the AOTriton and the sources in the lock.

    A source that an option names takes precedence over the lock's. If an option names a Triton or a release of
    AOTriton, the choice is returned unchanged, because a later check compares it with the lock.
    """
    if choice.triton or choice.aotriton or "triton" in choice.sources:
        return choice
    held = lock.request
    texts = {name: str(text) for name, text in dict(held.get("source", {})).items() if text != "PATH"}
    specs = {name: parse_source_spec(text, project=name) for name, text in texts.items()}
    version, release = held.get("triton"), held.get("aotriton")
    if version is not None and not (is_version(str(version)) or is_commit(str(version))):
        raise ConfigError(
            "lock-triton-invalid",
            f"the lock was made for --triton {version!r}",
            why="the value is neither a version nor a commit",
            fix="make the lock again: toolchain lock",
        )
    return replace(choice, triton=version, aotriton=release, sources={**specs, **choice.sources})


def _as_released(choice: Choice, cache: Cache) -> Choice:
    """Return the choice with the Triton that belongs to the AOTriton of `--source aotriton`.

    If that source is at the commit of a release, the choice gets the release; otherwise see `_as_submodule`. Return the
    choice unchanged without such a source, if another option decides the Triton, or if the source is at no release and
    the target needs no Triton.
    """
    spec = choice.sources.get("aotriton")
    if spec is None or choice.aotriton or choice.triton is not None or "triton" in choice.sources:
        return choice
    tree = _tree(spec, cache, "aotriton")
    release = release_of(spec.version if spec.kind == "git" else head_of(tree) if tree is not None else "")
    if release:
        return choice.noting(
            f"--source aotriton is at the commit of release {release}, whose Triton is used", aotriton=release
        )
    return _as_submodule(choice, spec, tree) if involves(choice.target, "triton") else choice


def _as_submodule(choice: Choice, spec: SourceSpec, tree: Path | None) -> Choice:
    """Return the choice with the submodule of AOTriton as the source of Triton.

    The source is the submodule's folder if it is checked out, and otherwise the submodule's commit; PinError is raised
    if the commit is unknown.
    """
    if tree is not None and (tree / AOTRITON_SUBMODULE).is_dir() and any((tree / AOTRITON_SUBMODULE).iterdir()):
        own = of_folder(tree / AOTRITON_SUBMODULE)
        return choice.noting(
            f"Triton is the submodule {AOTRITON_SUBMODULE} of --source aotriton={spec}",
            sources={**choice.sources, "triton": own},
        )
    commit = gitlink_of(tree, AOTRITON_SUBMODULE) if tree is not None else ""
    url = submodule_url(tree, AOTRITON_SUBMODULE) if tree is not None else ""
    if not commit or url == "":
        why = f"{AOTRITON_SUBMODULE} is empty, and git lists no commit for it" if tree else "its tree is not here yet"
        if commit:
            why = "the URL of its submodule is relative, and the checkout has no remote `origin` to which it leads"
        raise PinError(
            "aotriton-triton-unknown",
            f"the Triton of --source aotriton={spec} is unknown",
            why=f"it is not at the commit of a known release, and {why}",
            fix=f"name it: --source triton=URL@COMMIT, as `git ls-tree HEAD {AOTRITON_SUBMODULE}` in AOTriton shows it",
        )
    url = (url or AMD_FORK).removesuffix(".git")
    # AMD's repositories moved on GitHub. The old address redirects to the new one, which replaces it here.
    url = url.replace("github.com/ROCmSoftwarePlatform/", "github.com/ROCm/")
    return choice.noting(
        f"Triton is {commit} of {url}, the submodule {AOTRITON_SUBMODULE} of --source aotriton={spec}",
        sources={**choice.sources, "triton": parse_source_spec(f"{url}@{commit}", project="triton")},
    )


def _unnamed(choice: Choice, folder: Path) -> Choice:
    """Return the choice, with a note if the current folder contains a pin file that is not used.

    A pin file is used only if the user names it or its folder. The choice is returned without a note if the target
    needs no LLVM, or if `--aotriton`, `--source triton` or, for the target `llvm`, `--source llvm` is given.
    """
    named = {"triton", "llvm"} if choice.target == "llvm" else {"triton"}
    found = pin_files(folder)
    if not found or not involves(choice.target, "llvm") or choice.aotriton or choice.sources.keys() & named:
        return choice
    pin, checkout = found[0].relative_to(folder), _is_checkout(folder)
    if not checkout and choice.target != "llvm":
        return choice.noting(f"./{pin} names an LLVM and no Triton; it is not used")
    return choice.noting(
        f"./{pin} is not used, because no option names it; to use it: --triton {'.' if checkout else pin}"
    )


def _is_checkout(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _MARKS)


def _by_pin(choice: Choice, pin: LlvmPin) -> Choice:
    """Return the choice with the LLVM in a pin file as a source, and with the Triton that is known to pin this LLVM.

    If no such Triton is known, `triton` is None.
    """
    return replace(
        choice,
        triton=triton_at(pin.commit),
        sources={**choice.sources, "llvm": of_github(pin.repository, pin.commit)},
    )


def _as_version(choice: Choice, text: str) -> Choice:
    row = newest_patch(text)
    if not row.backends and involves(choice.target, "triton") and "triton" not in choice.sources:
        raise older_than_backends(f"{row.title} cannot be built here")  # whichever LLVM is given
    if involves(choice.target, "llvm") and "llvm" not in choice.sources:
        triton_release(row.version)  # this raises an error if the release's LLVM is unknown
    if row.version != text.removeprefix("v"):
        return choice.noting(f"Triton {text} is {row.version}, the newest known patch release", triton=row.version)
    return replace(choice, triton=row.version)


def _as_path(choice: Choice, path: Path, cache: Cache) -> Choice:
    """Return the choice after resolving a path that `--triton` names: a folder or a pin file.

    A folder becomes the source of Triton, as with `--source triton=FOLDER`. With a pin file, `triton` becomes the known
    Triton that pins the same LLVM, or None. Unless `--source llvm` is given, the file also decides the source of LLVM,
    and a release of AOTriton, which must pin the same LLVM, is dropped.
    """
    if path.is_dir():
        return _as_folder(choice, path, cache)
    if choice.target not in {"llvm", "base"} and path.exists():
        raise PinError(
            "not-a-triton",
            f"--triton {path} does not name a Triton",
            why="a file is the pin of an LLVM, which does not determine a Triton",
            fix="give a version, a commit or the folder of a checkout; a pin file is only for `llvm`",
        )
    pin = read_pin(path)
    for name, llvm in _llvm_named(choice, cache):
        if llvm != pin.commit:
            raise _two(f"--triton {path}", name, f"LLVM {pin.commit}", f"LLVM {llvm}")
    if "llvm" in choice.sources:
        return replace(choice, triton=_by_pin(choice, pin).triton)
    return replace(_by_pin(choice, pin), aotriton=None, notes=(*choice.notes, *pin.warnings))


def _llvm_named(choice: Choice, cache: Cache) -> list[tuple[str, str]]:
    """Return each option other than `--triton` that decides the LLVM, with the LLVM.

    The LLVM is a commit, the ref of a source without a commit, or `not known` if Triton's source must be fetched first.
    """
    named = []
    if spec := choice.sources.get("llvm"):
        named.append(("--source llvm", locate("llvm", spec, cache=cache).ref))
    if choice.aotriton:
        named.append(("--aotriton", aotriton_release(choice.aotriton).llvm))
    if spec := choice.sources.get("triton"):
        path = _tree(spec, cache)
        named.append(("--source triton", read_pin(path).commit if path else "not known"))
    return named


def _as_folder(choice: Choice, path: Path, cache: Cache) -> Choice:
    if not pin_files(path) and not _is_checkout(path):
        raise PinError(
            "not-a-triton",
            f"--triton {path} is not a checkout of Triton",
            why="it contains neither Triton's files nor an LLVM pin",
            fix="name the top folder of a checkout, a version or a commit",
        )
    source = choice.sources.get("triton")
    if source is not None and _tree(source, cache) != path.absolute():
        raise _two(f"--triton {path}", "--source triton", str(path), str(source))
    if choice.aotriton:
        carried, head = aotriton_release(choice.aotriton, allow_unknown=True).triton, head_of(path)
        if not head or head != carried:
            first, second = head or "no commit", carried or "not known"
            raise _two(f"--triton {path}", f"--aotriton {choice.aotriton}", first, second, f"{_ANOTHER}{path}")
    return replace(choice, triton=None, sources={**choice.sources, "triton": of_folder(path)})


def _compare(choice: Choice, cache: Cache) -> None:
    """Raise PinError if `--triton` contradicts the source of Triton or, without one, the named release of AOTriton."""
    if spec := choice.sources.get("triton"):
        _compare_source(str(choice.triton), spec, cache, llvm="llvm" not in choice.sources)
    elif choice.aotriton:
        _compare_release(str(choice.triton), choice.aotriton)


def _compare_source(wanted: str, spec: SourceSpec, cache: Cache, *, llvm: bool) -> None:
    row, name = _row(wanted), f"--source triton={spec}"
    if spec.kind == "pypi":
        version = spec.version or pypi_row(spec.where, "").version
        if row is None or row.version != version:
            raise _two(f"--triton {wanted}", name, wanted, f"the wheel of {version}")
    elif spec.kind == "git" and is_commit(wanted):
        if spec.version != wanted:
            raise _two(f"--triton {wanted}", name, wanted, spec.version)
    elif spec.kind == "git":
        _compare_commit(wanted, row, spec.version, name)
    elif (tree := _tree(spec, cache)) is not None:
        compare(tree, wanted, name=name, llvm=llvm)


def _compare_commit(wanted: str, row: TritonRelease | None, commit: str, name: str) -> None:
    """Raise PinError if the table of releases shows that a commit of Triton is not the wanted Triton.

    The tree of the commit is compared later, after it is fetched. `row` is the release that `wanted` names; None if
    the release is unknown.
    """
    if row is None or commit in {row.commit, *row.candidates}:
        return
    known = _row(commit)
    differs = known is not None and known.llvm != row.llvm
    if differs or row.commit_certainty == "verified":
        raise _two(
            f"--triton {wanted}",
            name,
            f"LLVM {row.llvm}" if differs else row.commit,
            known.title if known and differs else commit,
        )


def _compare_release(wanted: str, release: str) -> None:
    carried = aotriton_release(release, allow_unknown=True).triton
    row = _row(wanted)
    commit = wanted if is_commit(wanted) else row.commit if row is not None else ""
    if not carried or commit != carried:
        theirs = carried or "an unknown commit"
        first = commit or f"upstream's tag v{wanted}"
        raise _two(f"--triton {wanted}", f"--aotriton {release}", first, theirs, f"{_ANOTHER}URL@COMMIT")


def _row(wanted: str) -> TritonRelease | None:
    try:
        return triton_release(wanted, allow_unknown=True)
    except UnsupportedError:
        return None  # the table of releases does not contain this Triton


def _tree(spec: SourceSpec, cache: Cache, name: str = "triton") -> Path | None:
    """Return the folder that a source names; None if the source must be fetched or unpacked first."""
    if spec.kind not in {"local", "stored"}:
        return None
    path = locate(name, spec, cache=cache).path
    return path if path is not None and path.is_dir() else None


# This is the end of the advice on building a release of AOTriton with another Triton.
_ANOTHER = "; for the release with another Triton, --source triton="


def _two(first: str, second: str, first_value: str, second_value: str, also: str = "") -> PinError:
    return PinError(
        "options-differ",
        f"{first} and {second} differ",
        why=f"the first is {first_value}, and the second is {second_value}",
        fix=f"leave one of them out{also}",
    )
