"""Read a Triton tree's version, commit, C++ bindings and other facts, and check that the tree matches the request."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.catalog.codegen import Codegen
from toolchain.catalog.components import needs_for
from toolchain.catalog.pin_files import pin_files, read_pin
from toolchain.catalog.release_data import is_commit
from toolchain.catalog.releases import newest_patch
from toolchain.core import process
from toolchain.core.errors import PinError, SourceError, UnsupportedError
from toolchain.core.filesystem import source_text
from toolchain.core.process import CommandError
from toolchain.request.model import Request
from toolchain.sources.spec import of_github
from toolchain.sources.tree import Source, require
from toolchain.stages.llvm_version import major_of

_INIT = "python/triton/__init__.py"
# These are the possible paths of setup.py.
_SETUPS = ("setup.py", "python/setup.py")
_HELPERS = "python/build_helpers.py"
_PATIENCE = 60.0  # seconds for one git command; a pipe in `.git` would block it for ever
_LONGEST = 1000  # characters of a text that is read from setup.py, because few lines can double a text to gigabytes
_LARGEST = 10**6  # the limit for a number that is read from setup.py, for the same reason
_BACKENDS = ("third_party/amd", "third_party/nvidia")
# The recipes pass packages to setup.py in these environment variables, so that it does not download the packages.
_SERVED = frozenset({"JSON_SYSPATH", "LLVM_SYSPATH", "PYBIND11_SYSPATH"})
_SAYS = re.compile(r"""^__version__\s*=\s*["'](\d+\.\d+(?:\.\d+)?)""", re.MULTILINE)


def version_in(tree: Path) -> str:
    """Return the version that a tree of Triton states, such as `3.7.1`, or an empty string if it states none."""
    match = _SAYS.search(_text(tree, _INIT))
    return match[1] if match else ""


def setup_text(tree: Path) -> str:
    """Return the text of a tree's setup.py, at the top or in `python/`, or an empty string if there is none."""
    return next((text for name in _SETUPS if (text := _text(tree, name))), "")


def require_tree(tree: Path, name: str) -> None:
    """Raise an error unless a tree of Triton has setup.py, CMakeLists.txt, both backends and the needed submodules."""
    if tree.is_file():
        raise SourceError(
            "not-a-source-tree",
            f"{name} is not a source tree of Triton",
            fix="give a folder, a tar archive or a commit",
        )
    if not any((tree / setup).is_file() for setup in _SETUPS):
        raise SourceError(
            "source-incomplete",
            f"the source tree of Triton has no setup.py: {name}",
            why=f"looked for {' and '.join(_SETUPS)}",
            fix="give the top folder of a complete checkout or archive",
        )
    require_backends(tree)
    require(tree, "CMakeLists.txt")
    cmake = _text(tree, "CMakeLists.txt")
    read = [*_BACKENDS, *(folder for folder in submodules_of(tree) if f"add_subdirectory({folder}" in cmake)]
    if empty := [folder for folder in read if _is_empty(tree, folder)]:
        raise SourceError(
            "submodules-missing",
            f"submodules of this Triton are not checked out: {', '.join(dict.fromkeys(empty))}",
            why="their folders are empty or missing, and Triton's build reads them",
            fix="check them out: git submodule update --init",
        )


def require_backends(tree: Path) -> None:
    """Raise UnsupportedError if a tree of Triton lacks a backend; every Triton since January 2024 has both."""
    if missing := [backend for backend in _BACKENDS if not os.path.lexists(tree / backend)]:
        raise older_than_backends(f"this Triton has no {' and no '.join(missing)}")


def older_than_backends(what: str) -> UnsupportedError:
    """Return the error for a Triton from before both backends were in its tree."""
    return UnsupportedError(
        "triton-too-old",
        what,
        why="the recipes build the AMD and the NVIDIA backend, which have been in Triton's tree since January 2024",
        fix="use Triton 3.0 or newer, or build only the LLVM of this one: toolchain build llvm --triton VERSION|PATH",
    )


