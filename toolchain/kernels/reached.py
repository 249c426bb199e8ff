"""Find the source files that a kernel's module reaches, by following its imports without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from toolchain.core.digest import sha256_bytes, sha256_file
from toolchain.core.errors import SourceError
from toolchain.core.filesystem import is_inside

# A module that uses one of these names may read files that it does not import, so its kernels depend on the whole tree.
_OPAQUE_NAMES = frozenset({"__import__", "__file__", "__path__", "__loader__", "__spec__", "exec", "eval", "open"})
_OPAQUE_ANYWHERE = frozenset(
    {
        "CDLL", "find_spec", "get_data", "import_module", "iter_modules", "path_hooks", "read_bytes", "read_text",
        "run_module", "run_path", "spec_from_file_location", "walk_packages",
    }
)  # fmt: skip


@dataclass(frozen=True)
class _Import:
    """An import statement: `from <level dots><module> import <names>`, or `import <module>`, which has no names."""

    level: int
    module: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """A part of a module: the names that occur in it, and whether it may read files that the module does not import."""

    names: frozenset[str]
    opaque: bool


@dataclass(frozen=True)
class _Scanned:
    """The result of scanning a module.

    Args:
        runs: all code except `functions`; it is assumed to run.
        functions: the bodies of undecorated top-level functions, by name.
    """

    imports: tuple[_Import, ...]
    runs: _Part
    functions: Mapping[str, _Part]


class Reach:
    """A scan of a source tree for the files that its kernels reach.

    The scan includes imports inside functions and behind conditions. A compile process sees only the files that the
    scan found, so no other file of the tree can affect a kernel. If a module may read files that it does not import,
    all files of the tree are taken except those in `.git` and `__pycache__`.

    Args:
        search: folders of the tree that are on the worker's module path in addition to each rule's root.
    """

    def __init__(self, tree: Path, search: Sequence[str] = ()) -> None:
        self._tree = tree
        self._search = tuple(search)
        self._scans: dict[str, _Scanned] = {}
        self._listed: dict[str, tuple[str, ...]] = {}
        self._digests: dict[str, str] = {}
        self._found: dict[tuple[str, str], dict[str, str]] = {}

    def digests(self, root: str, source: str) -> dict[str, str]:
        """Return the digest of each file that the module `source` reaches, by path, or `whole` if it may read any file.

        SourceError is raised if the tree has no file `source`.

        Args:
            root: the folder of the tree that is on the module path.
        """
        key = (root, source)
        if key not in self._found:
            if not self._is_file(source):
                raise SourceError(
                    "kernel-source-missing",
                    f"the tree has no kernel source {source}",
                    why="it is missing, or a link that leads out of the tree",
                    fix="give a complete source tree",
                )
            files = self._files(root, source)
            self._found[key] = self.whole if files is None else {file: self._digest(file) for file in sorted(files)}
        return self._found[key]

    def _files(self, root: str, source: str) -> set[str] | None:
        """Return the files that a module reaches; None if it may read any file of the tree."""
        roots = tuple(dict.fromkeys((root, *self._search)))
        files: set[str] = set()
        waiting = [source]
        while waiting:
            file = waiting.pop()
            if file in files:
                continue
            files.add(file)
            if not file.endswith(".py"):
                continue  # an extension module, whose imports cannot be read
            waiting.extend(self._packages(file, roots))
            for import_ in self._scan(file).imports:
                waiting.extend(self._resolve(import_, file, roots))
        return None if self._is_opaque(files) else files

    def _is_opaque(self, files: Iterable[str]) -> bool:
        """Return whether code in `files` may read files that it does not import.

        A function is ignored if no code that may run contains its name.
        """
        scans = [self._scan(file) for file in files if file.endswith(".py")]
        waiting = [scan.runs for scan in scans]
        functions: dict[str, list[_Part]] = {}
        for scan in scans:
            for name, part in scan.functions.items():
                functions.setdefault(name, []).append(part)
        while waiting:
            part = waiting.pop()
            if part.opaque:
                return True
            for name in part.names & functions.keys():
                waiting.extend(functions.pop(name))
        return False

    def _scan(self, file: str) -> _Scanned:
        if file not in self._scans:
            try:
                self._scans[file] = _scan(ast.parse((self._tree / file).read_bytes()))
            except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: it nests too deeply
                self._scans[file] = _Scanned((), _Part(frozenset(), opaque=True), {})
        return self._scans[file]

    def _packages(self, file: str, roots: Sequence[str]) -> Iterator[str]:
        """Yield the `__init__.py` files that run before a module in a package."""
        for folder in PurePosixPath(file).parents:
            if any(folder == PurePosixPath(root) for root in roots):
                return
            inside = str(folder / "__init__.py")
            if self._is_file(inside):
                yield inside

    def _resolve(self, import_: _Import, file: str, roots: Sequence[str]) -> Iterator[str]:
        if import_.level:
            base = PurePosixPath(file)
            for _ in range(import_.level):
                base = base.parent
            bases = [str(base)]
        else:
            bases = list(roots)
        for base_folder in bases:
            parts = import_.module.split(".") if import_.module else []
            yield from self._walk(base_folder, parts)
            for name in import_.names:
                yield from self._walk(base_folder, [*parts, name])

    def _walk(self, base: str, parts: Sequence[str]) -> Iterator[str]:
        """Yield the files of the modules `a`, `a.b` and `a.b.c` in `base` for the parts `a`, `b` and `c`.

        Without parts, yield those of the package `base`.
        """
        folder = PurePosixPath(base)
        if not parts:
            yield from self._module(folder / "__init__")
        for part in parts:
            yield from self._module(folder / part)
            folder /= part
            yield from self._module(folder / "__init__")

    def _module(self, stem: PurePosixPath) -> Iterator[str]:
        if self._is_file(f"{stem}.py"):
            yield f"{stem}.py"
        for name in self._extensions(str(stem.parent)):
            if name.startswith(f"{stem.name}.") and self._is_file(str(stem.parent / name)):
                yield str(stem.parent / name)

    def _is_file(self, file: str) -> bool:
        path = self._tree / file
        return path.is_file() and is_inside(path, self._tree) and is_inside(path.resolve(), self._tree)

    def _extensions(self, folder: str) -> tuple[str, ...]:
        here = self._tree / folder
        if folder not in self._listed:
            self._listed[folder] = tuple(sorted(path.name for path in here.glob("*.so")))
        return self._listed[folder]

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            self._digests[file] = sha256_file(self._tree / file)
        return self._digests[file]

    @cached_property
    def whole(self) -> dict[str, str]:
        """The digest of each file and the `link_digest` of each link, by path, outside `.git` and `__pycache__`."""
        digests = {}
        for folder, below, names in os.walk(self._tree):
            below[:] = [name for name in below if name not in {".git", "__pycache__"}]
            for name in (*names, *below):
                path = Path(folder) / name
                if path.is_symlink():
                    digest = link_digest(path)
                elif path.is_file():
                    digest = sha256_file(path)
                else:
                    continue
                digests[path.relative_to(self._tree).as_posix()] = digest
        return dict(sorted(digests.items()))


def link_digest(path: Path) -> str:
    """Return a digest of the target path of a symlink, with the prefix `link:`, which no digest of a file has."""
    return f"link:{sha256_bytes(os.fsencode(path.readlink()))}"


def _scan(module: ast.Module) -> _Scanned:
    plain = [node for node in module.body if isinstance(node, ast.FunctionDef) and not node.decorator_list]
    rest: list[ast.AST] = [node for node in module.body if node not in plain]
    # The defaults and annotations of a function may be evaluated when the function is defined.
    rest += [part for node in plain for part in (node.args, node.returns) if part is not None]
    functions: dict[str, list[ast.AST]] = {}
    for node in plain:
        functions.setdefault(node.name, []).extend(node.body)
    return _Scanned(
        imports=tuple(_imports(module)),
        runs=_part(rest),
        functions={name: _part(nodes) for name, nodes in functions.items()},
    )


def _part(nodes: Iterable[ast.AST]) -> _Part:
    names: set[str] = set()
    opaque = False
    for top in nodes:
        for node in ast.walk(top):
            opaque = opaque or _may_read(node)
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                names.add(node.value)  # `getattr` may use this name
            elif isinstance(node, ast.alias) and node.asname:
                names.add(node.name)  # code may call the function by its new name
    return _Part(frozenset(names), opaque)


def _imports(module: ast.Module) -> Iterator[_Import]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (_Import(0, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield _Import(node.level, node.module or "", tuple(alias.name for alias in node.names))


def _may_read(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _OPAQUE_NAMES or node.id in _OPAQUE_ANYWHERE
    if isinstance(node, ast.Attribute):
        of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
        return node.attr in _OPAQUE_ANYWHERE or (of_sys and node.attr in {"path", "modules", "meta_path"})
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in _OPAQUE_ANYWHERE for alias in node.names)
    return False
