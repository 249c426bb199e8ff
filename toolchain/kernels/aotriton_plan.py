"""AOTriton's own plan of what to compile, read: its generator writes rules, clusters and archives as `Bare.*` files.

`Bare.compile` has one line a code object: venv, Python, object, source, kernel, warps, stages, waves per EU, GPU and
signature, with `;` between; before 0.11.1 without the first two. `Bare.cluster` has one line for each .aks2 file,
`Bare.flatzip` one for each .zip; the manifests (`.nsv`) beside them say under which names things go in. Before 0.13 the
.aks2 files are loose and have no manifests; before 0.8 there is `Bare.compile` alone, since the library holds the
kernels. Paths are those of the build that wrote them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as memoize
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from toolchain.catalog.aotriton_generations import Generation, generation_of
from toolchain.catalog.gpus import check_gpu
from toolchain.core.errors import KernelError, SourceError
from toolchain.core.pages import page
from toolchain.kernels.rules import Rule, RuleSet, Value, arguments_of, parsed

COMPILE, CLUSTER, FLATZIP = "Bare.compile", "Bare.cluster", "Bare.flatzip"
IMAGES = "aotriton.images"
_HINTS = (1, 8, 16)
_WAVES = 1  # Triton's own default, up to 3.1 at least
_REPORT = f"take an AOTriton that {page('docs/compatibility.md')} says is tested; report it for one that is"
# (argument, type) in the kernel's order, and (argument, value) of the constants, sorted.
Signature = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, Value], ...]]


@dataclass(frozen=True)
class Cluster:
    """One .aks2 file: the code objects that the loader takes as one.

    Args:
        path: of the .aks2, below the build folder.
        manifest: its .nsv, below the build folder too; empty if its generation writes none.
        objects: (code object below the build folder, name inside), in order.
    """

    path: str
    manifest: str
    objects: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """`amd-gfx942/flash/attn_fwd/<sha256>`."""
        return self.path.partition("/")[2].removesuffix(".aks2")


@dataclass(frozen=True)
class Archive:
    """One .zip of .aks2 files, one for each GPU pack and kernel: (.aks2 below the build folder, name inside).

    Where the .aks2 files are loose, each of them is one, under its own path.
    """

    path: str
    manifest: str
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BarePlan:
    """The plan of a generator that writes lists of `Bare` kernels.

    Args:
        copies: further objects that are the same as a rule's own, by that rule's `out`: its generation's compiler takes
            no notice of what they differ in.
    """

    rules: tuple[Rule, ...]
    clusters: tuple[Cluster, ...]
    archives: tuple[Archive, ...]
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_copies(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        """Some rules, and with each the copies of its object."""
        copies = self.copies
        return tuple(
            one for rule in rules for one in (rule, *(replace(rule, out=out) for out in copies.get(rule.out, ())))
        )

    def whole(self, rules: RuleSet) -> tuple[Cluster, ...]:
        """The clusters that some rules make whole."""
        there = {rule.out for rule in self.with_copies(rules.rules)}
        return tuple(cluster for cluster in self.clusters if all(path in there for path, _ in cluster.objects))


def read_plan(folder: Path, tree: Path, *, build: str, source: str, of: Generation | None = None) -> BarePlan:
    """Read what the generator wrote.

    Args:
        folder: the generator's build folder, as it is here.
        tree: the AOTriton source; its kernels are parsed for the names of their arguments, never imported.
        build: the build folder as the generator saw it, e.g. `/build/v3src`.
        source: the source as it saw it.
        of: the release's way of planning; 0.13b's by default.

    Raises:
        SourceError: a file is missing or malformed, or they contradict each other: kernels would be left out.
        UnsupportedError: a GPU whose code objects cannot be checked.
    """
    of = of or generation_of("0.13b")
    clusters: tuple[Cluster, ...] = ()
    if of.layout != "library":
        clusters = tuple(_cluster(folder, fields, build, of) for fields in _lines(folder / CLUSTER, 5))
    reader = _Rules(tree, build=build, source=source, groups=_groups(clusters), of=of)
    rules: dict[str, Rule] = {}
    for fields in _lines(folder / COMPILE, of.fields):
        rule = reader.rule(fields)
        known = rules.setdefault(rule.out, rule)
        if known is not rule and known != rule:
            raise SourceError(f"AOTriton's generator plans {rule.out} twice, differently", fix=_REPORT)
    if of.layout == "flatzip":
        archives = tuple(_archive(folder, fields, build) for fields in _lines(folder / FLATZIP, 4))
    else:
        archives = tuple(
            Archive(cluster.path, "", ((cluster.path, cluster.path.rpartition("/")[2]),)) for cluster in clusters
        )
    distinct, copies = _distinct(rules.values(), alike=not of.waves)
    if of.layout != "library":
        _agree(rules, clusters, archives)
    return BarePlan(distinct, clusters, archives, copies)


def read_packs(folder: Path) -> tuple[tuple[Cluster, ...], tuple[Archive, ...]]:
    """Read the content of a plan's archives, without the source that it was made of.

    Args:
        folder: the generator's build folder, at any path, not only where the plan was written.
    """
    rows = list(_lines(folder / FLATZIP, 4))
    build = rows[0][3].partition("/aks2/")[0] if rows else ""
    clusters = tuple(_cluster(folder, fields, build, generation_of("0.13b")) for fields in _lines(folder / CLUSTER, 5))
    return clusters, tuple(_archive(folder, fields, build) for fields in rows)


def _lines(path: Path, least: int) -> Iterator[list[str]]:
    """The fields of each line of one of the generator's files.

    Args:
        least: fields that a line has.
    """
    # Line by line: for all GPUs there are some hundred megabytes of it.
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                fields = line.rstrip("\n").split(";")
                if len(fields) < least:
                    raise SourceError(
                        f"{path.name}:{number} has {len(fields)} fields, {least} or more expected",
                        why=line[:200],
                        fix=_REPORT,
                    )
                yield fields
    except OSError as error:
        raise SourceError(f"AOTriton's generator left no {path.name}", why=str(error.strerror), fix=_REPORT) from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path.name} of AOTriton's generator is not text", why=str(error), fix=_REPORT) from error


def _below(path: str, top: str) -> str:
    """`path` relative to `top`: what a generator says becomes names of files on this side."""
    folder, slash, name = path.rpartition("/")
    try:
        if name in ("", ".", ".."):
            raise ValueError(path)
        inside = _folder_below(folder or slash, top)
    except ValueError:
        raise SourceError(f"AOTriton's generator names {path}, which is not in {top}", fix=_REPORT) from None
    return f"{inside}/{name}" if inside else name


@memoize
def _folder_below(folder: str, top: str) -> str:
    """`folder` relative to `top`, empty for `top` itself. A plan has thousands of files for each of its folders."""
    inside = PurePosixPath(folder).relative_to(top)
    if ".." in inside.parts or inside.is_absolute():
        raise ValueError(folder)
    return "" if inside == PurePosixPath() else inside.as_posix()


def _manifest(path: Path, build: str, listed: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The rows of a manifest, which must be those that the plan lists: a cut one would make an archive with holes.

    Raises:
        SourceError: it cannot be read or differs, or two rows have one name: the loader would find only the first.
    """
    try:
        rows = [line.split("\0") for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path.name} of AOTriton's plan", why=str(error), fix=_REPORT) from error
    if any(len(row) != 3 for row in rows) or [row[0] for row in rows] != list(listed) or not rows:
        raise SourceError(
            f"the manifest {path} and AOTriton's plan name different files",
            why=f"{len(rows)} rows here, {len(listed)} files in the plan",
            fix="build again; report it if it stays",
        )
    if len({row[1] for row in rows}) < len(rows):
        raise SourceError(f"the manifest {path} gives one name to two files", fix=_REPORT)
    return tuple((_below(row[0], build), row[1]) for row in rows)