def _is_empty(tree: Path, folder: str) -> bool:
    """Return whether a folder of the tree is empty or missing; False for an absolute path or one with `..`."""
    path = tree / folder
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        return False
    return not path.is_dir() or not any(path.iterdir())


def check_setup(tree: Path) -> None:
    """Raise SourceError if a tree's setup.py would download packages that the recipes do not provide."""
    named = set(re.findall(r"""["']([A-Z0-9_]+_SYSPATH)["']""", setup_text(tree) + _text(tree, _HELPERS)))
    if unknown := sorted(named - _SERVED):
        packages = ", ".join(name.removesuffix("_SYSPATH").lower() for name in unknown)
        raise SourceError(
            "build-would-download",
            f"building this Triton would download {packages}",
            why=f"its setup.py reads {', '.join(unknown)}, which the tool's recipes do not set",
            fix="use an older Triton; containerfiles/triton/setup.sh sets the variables for the known packages",
        )


def python_requires(tree: Path) -> str:
    """Return the `python_requires` of a tree's setup.py, or an empty string if none can be read without running it."""
    try:
        module = ast.parse(setup_text(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: it nests too deeply
        return ""
    values: dict[str, Any] = {}
    try:
        for statement in module.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _value(statement.value, values)
        calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
        words = (word for call in calls for word in call.keywords if word.arg == "python_requires")
        value = next((_value(word.value, values) for word in words), None)
    except RecursionError:
        return ""
    return value if isinstance(value, str) else ""


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression in setup.py, without running code.

    The expression may be a literal, a name, a tuple, a subscript such as `MIN[0]`, a sum such as `MAX[1] + 1`, or an
    f-string of these. Return None if the value cannot be determined.
    """
    result: Any = None
    match node:
        case ast.Constant(value=result):
            pass
        case ast.Name(id=name):
            result = values.get(name)
        case ast.Tuple(elts=parts):
            result = tuple(_value(part, values) for part in parts)
        case ast.Subscript(value=of, slice=ast.Constant(value=int(index))):
            row = _value(of, values)
            result = row[index] if isinstance(row, tuple) and index < len(row) else None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            terms = _value(left, values), _value(right, values)
            result = terms[0] + terms[1] if all(_is_short(term) and isinstance(term, int) for term in terms) else None
        case ast.JoinedStr(values=parts):
            texts = [_value(part.value if isinstance(part, ast.FormattedValue) else part, values) for part in parts]
            text = "".join(map(str, texts)) if all(map(_is_short, texts)) else ""
            result = text if text and len(text) <= _LONGEST else None
    return result


def _is_short(value: Any) -> bool:
    """Return whether a value is a text or a small number; few lines can nest tuples, or add numbers, without limit."""
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < _LARGEST)


@dataclass(frozen=True, kw_only=True)
class Bindings:
    """The C++ bindings between Triton and Python.

    Args:
        project: the Python project that provides the bindings to the build: `pybind11` or `nanobind`.
        stable: whether one wheel supports Python 3.12 and all later ones.
    """

    project: str = "pybind11"
    stable: bool = False

    def projects(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return `names`, sorted, with `project` in place of pybind11."""
        return tuple(sorted(self.project if name == "pybind11" else name for name in names))


def bindings_of(tree: Path) -> Bindings:
    """Return the bindings that a tree's build files name, by default pybind11; the files are not run."""
    text = "\n".join(_text(tree, name) for name in ("pyproject.toml", "python/pyproject.toml"))
    nanobind = re.search(r"""["']nanobind\b""", text) is not None
    return Bindings(project="nanobind" if nanobind else "pybind11", stable="TRITON_STABLE_ABI" in setup_text(tree))


def check_no_download(tree: Path, rules: Sequence[Codegen]) -> None:
    """Raise SourceError if a tree's build would download a code generator library instead of using the tool's.

    This is assumed unless the tree's build files name both environment variables that prevent the download.
    """
    files = (*_SETUPS, _HELPERS, "CMakeLists.txt")
    text = "\n".join(_text(tree, name) for name in files)
    for rule in rules:
        lacking = [name for name in (rule.variable, "TRITON_OFFLINE_BUILD") if name not in text]
        if lacking:
            raise SourceError(
                "build-would-download",
                f"building this Triton would download {rule.library}",
                why=f"its {rule.pin_file} pins its LLVM, and none of {', '.join(files)} reads {' and '.join(lacking)}",
                fix="use another Triton, or correct the row in toolchain/data/codegen.toml",
            )


def _text(tree: Path, name: str) -> str:
    try:
        return source_text(tree, name)
    except SourceError:
        return ""


def head_of(tree: Path) -> str:
    """Return the commit of a checkout, or an empty string if the tree is not a checkout or git cannot read it."""
    printed = _git(tree, "rev-parse", "--verify", "HEAD")
    return printed if is_commit(printed) else ""


def gitlink_of(tree: Path, folder: str) -> str:
    """Return the commit that a checkout's HEAD names for the submodule in `folder`, or an empty string.

    The string is empty if HEAD names no commit for the folder, if the tree is not a checkout, or if git fails.
    """
    words = _git(tree, "ls-tree", "HEAD", "--", folder).split()
    return words[2] if len(words) == 4 and words[:2] == ["160000", "commit"] and is_commit(words[2]) else ""


def submodules_of(tree: Path) -> dict[str, str]:
    """Return the URLs of the submodules in a tree's .gitmodules, by folder, without running git."""
    found: dict[str, str] = {}
    for section in re.split(r"(?m)^[ \t]*\[", _text(tree, ".gitmodules"))[1:]:
        values = dict(re.findall(r"(?m)^[ \t]*(path|url)[ \t]*=[ \t]*(\S+)[ \t]*$", section))
        if section.startswith("submodule") and {"path", "url"} <= values.keys():
            found[values["path"]] = values["url"]
    return found


def submodule_url(tree: Path, folder: str) -> str | None:
    """Return the URL of a submodule of a checkout; None if .gitmodules does not list the submodule.

    As in git, a URL that begins with `./` or `../` is relative to the URL of the remote `origin`. The result is an
    empty string if such a URL leads nowhere, for example because there is no such remote.
    """
    url = submodules_of(tree).get(folder)
    if url is None:
        return None
    if not url.startswith(("./", "../")):
        return _with_scheme(url)
    base = _git(tree, "config", "--get", "remote.origin.url").rstrip("/")
    if base and ":" not in base:
        base = os.path.normpath(tree.absolute() / base)
    scheme, sign, rest = _with_scheme(base).partition("://")
    parts = rest.split("/")
    while url.startswith(("./", "../")):
        dots, _, url = url.partition("/")
        parts = parts[: len(parts) - (dots == "..")]
    # The first part is the host, which is empty for a file.
    return f"{scheme}{sign}{'/'.join([*parts, url])}" if sign and parts else ""


def _with_scheme(url: str) -> str:
    """Return a path as a file URL, and git's short form `USER@HOST:PATH` as an ssh URL."""
    match = re.fullmatch(r"((?:[\w.\-]+@)?[\w.\-]+):(?!//)/*(.+)", url)
    return f"ssh://{match[1]}/{match[2]}" if match else f"file://{url}" if url.startswith("/") else url


def _git(tree: Path, *words: str) -> str:
    """Return the output of a git command, or an empty string if the tree is not a checkout or git fails."""
    if not (tree / ".git").exists():
        return ""
    # git reads the checkout's own configuration, which may be hostile. In a partial clone git fetches missing objects
    # from the remote in the configuration, and `ext::` or `remote.*.uploadpack` there can run a command.
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": "none"}
    fixed = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    try:
        argv = ["git", *fixed, "-C", os.fspath(tree.absolute()), *words]
        return process.run(argv, env=env, capture=True, timeout=_PATIENCE).stdout.strip()
    except CommandError:
        return ""


def compare(tree: Path, wanted: str, *, name: str, llvm: bool) -> None:
    """Raise PinError if a tree is not the Triton that `--triton` names, or if nothing in it shows that it is.

    Args:
        wanted: the version or the commit that `--triton` names.
        llvm: whether to compare the LLVM pin too; it is not compared if the user names an LLVM.
    """
    rows = _facts(tree, wanted, llvm=llvm)
    fix = "leave out one of the two; without --triton, the tree is built as it is, on the LLVM that it pins"
    if not rows:
        what = "its commit" if is_commit(wanted) else "its version or its LLVM"
        raise PinError(
            "triton-version-unproved",
            f"nothing shows that {name} is Triton {wanted}",
            why=f"the tree does not state {what}",
            fix=fix,
        )
    for actual, expected, what in rows:
        if actual != expected:
            why = f"{what} of the tree is {actual}, and {what} of Triton {wanted} is {expected}"
            raise PinError(
                "triton-version-differs",
                f"--triton {wanted} and {name} refer to different Triton versions",
                why=why,
                fix=fix,
            )


def _facts(tree: Path, wanted: str, *, llvm: bool) -> list[tuple[str, str, str]]:
    """Return triples of a value in the tree, the expected value, and the name of the value.

    Values that the tree or the tool's data does not contain are omitted.
    """
    if is_commit(wanted):
        head = head_of(tree)
        return [(head, wanted, "the commit")] if head else []
    row = newest_patch(wanted)
    rows = [(version, row.version.partition("+")[0], "the version")] if (version := version_in(tree)) else []
    if llvm and row.llvm and pin_files(tree):
        rows.append((read_pin(tree).commit, row.llvm, "the LLVM"))
    return rows


def _check_generation(tree: Path, llvm: Source) -> None:
    """Raise UnsupportedError if an LLVM is too old or too new for a tree of Triton; an unknown version is accepted."""
    version, there = version_in(tree), major_of(llvm)
    if not version or there is None:
        return
    try:
        own = needs_for(version).llvm
    except UnsupportedError:
        return  # the needs of this Triton are unknown
    # The next newer LLVM is accepted, because Triton's main branch keeps the last release's version for months and may
    # need that LLVM.
    if not own - 1 <= there <= own + 1:
        how = "old" if there < own else "new"
        raise UnsupportedError(
            "llvm-unfit",
            f"{llvm.ref} is too {how} for this Triton: LLVM {there}, not {own - 1} or {own}",
            why=f"the tree says that it is Triton {version}, which is written for an LLVM between these releases",
            fix=f"use LLVM {own - 1} or {own}, or another Triton",
        )


def check_tree(tree: Path, request: Request, llvm: Source) -> None:
    """Raise an error if a tree of Triton does not match the request or the LLVM that it will be built on.

    If the request names no LLVM and the tree contains a pin, the pin must be the commit of this LLVM.
    """
    _check_generation(tree, llvm)
    named = request.sources.get("triton")
    if request.triton and named is not None and not is_commit(request.triton):
        compare(tree, request.triton, name=f"--source triton={named}", llvm="llvm" not in request.sources)
    if "llvm" in request.sources or llvm.kind != "git" or not pin_files(tree):
        return
    pin = read_pin(tree)
    if pin.commit != llvm.version:
        file = Path(pin.origin).relative_to(tree)
        raise PinError(
            "pin-differs",
            "this Triton does not pin the LLVM that is on record for it",
            why=f"its {file} says {pin.commit}, and the plan has {llvm.version}",
            fix=f"build it on its own pin: --source llvm={of_github(pin.repository, pin.commit)}",
        )
