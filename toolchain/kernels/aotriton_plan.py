"""Read the plan of AOTriton's generator, which lists rules, clusters and archives in `Bare.*` files.

`Bare.compile` has a line for each code object, with these fields separated by `;`: the venv, the Python, the object,
the source, the kernel, the warps, the stages, the waves per EU, the GPU and the signature. Before AOTriton 0.11.1 the
first two fields are missing. `Bare.cluster` has a line for each .aks2 file, and `Bare.flatzip` has a line for each
.zip. A manifest (`.nsv`) beside each .aks2 and each .zip lists the files in that archive. Before 0.13 the
.aks2 files are in no .zip and have no manifests. In 0.6 and 0.7 there is only `Bare.compile`, because AOTriton's shared
library contains the kernels. The files contain absolute paths from the build that wrote them.
"""

from __future__ import annotations

import ast
import io
import re
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
from toolchain.core.filesystem import open_regular, read_regular
from toolchain.core.pages import page
from toolchain.kernels.rules import Rule, RuleSet, Value, arguments_of, parsed

COMPILE, CLUSTER, FLATZIP = "Bare.compile", "Bare.cluster", "Bare.flatzip"
IMAGES = "aotriton.images"
_HINTS = (1, 8, 16)
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_LONGEST_LINE = 16 << 20  # the maximum number of characters in a line of a plan
_LARGEST_MANIFEST = 64 << 20  # the maximum size of a manifest in bytes
_WAVES = 1  # the waves per EU for a release whose compile script does not pass them on
_REPORT = (
    f"use an AOTriton that is tested according to {page('docs/compatibility.md')}; if this one is, report the error"
)
# A signature consists of the (argument, type) pairs in the order of the arguments, and of the sorted
# (argument, value) pairs of the constants.
Signature = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, Value], ...]]


@dataclass(frozen=True)
class Cluster:
    """One .aks2 file: code objects that AOTriton's loader loads together.

    Args:
        path: the path of the .aks2 below the build folder.
        manifest: the path of its .nsv below the build folder; empty if the release has no manifests.
        objects: pairs of a code object's path below the build folder and its name in the .aks2, in the order of the
            plan.
    """

    path: str
    manifest: str
    objects: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The name of the cluster, such as `amd-gfx942/flash/attn_fwd/<sha256>`."""
        return self.path.partition("/")[2].removesuffix(".aks2")


@dataclass(frozen=True)
class Archive:
    """The .zip of .aks2 files for a GPU pack and a kernel, or a single .aks2 file that is in no .zip.

    Args:
        path: the path of the .zip or .aks2 below the build folder.
        manifest: the path of the .zip's .nsv below the build folder; empty for an .aks2 file.
        members: pairs of an .aks2 file's path below the build folder and its name in the .zip. An archive that is
            an .aks2 file has one pair, with its own path and file name.
    """

    path: str
    manifest: str
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BarePlan:
    """The rules, the clusters and the archives that AOTriton's generator plans.

    Args:
        copies: the other outputs that get the same object as a rule, by the `out` of the rule.
    """

    rules: tuple[Rule, ...]
    clusters: tuple[Cluster, ...]
    archives: tuple[Archive, ...]
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_copies(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        """Return the rules, each followed by another rule for every copy of its object."""
        copies = self.copies
        return tuple(
            one for rule in rules for one in (rule, *(replace(rule, out=out) for out in copies.get(rule.out, ())))
        )

    def whole(self, rules: RuleSet) -> tuple[Cluster, ...]:
        """Return the clusters whose objects are all outputs of `rules` or copies of these outputs."""
        there = {rule.out for rule in self.with_copies(rules.rules)}
        return tuple(cluster for cluster in self.clusters if all(path in there for path, _ in cluster.objects))


def read_plan(folder: Path, tree: Path, *, build: str, source: str, of: Generation | None = None) -> BarePlan:
    """Read the plan of AOTriton's generator, and check that its files agree.

    Args:
        folder: the generator's build folder.
        tree: the AOTriton source tree. Its kernels are parsed for the names of their arguments, but not imported.
        build, source: the paths that `folder` and `tree` had for the generator, e.g. `/build/v3src`.
        of: the generation of the AOTriton release; by default that of 0.13b.

    Raises:
        SourceError: a file of the plan or a kernel's source is missing or malformed, the files contradict each other,
            or a path leads out of its folder.
        KernelError: two outputs have the same rule, and `of.waves` is set.
        UnsupportedError: the plan names an unknown GPU.
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
            raise SourceError(
                "plan-contradictory", f"AOTriton's generator plans {rule.out} twice, with different values", fix=_REPORT
            )
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
    """Return the clusters and archives of a plan from AOTriton 0.13 or later, without reading its rules.

    `folder` may have been moved since the generator ran. SourceError is raised if a file is missing or malformed, or if
    a manifest contradicts the plan.
    """
    rows = list(_lines(folder / FLATZIP, 4))
    build = rows[0][3].partition("/aks2/")[0] if rows else ""
    clusters = tuple(_cluster(folder, fields, build, generation_of("0.13b")) for fields in _lines(folder / CLUSTER, 5))
    return clusters, tuple(_archive(folder, fields, build) for fields in rows)


