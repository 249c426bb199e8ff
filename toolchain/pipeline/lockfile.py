"""Read and write toolchain.lock, which lists the inputs that a build may use, with their digests."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from toolchain.catalog.stages import of_packages
from toolchain.core import toml_text
from toolchain.core.console import one_line
from toolchain.core.digest import write_output
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import read_regular
from toolchain.core.typed import TypedError, typed
from toolchain.request import model as request_module
from toolchain.request.declaration import Option, as_list
from toolchain.sources.spec import PACKAGE, PROJECT, VERSION, SourceSpec, parse_source_spec

SCHEMA = 2
DEFAULT = "toolchain.lock"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|git:[0-9a-f]{40}@[^\x00-\x1f\x7f]+")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~!-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
# These are the forms of a source's `ref`, by kind. They are checked, because parts of some refs appear in file names.
_REFS = {
    "git": re.compile(r"[0-9a-f]{40}"),
    "archive": re.compile(r"[^\x00-\x20\x7f]+#sha256=[0-9a-f]{64}"),
    "distro": re.compile(rf"distro:{PACKAGE.pattern}(={VERSION.pattern})?"),
    "pypi": re.compile(rf"pypi:{PROJECT.pattern}(=={VERSION.pattern})?"),
    "local": re.compile(r"local:[^/\x00-\x1f\x7f]+"),
}

State = Literal["resolved", "open", "unresolved", "image"]


@dataclass(frozen=True, kw_only=True)
class LockedPatch:
    """A patch for a source: the name of its file, and the digest of its content (`sha256:<hex>`)."""

    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class LockedSource:
    """A source or a wheel. `sources.tree.Source` explains the fields that are not listed here.

    Args:
        file: the name of the source's file; empty for a git repository or a folder, or if the name is unknown.
        parts: the part of the tree that the build uses, as in `Part.taken`; empty for the whole tree.
        tree: the digest of the unpacked tree; empty if the source stays a single file or was not fetched yet.
        tag: the tag in the request that was resolved to the commit; empty if the request names no tag.
        patches: the patches in the order in which they are applied.
    """

    name: str
    kind: Literal["git", "archive", "distro", "local", "pypi"]
    ref: str
    repository: str
    digest: str
    file: str = ""
    parts: tuple[str, ...] = ()
    tree: str = ""
    license: str = ""
    tag: str = ""
    patches: tuple[LockedPatch, ...] = ()

    @property
    def wheel(self) -> bool:
        return self.file.endswith(".whl")

    @property
    def spec(self) -> SourceSpec:
        """The value of `--source` for exactly this source. For a user's file or folder, it names the stored copy."""
        match self.kind:
            case "local":
                return SourceSpec(kind="stored", where=self.ref.removeprefix("local:"), version=self.digest)
            case "git":
                return SourceSpec(kind="git", where=self.repository, version=self.ref, tag=self.tag)
            case _:
                return parse_source_spec(self.ref)


@dataclass(frozen=True, kw_only=True)
class LockedPackage:
    """A package of a base.

    Args:
        sha256: the digest of the deb file in hexadecimal; empty for an rpm.
        header: the digest of the rpm's header in hexadecimal; empty for a deb.
    """

    name: str
    version: str
    arch: str
    sha256: str = ""
    header: str = ""


@dataclass(frozen=True, kw_only=True)
class LockedBase:
    """A base, or a system of unpacked packages that builds compile against or import from.

    Args:
        stage: `base` for the system in which builds run; otherwise the stage that unpacks the packages.
        state: `resolved` if the lock contains the package list; `image` for a local image, which the lock names by
            digest; `unresolved` if the base was not built yet; `open` if `--open-base` omitted the packages.
        recipe: the digest of the recipe, which names the requested packages; empty for a local image.
        suite: the suite of the distribution; empty if the distribution has no suites.
        start: the image that the recipe starts from, with its digest; empty if it starts from packages only.
        image: the digest of the finished image's manifest; empty if it is unknown.
        packages_digest: the digest of the package list, which is an input of the stage; empty if it is unknown.
    """

    name: str
    arch: str
    state: State
    stage: Literal["base", "sysroot", "python", "torch"] = "base"
    recipe: str = ""
    suite: str = ""
    start: str = ""
    image: str = ""
    packages_digest: str = ""
    packages: tuple[LockedPackage, ...] = ()

    def __str__(self) -> str:
        return f"{self.stage} {self.name} ({self.arch})"

    @property
    def old(self) -> bool:
        """Whether this is an old system against which a portable layer is compiled (see `toolchain.catalog.floors`)."""
        return self.stage == "sysroot" and self.name.startswith("glibc-")

    @property
    def image_name(self) -> str:
        """The name of the stage's image, which does not contain the architecture."""
        return f"toolchain-{self.stage}-{self.name}"

    @property
    def owner(self) -> str:
        """The name of the base in a bundle. It includes the architecture, because a bundle may be for several."""
        return f"{self.image_name}-{self.arch}"


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The content of a lock file.

    Args:
        toolchain: the version of the tool that made the lock.
        epoch: the Unix time of all files in the layers that this version of the tool writes (`digest.EPOCH`).
        format: the format of the layers that this version of the tool writes (`digest.FORMAT`).
        request: the requested stage, and the values of the options with which the lock was made, by name.
    """

    toolchain: str
    epoch: int
    format: int
    request: Mapping[str, Any] = field(default_factory=dict)
    bases: tuple[LockedBase, ...] = ()
    sources: tuple[LockedSource, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all inputs are fixed: every base is resolved or a local image, and its image's digest is known."""
        return all(base.state in {"resolved", "image"} and base.image for base in self.bases)

    def source(self, name: str) -> LockedSource | None:
        """Return the source or wheel with this name; None if the lock contains none."""
        return next((source for source in self.sources if source.name == name), None)