def _cluster(folder: Path, fields: Sequence[str], build: str, of: Generation) -> Cluster:
    arch, family, kernel, name, *objects = fields
    if of.layout == "aks2":
        path = _below(f"{IMAGES}/{arch}/{family}/{kernel}/{name}.aks2", "")
        return Cluster(path, "", tuple((_below(file, build), PurePosixPath(file).stem) for file in objects))
    stem = _below(f"aks2/{arch}/{family}/{kernel}/{name}", "")
    return Cluster(f"{stem}.aks2", f"{stem}.nsv", _manifest(folder / f"{stem}.nsv", build, objects))


def _archive(folder: Path, fields: Sequence[str], build: str) -> Archive:
    stem = _below(f"{IMAGES}/" + "/".join(fields[:3]), "")
    return Archive(f"{stem}.zip", f"{stem}.nsv", _manifest(folder / f"{stem}.nsv", build, fields[3:]))


def _agree(rules: Mapping[str, Rule], clusters: Sequence[Cluster], archives: Sequence[Archive]) -> None:
    """Every kernel is in a cluster and every cluster in one archive, or the images would silently lack it."""
    inside = {path for cluster in clusters for path, _ in cluster.objects}
    places = Counter(path for archive in archives for path, _ in archive.members)
    known = {cluster.path for cluster in clusters}
    for what, names in (
        (f"{COMPILE} has kernels that no cluster takes", rules.keys() - inside),
        (f"{CLUSTER} has kernels that {COMPILE} does not make", inside - rules.keys()),
        (f"{CLUSTER} has clusters that no archive takes", known - set(places)),
        (f"{FLATZIP} has clusters that {CLUSTER} does not make", set(places) - known),
        (f"{FLATZIP} has clusters twice", {path for path in known if places[path] > 1}),
    ):
        if names:
            raise SourceError(
                f"AOTriton's plan contradicts itself: {what}",
                why=f"{len(names)}, {min(names)} for one",
                fix="build again; report it if it stays",
            )