def _malformed(what: str, why: str) -> SourceError:
    return SourceError("plan-malformed", what, why=why, fix=_REPORT)


def _lines(path: Path, least: int) -> Iterator[list[str]]:
    # The file is read line by line, because the file for all GPUs is several hundred megabytes. The lines are limited,
    # because a hostile generator can write a file of zeros that takes no place on the disk.
    try:
        with io.TextIOWrapper(open_regular(path, within=path.parent), encoding="utf-8") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), ""), 1):
                if len(line) > _LONGEST_LINE:
                    raise _malformed(f"{path.name}:{number} is too long", f"more than {_LONGEST_LINE} characters")
                fields = line.rstrip("\n").split(";")
                if len(fields) < least:
                    raise _malformed(
                        f"{path.name}:{number} has {len(fields)} fields instead of {least} or more", line[:200]
                    )
                yield fields
    except OSError as error:
        raise SourceError(
            "plan-missing", f"AOTriton's generator did not write {path.name}", why=str(error.strerror), fix=_REPORT
        ) from error
    except UnicodeDecodeError as error:
        raise _malformed(f"{path.name} of AOTriton's generator is not text", "it is not UTF-8") from error


def _below(path: str, top: str) -> str:
    """Return `path` relative to `top`; raise SourceError if it does not name a file below `top`."""
    folder, slash, name = path.rpartition("/")
    try:
        if name in ("", ".", ".."):
            raise ValueError(path)
        inside = _folder_below(folder or slash, top)
    except ValueError:
        raise SourceError(
            "plan-escapes", f"AOTriton's generator names {path}, which is not in {top}", fix=_REPORT
        ) from None
    return f"{inside}/{name}" if inside else name


@memoize
def _folder_below(folder: str, top: str) -> str:
    """Return `folder` relative to `top`, or `""` for `top`; raise ValueError if it is outside of `top`."""
    inside = PurePosixPath(folder).relative_to(top)
    if ".." in inside.parts or inside.is_absolute():
        raise ValueError(folder)
    return "" if inside == PurePosixPath() else inside.as_posix()


def _manifest(path: Path, build: str, listed: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return, for each file that a manifest lists, its path below the build folder and its name in the archive."""
    try:
        rows = [
            line.split("\0") for line in read_regular(path, _LARGEST_MANIFEST, within=path.parent).decode().splitlines()
        ]
    except (OSError, UnicodeDecodeError) as error:
        why = str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"
        raise SourceError(
            "plan-unreadable", f"cannot read {path.name} of AOTriton's plan", why=why, fix=_REPORT
        ) from error
    if any(len(row) != 3 for row in rows) or [row[0] for row in rows] != list(listed) or not rows:
        raise SourceError(
            "plan-contradictory",
            f"the manifest {path} and AOTriton's plan name different files",
            why=f"the manifest has {len(rows)} rows, and the plan has {len(listed)} files",
            fix="build again; if that does not help, report this error",
        )
    if len({row[1] for row in rows}) < len(rows):
        raise SourceError("plan-contradictory", f"the manifest {path} gives one name to two files", fix=_REPORT)
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
    """Raise SourceError unless a plan's files list the same kernels and clusters, and each cluster in one archive."""
    inside = {path for cluster in clusters for path, _ in cluster.objects}
    places = Counter(path for archive in archives for path, _ in archive.members)
    known = {cluster.path for cluster in clusters}
    for what, names in (
        (f"{COMPILE} lists kernels that are in no cluster", rules.keys() - inside),
        (f"{CLUSTER} lists kernels that {COMPILE} does not list", inside - rules.keys()),
        (f"{CLUSTER} lists clusters that are in no archive", known - set(places)),
        (f"{FLATZIP} lists clusters that {CLUSTER} does not list", set(places) - known),
        (f"{FLATZIP} lists clusters twice", {path for path in known if places[path] > 1}),
    ):
        if names:
            raise SourceError(
                "plan-contradictory",
                f"AOTriton's plan contradicts itself: {what}",
                why=f"there are {len(names)} of them, such as {min(names)}",
                fix="build again; if that does not help, report this error",
            )


def _groups(clusters: Iterable[Cluster]) -> dict[str, str]:
    """Return the name of each code object's group, by the object's path. Clusters that share an object form a group."""
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
    """A converter from lines of `Bare.compile` to rules. It parses equal signatures only once."""

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
        skipped = self._of.fields - 8
        target_path, kernel_file, kernel, warps, stages, waves, word = fields[skipped : skipped + 7]
        gpu = self._of.words.get(word, word)
        check_gpu(gpu)
        out, file = _below(target_path, self._build), _below(kernel_file, self._source)
        kinds, constants = self._signature(file, kernel, ";".join(fields[skipped + 7 :]), where=out)
        try:
            # Strings are interned, so that hundreds of thousands of rules share the memory for equal strings.
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
                # If the library contains the kernels, each object is a cluster of its own. In other layouts, `_agree`
                # refuses rules without a cluster.
                cluster=f"{gpu}/{out}" if self._of.inside else self._groups.get(out, ""),
            )
        except ValueError:
            raise _malformed(f"{COMPILE}: {out} has launch values that are not numbers", ";".join(fields)) from None

    def _signature(self, file: str, kernel: str, text: str, *, where: str) -> Signature:
        key = (file, kernel, text)
        if (signature := self._signatures.get(key)) is None:
            names = _argument_names(self._tree / file, kernel)
            signature = self._signatures[key] = parse_signature(text, names, where=where, known=self._parts)
        return signature


