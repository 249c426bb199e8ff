"""The LLVMs inside a wheel of Triton, and whether they are those that the data pins for it.

The wheel is untrusted. Its own text can show a mistake, but is not a proof against deception.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Literal

from toolchain.catalog.architectures import machine_of, this_machine
from toolchain.catalog.components import needs_for
from toolchain.catalog.release_data import AotritonRelease, TritonRelease, aotriton_releases, triton_releases
from toolchain.core.cache import Cache
from toolchain.core.digest import CHUNK, sha256_file
from toolchain.core.errors import HostileInputError, SourceError
from toolchain.core.locks import in_use
from toolchain.core.zips import open_wheel
from toolchain.sources.pypi import download_wheel, known_files
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store
from toolchain_lab.examine.revisions import INSIDE, Revision, VersionText, revisions

Verdict = Literal["pinned", "other", "contradictory", "missing", "untold", "no pin", "not pinned"]
# Verdicts that contradict the data.
WRONG: tuple[Verdict, ...] = ("other", "contradictory", "missing")

_PROJECT = "triton"
_CORE = re.compile(r"(?:.*/)?_C/libtriton(?:\.[\w-]+)*\.(?:so|pyd|dylib|dll)")
_CODEGEN = re.compile(r"(?:.*/)?backends/(?P<name>\w+)/lib/(?:lib)?\w*codegen\w*\.(?:so|dylib|dll)")
_BITCODE = re.compile(r"(?:.*/)?backends/\w+/lib/[^/]+\.(?:bc|ll)")
# Triton's name of a backend, and LLVM's of the code generator.
TARGETS = {"amd": "AMDGPU", "nvidia": "NVPTX"}
_NAME = re.compile(
    r"(?P<project>[A-Za-z0-9._]+)-(?P<version>[A-Za-z0-9.+!_]+)(?:-[^-]+)?-(?P<tag>[^-]+-[^-]+-[^-]+)\.whl"
)
_MAX_TEXT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Library:
    """A file of the wheel that names a compiler, and how it compares with the pins.

    Args:
        file: its name in the wheel; empty if the wheel lacks a file that the data has.
        part: `core`, LLVM's name of a GPU's code generator (`AMDGPU`), or `bitcode`.
        revision: the one LLVM inside; of a codegen library with the number of its build, `COMMIT-BUILD`; empty if no
            text names one, or several differ. It is empty for bitcode, whose text names its compiler.
        llvm_version: `17.0.0git`, of LLVM's bitcode writer; empty if there is none, or several differ.
        pin: what the data has for it, in the same form; empty if it has none.
        pin_version: the major version that the data has for `core`, `17`; empty if it has none.
        verdict: `not pinned` for bitcode, which only names its compiler.
        also: what else on record is built with this LLVM.
    """

    file: str
    part: str
    told: tuple[Revision, ...] = ()
    revision: str = ""
    llvm_version: str = ""
    pin: str = ""
    pin_version: str = ""
    certainty: str = ""
    verdict: Verdict = "not pinned"
    also: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `--json`: nothing that is not known is an empty string, it is null."""
        return {**_known(dataclasses.asdict(self)), "told": [_known(dataclasses.asdict(one)) for one in self.told]}


@dataclass(frozen=True, kw_only=True)
class WheelLlvm:
    """A wheel, and the LLVMs in it.

    Args:
        project, version: of its metadata, else of its name; empty if neither has it.
        tag: `cp313-cp313-manylinux_2_28_x86_64`, of its name.
    """

    file: str
    bytes: int
    sha256: str
    project: str
    version: str
    tag: str
    libraries: tuple[Library, ...]

    @property
    def wrong(self) -> tuple[Library, ...]:
        """The LLVMs that do not match the data."""
        return tuple(library for library in self.libraries if library.verdict in WRONG)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        plain = {"file": self.file, "bytes": self.bytes, "sha256": self.sha256}
        named = {"project": self.project or None, "version": self.version or None, "tag": self.tag or None}
        return {**plain, **named, "libraries": [library.as_json() for library in self.libraries]}


@contextmanager
def wheel_named(text: str, cache: Cache) -> Iterator[Path]:
    """The wheel that a user names: a file, or one of the index by `pypi:VERSION` or `pypi:PROJECT==VERSION`.

    One whose digest is on record comes through the store; any other is there until the end of the block.

    Raises:
        SourceError: there is none of that name.
        DigestError: the index has other bytes than are on record.
        UnreachableError: the index does not answer.
    """
    if not text.startswith("pypi:"):
        if not Path(text).is_file():
            raise SourceError(
                "wheel-missing", f"there is no file {text}", fix="name a wheel: FILE.whl, or pypi:triton==VERSION"
            )
        yield Path(text)
        return
    spec = parse_source_spec(text, project=_PROJECT)
    if not spec.version or any((row.project, row.version) == (spec.where, spec.version) for row in known_files()):
        yield fetch_source(locate("triton", spec, cache=cache), cache=cache, offline=False).path
        return
    with in_use(cache, make=True):
        partial = Store(cache.store).partial
        partial.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=partial) as folder:
            machine = machine_of(this_machine()).kernel
            yield download_wheel(spec.where, spec.version, Path(folder), machine=machine)


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's content in bounded pieces. zipfile compares its CRC at the end."""
    with archive.open(member) as stream:
        while piece := stream.read(CHUNK):
            yield piece