def _groups(clusters: Iterable[Cluster]) -> dict[str, str]:
    """A group's name by code object: clusters that share one belong to one group, so that a part takes both."""
    parent: dict[str, str] = {}

    def top(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    owner: dict[str, str] = {}
    for cluster in clusters:
        for path, _ in cluster.objects:
            first = owner.setdefault(path, cluster.name)
            a, b = top(first), top(cluster.name)
            if a != b:
                parent[max(a, b)] = min(a, b)
    return {path: top(name) for path, name in owner.items()}


class _Rules:
    """Reads the lines of `Bare.compile`.

    A third of all lines name another kernel or signature than the line before; the others differ in warps, stages and
    waves alone. So a signature is read once, and its rules share what was read: that is most of the time and memory.
    """

    def __init__(self, tree: Path, *, build: str, source: str, groups: Mapping[str, str], of: Generation) -> None:
        self._of = of
        self._tree = tree
        self._build = build
        self._source = source
        self._groups = groups
        self._names = {path: path for path in groups}
        self._signatures: dict[tuple[str, str, str], Signature] = {}
        self._parts: dict[tuple[str, str], Signature] = {}

    def rule(self, fields: Sequence[str]) -> Rule:
        """The rule of one line."""
        skipped = self._of.fields - 8
        target_path, kernel_file, kernel, warps, stages, waves, word = fields[skipped : skipped + 7]
        gpu = self._of.words.get(word, word)
        check_gpu(gpu)
        out, file = _below(target_path, self._build), _below(kernel_file, self._source)
        kinds, constants = self._signature(file, kernel, ";".join(fields[skipped + 7 :]), where=out)
        try:
            # Texts that many rules have are one object in memory.
            return Rule(
                source=sys.intern(file),
                root=sys.intern(file.rpartition("/")[0] or "."),
                kernel=sys.intern(kernel),
                signature=kinds,
                constexprs=constants,
                target=sys.intern(gpu),
                num_warps=int(warps),
                num_stages=int(stages),
                waves_per_eu=int(waves) if self._of.waves else _WAVES,
                out=self._names.get(out, out),
                # Inside a library each is a cluster of its own; else `_agree` refuses a plan with a rule in no cluster.
                cluster=f"{gpu}/{out}" if self._of.inside else self._groups.get(out, ""),
            )
        except ValueError:
            raise SourceError(
                f"{COMPILE}: {out} has launch values that are not numbers", why=";".join(fields), fix=_REPORT
            ) from None

    def _signature(self, file: str, kernel: str, text: str, *, where: str) -> Signature:
        key = (file, kernel, text)
        if (signature := self._signatures.get(key)) is None:
            names = _argument_names(self._tree / file, kernel)
            signature = self._signatures[key] = parse_signature(text, names, where=where, known=self._parts)
        return signature


def parse_signature(
    text: str, names: Sequence[str], *, where: str, known: dict[tuple[str, str], Signature] | None = None
) -> Signature:
    """A positional signature as (argument, type) in order and (argument, constant) sorted.

    A number, True or False is a constant; anything else is a type, with `:16` or `:8` behind it where the value is a
    multiple of that, and `:1` where it is known to be 1. That makes it a
    constant too.

    Args:
        known: arguments that were read before, by name and text; what is new is added.

    Raises:
        SourceError: another number of arguments than the kernel has, or an unknown hint.
    """
    parts = text.split(",")
    if len(parts) != len(names):
        raise SourceError(
            f"{where}: {len(parts)} arguments for a kernel with {len(names)}", why=text[:300], fix=_REPORT
        )
    known = {} if known is None else known
    kinds: list[tuple[str, str]] = []
    constants: list[tuple[str, Value]] = []
    for key in zip(names, parts, strict=True):
        if (argument := known.get(key)) is None:
            argument = known[key] = _argument(key[0], key[1].strip(" "), where)
        kinds += argument[0]
        constants += argument[1]
    return tuple(kinds), tuple(sorted(constants, key=lambda row: row[0]))


def _argument(name: str, part: str, where: str) -> Signature:
    """One argument's type, and its value where it is a constant."""
    value = _constant(part)
    kind, mark, hint = part.partition(":")
    if value is None and mark:
        number = _constant(hint)
        if number not in _HINTS or isinstance(number, bool):
            raise SourceError(f"{where}: {name} has the hint {hint!r}", why=f"known: {_HINTS}", fix=_REPORT)
        if number == 1:
            value = 1
    if value is not None:
        return ((name, "constexpr"),), ((name, value),)
    return ((name, part if mark else kind),), ()


def _constant(text: str) -> int | float | bool | None:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"True": True, "False": False}.get(text)