def render(lock: Lock) -> bytes:
    """Return the content of the lock file; raise ConfigError if a name in the lock is not valid UTF-8.

    Equal locks give equal bytes. Each value, and each package and patch, has a line of its own, so that a diff shows
    what changed.
    """
    lines = [
        "# The inputs that a build may use, by digest. Written by `toolchain lock`; do not edit.",
        f"# Again: {_command(lock)}",
    ]
    if not lock.complete:
        lines.append("# NOT COMPLETE: the packages of a base whose state is open or unresolved are not locked.")
    lines += _table(
        "",
        {
            "schema": SCHEMA,
            "complete": lock.complete,
            "toolchain": lock.toolchain,
            "format": lock.format,
            "epoch": lock.epoch,
        },
    )
    lines += _table("[request]", dict(sorted(lock.request.items())))
    for base in sorted(lock.bases, key=lambda base: (base.stage, base.name, base.arch)):
        packages = sorted(base.packages, key=lambda package: (package.name, package.arch, package.version))
        value = asdict(replace(base, packages=tuple(packages)))
        lines += _table(f"[[{value.pop('stage')}]]", value)
    for title, wheels in (("[[source]]", False), ("[[wheel]]", True)):
        for source in sorted(lock.sources, key=lambda source: source.name):
            if source.wheel is wheels:
                lines += _table(title, asdict(source))
    try:
        return ("\n".join(lines) + "\n").encode()
    except UnicodeEncodeError as error:
        name = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
        raise ConfigError(
            "name-not-utf8",
            "a lock cannot contain a name that is not UTF-8",
            why=f"near {name}",
            fix="rename that file",
        ) from error


_LIMIT = 16 << 20  # bytes; a lock of all stages is much smaller


def write(lock: Lock, path: Path, *, option: str = "-o") -> None:
    """Write a lock to a file; raise ConfigError if the file cannot be written.

    Args:
        option: the option with which the user can name another file, for error messages.
    """
    write_output(path, render(lock), option=option)


def _command(lock: Lock) -> str:
    words = ["toolchain", "lock", str(lock.request.get("stage", "all")), *options(lock)]
    if any(base.state == "open" for base in lock.bases):
        words.append("--open-base")
    return one_line(shlex.join(words))


def options(lock: Lock, **instead: Any) -> list[str]:
    """Return the options in a lock's request as words of the command line, such as `["--base", "debian13"]`.

    Args:
        instead: values that replace those in the lock, by the name of the option.
    """
    known = {option.name: option for option in request_module.options()}
    request = {key: value for key, value in sorted({**lock.request, **instead}.items()) if key != "stage"}
    return [word for key, value in request.items() for word in known.get(key, Option(name=key, help="")).words(value)]


