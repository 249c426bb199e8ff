"""Find the LLVMs inside a wheel of Triton, and compare them with the pins in the data files.

The wheel is untrusted: texts in it can reveal a mistake, but cannot prove that nobody has tampered with it.
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
from toolchain.core.process import CommandError
from toolchain.core.zips import open_wheel
from toolchain.sources.pip import DOWNLOAD, pip, pip_error
from toolchain.sources.pypi import known_files
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store
from toolchain_lab.examine.revisions import INSIDE, Revision, VersionText, revisions

Verdict = Literal["pinned", "other", "contradictory", "missing", "untold", "no pin", "not pinned"]
# A library with one of these verdicts contradicts the data, or its texts contradict each other.
WRONG: tuple[Verdict, ...] = ("other", "contradictory", "missing")

_PROJECT = "triton"
_CORE = re.compile(r"(?:.*/)?_C/libtriton(?:\.[\w-]+)*\.(?:so|pyd|dylib|dll)")
_CODEGEN = re.compile(r"(?:.*/)?backends/(?P<name>\w+)/lib/(?:lib)?\w*codegen\w*\.(?:so|dylib|dll)")
_BITCODE = re.compile(r"(?:.*/)?backends/\w+/lib/[^/]+\.(?:bc|ll)")
# These are LLVM's names for code generators, by Triton's names for the backends.
TARGETS = {"amd": "AMDGPU", "nvidia": "NVPTX"}
_NAME = re.compile(
    r"(?P<project>[A-Za-z0-9._]+)-(?P<version>[A-Za-z0-9.+!_]+)(?:-[^-]+)?-(?P<tag>[^-]+-[^-]+-[^-]+)\.whl"
)
_MAX_TEXT = 1 << 20
# `download_wheel` tries these CPython versions in this order, and accepts manylinux wheels for these minor versions of
# glibc 2.
_PYTHONS = ("3.13", "3.12", "3.11", "3.10")
_GLIBCS = (17, 24, 26, 27, 28, 31, 34, 35)


@dataclass(frozen=True, kw_only=True)
class Library:
    """A file of a wheel that contains an LLVM or names a compiler, and the result of comparing it with the pins.

    Args:
        file: the name of the file in the wheel; empty if the data lists a library that the wheel lacks.
        part: `core`, `bitcode`, or the name of a GPU's code generator, such as `AMDGPU`.
        told: the revisions that are named by texts in the file.
        revision: the revision of the LLVM inside, or `COMMIT-BUILD` if a text contains both; empty if no text names
            it, if texts contradict each other, and for bitcode.
        llvm_version: the version of LLVM's bitcode writer, such as `17.0.0git`; empty if the file contains none, or
            several.
        pin: the pinned revision in the data; empty if the data contains none.
        pin_version: for `core`, the pinned major version in the data, such as `17`; empty if the data contains none.
        certainty: whether the pin was verified or inferred; empty if the data contains no pin.
        verdict: the result of the comparison; `not pinned` for bitcode.
        also: if the verdict is `other` or `no pin`, at most three releases in the data that are built with this LLVM.
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
        return {**_known(dataclasses.asdict(self)), "told": [_known(dataclasses.asdict(one)) for one in self.told]}


@dataclass(frozen=True, kw_only=True)
class WheelLlvm:
    """A wheel of Triton, and the LLVMs in it.

    Args:
        project, version: the project and the version in the wheel's metadata, or else in its name; empty if neither
            states them.
        tag: the tag in the wheel's name, such as `cp313-cp313-manylinux_2_28_x86_64`; empty if the name has none.
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
        """The libraries with a verdict in `WRONG`."""
        return tuple(library for library in self.libraries if library.verdict in WRONG)

    def as_json(self) -> dict[str, Any]:
        plain = {"file": self.file, "bytes": self.bytes, "sha256": self.sha256}
        named = {"project": self.project or None, "version": self.version or None, "tag": self.tag or None}
        return {**plain, **named, "libraries": [library.as_json() for library in self.libraries]}


@contextmanager
def wheel_named(text: str, cache: Cache) -> Iterator[Path]:
    """Yield the wheel that a user names: a file, `pypi:VERSION` or `pypi:PROJECT==VERSION`.

    A downloaded wheel whose digest is on record is kept in the store; any other download is deleted after the block.

    DigestError is raised if the digest of the wheel in the package index differs from the digest on record.
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