@memoize
def _argument_names(path: Path, kernel: str) -> tuple[str, ...]:
    module = parsed(path)
    if (arguments := arguments_of(module, kernel)) is not None:
        return tuple(argument.arg for argument in arguments)
    for node in module.body:  # a file that gathers the kernels of its neighbours
        if not _imports(node):
            continue
        for name in node.names:
            if (name.asname or name.name) == kernel:
                return _argument_names(path.parent / f"{node.module}.py", name.name)
    raise SourceError(f"{path} has no function {kernel}", fix=_REPORT)


def _imports(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    """Whether a statement takes names from a file of the same folder."""
    return isinstance(node, ast.ImportFrom) and node.level <= 1 and "." not in (node.module or ".")


def _distinct(rules: Iterable[Rule], *, alike: bool = False) -> tuple[tuple[Rule, ...], dict[str, tuple[str, ...]]]:
    """The rules, sorted by output; the ledger knows a rule by its id, so no two may have one.

    Args:
        alike: rules with the same id are expected; the first is kept, with the outputs of the others.

    Raises:
        KernelError: two outputs would be the same object.
    """
    seen: dict[str, Rule] = {}
    copies: dict[str, list[str]] = {}
    for rule in sorted(rules, key=lambda rule: rule.out):
        if (first := seen.setdefault(rule.id, rule)) is not rule:
            if not alike:
                raise KernelError(f"{rule.out} and {first.out} are the same rule", fix=_REPORT)
            copies.setdefault(first.out, []).append(rule.out)
    return tuple(seen.values()), {out: tuple(more) for out, more in copies.items()}