def parse_signature(
    text: str, names: Sequence[str], *, where: str, known: dict[tuple[str, str], Signature] | None = None
) -> Signature:
    """Return the (argument, type) pairs of a positional signature in order, and its sorted (argument, constant) pairs.

    A number, True or False is a constant. Anything else is a type, followed by `:16` or `:8` if the value is a multiple
    of this number. A type with `:1` stands for the constant 1. The type of a constant is `constexpr`. SourceError is
    raised if the number of arguments or a hint after `:` is wrong.

    Args:
        text: the signature, with a comma between two arguments.
        known: a cache of parsed arguments, by name and text; None for a cache that only this call uses.
    """
    parts = text.split(",")
    if len(parts) != len(names):
        raise _malformed(f"{where}: the plan has {len(parts)} arguments, and the kernel has {len(names)}", text[:300])
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
    value = _constant(part)
    kind, mark, hint = part.partition(":")
    if value is None and mark:
        number = _constant(hint)
        if number not in _HINTS or isinstance(number, bool):
            raise _malformed(f"{where}: {name} has the hint {hint!r}", f"known hints: {_HINTS}")
        if number == 1:
            value = 1
    if value is not None:
        return ((name, "constexpr"),), ((name, value),)
    return ((name, part if mark else kind),), ()


def _constant(text: str) -> int | float | bool | None:
    """Return the number or truth value that a part of a signature stands for; None for a type such as `fp16`."""
    if not _NUMBER.fullmatch(text):
        return {"True": True, "False": False}.get(text)
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return None


@memoize
def _argument_names(path: Path, kernel: str) -> tuple[str, ...]:
    place: tuple[Path, str] | None = (path, kernel)
    seen = set()
    while place is not None and place not in seen:
        seen.add(place)
        module = parsed(place[0])
        if (arguments := arguments_of(module, place[1])) is not None:
            return tuple(argument.arg for argument in arguments)
        place = _imported(module, *place)
    raise SourceError("kernel-function-missing", f"{path} has no function {kernel}", fix=_REPORT)


def _imported(module: ast.Module, path: Path, kernel: str) -> tuple[Path, str] | None:
    """Return the file beside `path` from which its module imports a kernel, and the kernel's name there, or None."""
    for node in filter(_imports, module.body):
        for name in node.names:
            if (name.asname or name.name) == kernel:
                return path.parent / f"{node.module}.py", name.name
    return None


def _imports(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    """Return whether a statement may import names from a file in the same folder."""
    return isinstance(node, ast.ImportFrom) and node.level <= 1 and "." not in (node.module or ".")


def _distinct(rules: Iterable[Rule], *, alike: bool = False) -> tuple[tuple[Rule, ...], dict[str, tuple[str, ...]]]:
    """Return the first rule of each id, sorted by output, and the outputs of its other rules, by the first's output.

    KernelError is raised if two rules have the same id, unless `alike` is set.
    """
    seen: dict[str, Rule] = {}
    copies: dict[str, list[str]] = {}
    for rule in sorted(rules, key=lambda rule: rule.out):
        if (first := seen.setdefault(rule.id, rule)) is not rule:
            if not alike:
                raise KernelError("rule-twice", f"{rule.out} and {first.out} are the same rule", fix=_REPORT)
            copies.setdefault(first.out, []).append(rule.out)
    return tuple(seen.values()), {out: tuple(more) for out, more in copies.items()}