def _table(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if title:
        yield title
    for key, value in values.items():
        if value in ("", [], (), {}):
            continue
        if isinstance(value, list | tuple) and isinstance(value[0], dict):
            yield f"{key} = ["
            yield from (f"  {toml_text.value(row)}," for row in value)
            yield "]"
        else:
            yield f"{key} = {toml_text.value(value)}"


def read(path: Path, *, option: str = "--lock-file") -> Lock:
    """Return the lock in a file; raise ConfigError if the file cannot be read or is not a valid lock.

    Args:
        option: the option with which the user can name another file, for error messages.
    """
    try:
        return parse(read_regular(path, _LIMIT, within=path.parent), str(path))
    except OSError as error:
        raise ConfigError(
            "lock-unreadable",
            f"cannot read {path}",
            why=str(error.strerror),
            fix=f"make a lock: toolchain lock, or name another file: {option} FILE",
        ) from error


def parse(content: bytes, name: str, *, again: str = "toolchain lock, with the options in its second line") -> Lock:
    """Return the lock in the content of a lock file; raise ConfigError if the content is not a valid lock.

    Args:
        name: the name of the file, for error messages.
        again: the command that makes the lock again, as advice for a lock of another schema.
    """
    try:
        value = toml_text.read(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _not_valid(f"{name} is not TOML", toml_text.why_not(error)) from error
    schema = value.pop("schema", None)
    if schema is None:
        raise _not_valid(f"{name} is not a lock of this tool", "it has no key 'schema'")
    if schema != SCHEMA:
        raise ConfigError(
            "lock-schema",
            f"{name} is a lock of schema {schema!r}",
            why=f"this version of the tool reads schema {SCHEMA}",
            fix=f"make it again: {again}",
        )
    value.pop("complete", None)
    for key in value.keys() & {"bases", "sources"}:  # the names of fields of `Lock`
        raise _not_valid(f"{name}: unknown key {key!r}", "the names of tables are singular, such as [[source]]")
    systems = [(stage, row) for stage in of_packages() for row in _rows(value.pop(stage, []))]
    if any(isinstance(row, dict) and "stage" in row for _, row in systems):
        raise _not_valid(f"{name}: unknown key 'stage' of a base", "the name of its table is its stage")
    value["bases"] = [row | {"stage": stage} if isinstance(row, dict) else row for stage, row in systems]
    value["sources"] = [*_rows(value.pop("source", [])), *_rows(value.pop("wheel", []))]
    try:
        lock = typed(Lock, value)
    except TypedError as error:
        raise _not_valid(f"{name}: invalid value for {error.where!r}", error.why) from error
    for wrong in _malformed(lock):
        raise _not_valid(f"{name}: {wrong}")
    return lock


def _not_valid(what: str, why: str = "") -> ConfigError:
    return ConfigError("lock-malformed", what, why=why, fix="make it again: toolchain lock")


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _malformed(lock: Lock) -> Iterator[str]:
    yield from _malformed_request(lock.request)
    names = Counter(source.name for source in lock.sources)
    for source in lock.sources:
        if not _NAME.fullmatch(source.name) or names[source.name] > 1:
            yield f"the source {source.name!r} is listed twice, or its name is invalid"
        yield from _malformed_source(source)
    owners = Counter(base.owner for base in lock.bases)
    for base in lock.bases:
        if owners[base.owner] > 1:
            yield f"{base} is listed twice"
        if not _NAME.fullmatch(base.name) or not _NAME.fullmatch(base.arch):
            yield f"a base has an invalid name or architecture: {base.name!r} ({base.arch!r})"
        for digest in (base.recipe, base.image, base.packages_digest):
            if digest and not _SHA256.fullmatch(digest):
                yield f"{base} has a malformed digest: {digest!r}"
        if base.stage != "base" and base.state == "image":
            yield f"{base} has the state 'image', which only a base can have"
        if base.state == "resolved" and not (base.packages_digest and base.image):
            yield f"{base} has the state 'resolved', but no {'packages' if base.image else 'image'}"


def _malformed_request(request: Mapping[str, Any]) -> Iterator[str]:
    kept: dict[str, str] = {option.name: option.kind for option in request_module.options() if option.lock != "never"}
    for key, value in request.items():
        kind = "text" if key == "stage" else kept.get(key, "")
        if not _fits(kind, value):
            yield f"the option {key!r} of the request is unknown, or its value is invalid"
    if not re.fullmatch(r"([a-z]+(-[a-z]+)*)?", str(request.get("stage", ""))):
        yield f"the request names no valid stage: {request['stage']!r}"


def _fits(kind: str, value: Any) -> bool:
    """Return whether a lock may contain this value for an option of this kind."""
    if kind == "pairs":
        return isinstance(value, dict) and all(
            isinstance(text, str) for name, several in value.items() for text in (name, *as_list(several))
        )
    if kind in {"commas", "names"}:
        return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    if kind == "flag":
        return value is True
    if isinstance(value, bool):
        return False
    numbers = {"count": int, "seconds": int | float}
    return isinstance(value, numbers.get(kind, str)) and kind not in {"", "path"}


def _malformed_source(source: LockedSource) -> Iterator[str]:
    if not _DIGEST.fullmatch(source.digest):
        yield f"the source {source.name} has an invalid digest: {source.digest!r}"
    elif (source.kind == "git") != source.digest.startswith("git:"):
        yield f"the source {source.name} has the digest of another kind of source: {source.digest!r}"
    if not _REFS[source.kind].fullmatch(source.ref):
        yield f"the source {source.name} has an invalid ref for the kind {source.kind}: {source.ref[:120]!r}"
    if source.tag and (source.kind != "git" or not _NAME.fullmatch(source.tag)):
        yield f"the source {source.name} has an invalid tag: {source.tag[:120]!r}"
    if source.file and not _FILE.fullmatch(source.file):
        yield f"the source {source.name} has an invalid file name: {source.file!r}"
    if any("/" in part or part in {"", ".", ".."} for part in source.parts):
        yield f"the parts of {source.name} are not valid names"
    for digest in (source.tree, *(patch.digest for patch in source.patches)):
        if digest and not _SHA256.fullmatch(digest):
            yield f"the source {source.name} has a malformed digest: {digest!r}"