def download_wheel(name: str, version: str, folder: Path, *, machine: str) -> Path:
    """Download a wheel whose digest is unknown into a folder, and return its path.

    The wheel is for the newest CPython in `_PYTHONS` for which the index has a wheel.

    Args:
        machine: the architecture in platform tags, such as `x86_64`.
    """
    what = f"wheel of {name} {version} for {machine}"
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBCS] + [f"manylinux2014_{machine}"]
    for python in _PYTHONS:
        try:
            pip(
                *DOWNLOAD, "--implementation=cp", f"--python-version={python}",
                *(f"--platform={platform}" for platform in platforms), f"--dest={folder}", f"{name}=={version}",
            )  # fmt: skip
            break
        except CommandError as error:
            problem = pip_error(what, error)
            if not isinstance(problem, SourceError) or python == _PYTHONS[-1] or problem.id == "pip-missing":
                raise problem from error
    came = sorted(folder.glob("*.whl"))
    if len(came) != 1:
        raise SourceError(
            "not-in-index",
            f"the index has no {what}",
            why=f"pip downloaded {len(came)} wheels, and one was expected",
            fix="use a version that the index has, or give the wheel as a file",
        )
    return came[0]


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(member) as stream:
        while piece := stream.read(CHUNK):
            yield piece


def read_wheel(path: Path) -> WheelLlvm:
    """Read a wheel without unpacking or running it, and compare the LLVMs in it with the pins."""
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
    """Return the value of `Library.part` for a file, or an empty string if the file is not read."""
    if _CORE.fullmatch(name):
        return "core"
    if match := _CODEGEN.fullmatch(name):
        return TARGETS.get(match["name"], match["name"])
    return "bitcode" if _BITCODE.fullmatch(name) else ""


def _named(file: str, archive: zipfile.ZipFile) -> tuple[str, str]:
    """Return the project and the version from the wheel's metadata, or else from the file's name; each may be empty."""
    match = _NAME.fullmatch(file)
    metadata = [member for member in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", member.filename)]
    if len(metadata) > 1:
        raise HostileInputError(
            "wheel-metadata-twice",
            f"{file} contains the metadata of {len(metadata)} projects",
            fix="download the wheel again",
        )
    fields: dict[str, str] = {}
    if metadata:
        if metadata[0].file_size > _MAX_TEXT:
            raise HostileInputError(
                "wheel-metadata-too-large",
                f"the metadata in {file} is too large: {metadata[0].file_size} bytes",
                fix="download the wheel again",
            )
        headers = HeaderParser().parsestr(archive.read(metadata[0]).decode("utf-8", "replace"))
        fields = {key: str(headers[key]).strip() for key in ("Name", "Version") if headers[key]}
    project, version = fields.get("Name", match["project"] if match else ""), fields.get("Version", "")
    version = version or (match["version"] if match else "")
    return re.sub(r"[-_.]+", "-", _printable(project)).lower(), _printable(version)


def _printable(text: str) -> str:
    """Return `text` if it could be a name or a version, and otherwise an empty string."""
    return text if len(text) <= 100 and re.fullmatch(r"[\w.+!-]*", text, re.ASCII) else ""


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
        # The revision that was given to the build of the library takes precedence, but LLVM's own text may contradict
        # it.
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
    """Return the titles of at most three releases in the data that are built with LLVM at the commit `llvm`."""
    rows: list[TritonRelease | AotritonRelease] = [*triton_releases(), *aotriton_releases()]
    titles = [row.title for row in rows if llvm and row.llvm == llvm]
    titles += [f"{row.title}'s {pin.target}" for row in triton_releases() for pin in row.codegen if pin.llvm == llvm]
    return tuple(titles[:3])


def repository_inside(library: Library) -> str:
    """Return the source repository in the version string of the lld that a library contains.

    The result is an empty string if there is no such repository, or more than one.
    """
    repositories = {revision.repository for revision in library.told if revision.kind in INSIDE and revision.repository}
    return next(iter(repositories)) if len(repositories) == 1 else ""