def read_wheel(path: Path) -> WheelLlvm:
    """Read a wheel and compare the LLVMs in it with the pins. Nothing of it is unpacked or run.

    Raises:
        SourceError: it is not a wheel, or a damaged one.
        HostileInputError: its content would harm; see `open_wheel` and `revisions`.
    """
    with open_wheel(path) as archive:
        project, version = _named(path.name, archive)
        libraries = [
            _library(member.filename, part, _pieces(archive, member))
            for member in archive.infolist()
            if (part := _part(member.filename))
        ]
    name = _NAME.fullmatch(path.name)
    return WheelLlvm(
        file=path.name,
        bytes=path.stat().st_size,
        sha256=sha256_file(path),
        project=project,
        version=version,
        tag=name["tag"] if name else "",
        libraries=_compared(libraries, project, version),
    )


def _library(name: str, part: str, content: Iterable[bytes]) -> Library:
    versions = VersionText()
    told = revisions(versions.watch(content), name)
    version = next(iter(versions.found)) if len(versions.found) == 1 else ""
    return Library(file=name, part=part, told=told, llvm_version=version)


def _part(name: str) -> str:
    """Which part of Triton a file is; empty for what holds no LLVM."""
    if _CORE.fullmatch(name):
        return "core"
    if match := _CODEGEN.fullmatch(name):
        return TARGETS.get(match["name"], match["name"])
    return "bitcode" if _BITCODE.fullmatch(name) else ""


def _named(file: str, archive: zipfile.ZipFile) -> tuple[str, str]:
    """Project and version by the metadata, else by the file's name."""
    match = _NAME.fullmatch(file)
    metadata = [member for member in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", member.filename)]
    if len(metadata) > 1:
        raise HostileInputError(
            "wheel-metadata-twice",
            f"{file} has the metadata of {len(metadata)} projects",
            fix="download the wheel again",
        )
    fields: dict[str, str] = {}
    if metadata:
        if metadata[0].file_size > _MAX_TEXT:
            raise HostileInputError(
                "wheel-metadata-too-large",
                f"{file} has metadata of {metadata[0].file_size} bytes",
                fix="download the wheel again",
            )
        headers = HeaderParser().parsestr(archive.read(metadata[0]).decode("utf-8", "replace"))
        fields = {key: str(headers[key]).strip() for key in ("Name", "Version") if headers[key]}
    project, version = fields.get("Name", match["project"] if match else ""), fields.get("Version", "")
    version = version or (match["version"] if match else "")
    return re.sub(r"[-_.]+", "-", _printable(project)).lower(), _printable(version)


def _printable(text: str) -> str:
    """The text if it can be a name, else an empty one."""
    return text if len(text) <= 100 and re.fullmatch(r"[\w.+!-]*", text, re.ASCII) else ""


# --- compared with the pins ---


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value if value != "" else None for name, value in row.items()}


def _compared(libraries: Sequence[Library], project: str, version: str) -> tuple[Library, ...]:
    rows = [row for row in triton_releases() if row.version and row.version == version and project == _PROJECT]
    row = rows[0] if rows else None
    pins = {} if row is None else {pin.target: (pin.revision, pin.certainty) for pin in row.codegen}
    if row is not None and row.llvm:
        pins["core"] = (row.llvm, row.certainty)
    lacking = [
        Library(file="", part=part) for part in sorted(pins) if part not in {library.part for library in libraries}
    ]
    order = {"core": 0, "bitcode": 2}
    major = _major(row)
    judged = [_judged(library, *pins.get(library.part, ("", "")), major) for library in (*libraries, *lacking)]
    return tuple(sorted(judged, key=lambda library: (order.get(library.part, 1), library.part, library.file)))


def _major(row: TritonRelease | None) -> str:
    """The major version of a release's LLVM by the data; empty if they have none."""
    if row is None:
        return ""
    return row.llvm_version.partition(".")[0] or str(needs_for(row.version).llvm)


def _judged(library: Library, pin: str, certainty: str, major: str) -> Library:
    if library.part == "bitcode":
        return library
    inside = {text.revision for text in library.told if text.kind in INSIDE}
    named = {f"{text.revision}-{text.build}" for text in library.told if text.kind == "codegen"}
    if library.part == "core":
        clash = len(inside) > 1
        revision = "" if clash else next(iter(inside), "")
    else:
        # The name was given to the library's build; LLVM's own text may differ.
        clash = len(named) > 1 or len(inside) > 1 or bool(named and inside - {text.partition("-")[0] for text in named})
        revision = "" if clash else next(iter(named or inside), "")
        pin = pin if named else pin.partition("-")[0]
    verdict: Verdict
    if not library.file:
        verdict = "missing"
    elif clash:
        verdict = "contradictory"
    elif not revision:
        differs = library.part == "core" and major and library.llvm_version.partition(".")[0] not in {"", major}
        verdict = "other" if differs else "untold"
    elif not pin:
        verdict = "no pin"
    else:
        verdict = "pinned" if revision == pin else "other"
    also = _on_record(revision.partition("-")[0]) if verdict in {"other", "no pin"} else ()
    judged = dataclasses.replace(library, revision=revision, pin=pin, certainty=certainty, verdict=verdict, also=also)
    return dataclasses.replace(judged, pin_version=major if library.part == "core" else "")


def _on_record(llvm: str) -> tuple[str, ...]:
    """The releases on record with an LLVM, at most three of them."""
    rows: list[TritonRelease | AotritonRelease] = [*triton_releases(), *aotriton_releases()]
    titles = [row.title for row in rows if llvm and row.llvm == llvm]
    titles += [f"{row.title}'s {pin.target}" for row in triton_releases() for pin in row.codegen if pin.llvm == llvm]
    return tuple(titles[:3])


def repository_inside(library: Library) -> str:
    """The repository of the LLVM inside, by lld's text; empty if it has none."""
    repositories = {revision.repository for revision in library.told if revision.kind in INSIDE and revision.repository}
    return next(iter(repositories)) if len(repositories) == 1 else ""
