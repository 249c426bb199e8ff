"""Add an SBOM to a wheel as PEP 770 specifies it.

The SBOM is a CycloneDX 1.6 document. It names the sources from which the wheel was compiled, but not the programs
of the build machine, so that its bytes do not depend on that machine. The document is written without a library,
because its bytes could otherwise depend on the version of that library. Whoever changes these bytes must also change
`stages.wheels.SBOM_WRITER`.
"""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import NAMESPACE_OID, uuid5

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from toolchain.core.digest import CHUNK, EPOCH
from toolchain.core.entry_names import EntryNames
from toolchain.core.errors import BuildError, HostileInputError
from toolchain.core.record import RecordedSource
from toolchain.core.zips import dist_info, open_wheel
from toolchain.trust.image_facts import is_tool, origin, purl

_FILE = "sboms/toolchain.cdx.json"
_LARGEST_FILE = 8 << 20
_HASHES = ("sha256", "sha384", "sha512")  # algorithms that the wheel format allows


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The sources of a wheel.

    Args:
        sources: the sources of the stage that builds the wheel, and of the stages whose code the wheel contains. They
            may include wheels that the build only imports, which the SBOM does not list.
    """

    input_digest: str
    sources: Sequence[RecordedSource]


def add_sbom(wheel: Path, contents: Contents) -> None:
    """Add the SBOM to a wheel, and list it in the wheel's RECORD.

    The wheel is checked first, because the build of a project may produce a malformed one. BuildError is raised if its
    METADATA, RECORD or WHEEL is missing, if its name, METADATA or RECORD is malformed or contradicts the rest of the
    wheel, or if it already contains a file with the name of the SBOM. SourceError or HostileInputError is raised if
    `open_wheel` refuses it. Files other than RECORD are not compressed again, because the result could depend on the
    version of zlib.
    """
    try:
        project, version, *_ = parse_wheel_filename(wheel.name)
    except ValueError:  # raised by packaging, or by Python for a number with too many digits
        raise _refused(
            wheel, "wheel-without-name", "its file name does not consist of a project, a version and tags"
        ) from None
    folder = dist_info(wheel)
    with open_wheel(wheel) as archive:
        names = archive.namelist()
        if others := sorted(
            {f"{top}/" for name in names if (top := name.split("/")[0]).endswith(".dist-info")} - {folder}
        ):
            raise _refused(
                wheel, "wheel-without-name", f"it contains the folder {others[0]}, but its name requires {folder}"
            )
        if missing := sorted({f"{folder}{part}" for part in ("METADATA", "RECORD", "WHEEL")} - {*names}):
            raise _refused(wheel, "wheel-without-record", f"it does not contain {missing[0]}")
        taken = EntryNames(wheel.name, ignore_case=True)
        try:
            for name in (*names, f"{folder}{_FILE}"):
                taken.add(name, folder=name.endswith("/"))
        except HostileInputError:  # the SBOM's name is taken, because `open_wheel` checked the other names
            why = f"it contains {folder}{_FILE}, or a file or folder whose name differs only in case"
            raise _refused(wheel, "wheel-sbom-name-taken", why) from None
        fields = email.parser.HeaderParser().parsestr(_text(wheel, archive, f"{folder}METADATA"))
        if not _names(fields.get_all("Name"), fields.get_all("Version"), project, version):
            raise _refused(wheel, "wheel-without-name", f"its METADATA does not name {project} {version}")
        rows = _checked_rows(wheel, archive, f"{folder}RECORD")
    document = document_of(project, str(version), contents)
    listing = io.StringIO()
    csv.writer(listing, lineterminator="\n").writerows(
        [*rows, [f"{folder}{_FILE}", f"sha256={_encoded(hashlib.sha256(document).digest())}", str(len(document))]]
    )
    _replace(
        wheel, f"{folder}RECORD", [(f"{folder}{_FILE}", document), (f"{folder}RECORD", listing.getvalue().encode())]
    )


def document_of(project: str, version: str, contents: Contents) -> bytes:
    """Return the SBOM of a project's wheel as a CycloneDX 1.6 document in JSON.

    The document describes each source only by facts that determine the input digest. Therefore it contains no names of
    patch files, folders or mirrors.
    """
    rows = {row.name: row for row in contents.sources if not is_tool(row)}
    components = [_component(rows[name]) for name in sorted(rows)]
    own = {
        "type": "library",
        "bom-ref": "wheel",
        "name": project,
        "version": version,
        "purl": purl("pypi", project, version=version),
        "properties": [{"name": "toolchain:input-digest", "value": contents.input_digest}],
    }
    below = [component["bom-ref"] for component in components]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": uuid5(NAMESPACE_OID, f"{contents.input_digest} {project} {version}").urn,
        "metadata": {"timestamp": datetime.fromtimestamp(EPOCH, UTC).isoformat(), "component": own},
        "components": components,
        "dependencies": [*({"ref": ref} for ref in below), {"ref": "wheel", "dependsOn": below}],
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _component(row: RecordedSource) -> dict[str, Any]:
    # The URL of an archive is removed, because the same archive may come from another mirror.
    source = origin(replace(row, repository="") if row.kind == "archive" else row)
    named = {row.ref if row.kind in {"git", "distro", "pypi"} else "", row.digest or ""} - {""}
    component = {
        "type": "library",
        "bom-ref": f"source:{row.name}",
        "name": row.name,
        "version": source.version,
        "purl": source.purl,
        "hashes": [{"alg": "SHA-256", "content": source.sha256}] if source.sha256 else [],
        "properties": [
            *({"name": "toolchain:patch", "value": patch.digest} for patch in row.patches),
            *({"name": "toolchain:source", "value": text} for text in sorted(named)),
        ],
    }
    return {key: value for key, value in component.items() if value}


def _refused(wheel: Path, id: str, why: str) -> BuildError:
    return BuildError(id, f"no SBOM can be added to {wheel.name}", why=why, fix="see the log, and correct the build")


def _encoded(digest: bytes) -> str:
    """Return a digest in the form that RECORD uses: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _text(wheel: Path, archive: zipfile.ZipFile, name: str) -> str:
    if archive.getinfo(name).file_size > _LARGEST_FILE:
        raise _refused(wheel, "wheel-without-record", f"{name} is larger than 8 MiB")
    try:
        return archive.read(name).decode()
    except UnicodeDecodeError:
        raise _refused(wheel, "wheel-without-record", f"{name} is not UTF-8") from None


def _names(projects: Sequence[str] | None, versions: Sequence[str] | None, project: str, version: Version) -> bool:
    """Return whether METADATA contains exactly one `Name` and one `Version`, and both are as expected."""
    try:
        return [canonicalize_name(name.strip()) for name in projects or ()] == [project] and [
            Version(text) for text in versions or ()
        ] == [version]
    except ValueError:
        return False


def _checked_rows(wheel: Path, archive: zipfile.ZipFile, record: str) -> list[list[str]]:
    """Return the rows of RECORD; raise BuildError unless they match the files of the wheel, except RECORD's own row."""
    try:
        rows = [row for row in csv.reader(io.StringIO(_text(wheel, archive, record)), strict=True) if row]
    except csv.Error:
        raise _refused(wheel, "wheel-record-mismatch", f"{record} is not valid CSV") from None
    listed = {row[0]: row for row in rows}
    files = {name for name in archive.namelist() if not name.endswith("/")}
    if any(len(row) != 3 for row in rows) or len(listed) != len(rows):
        raise _refused(
            wheel, "wheel-record-mismatch", f"a row of {record} does not have three fields, or a file has two rows"
        )
    if differing := sorted(files ^ listed.keys()):
        raise _refused(
            wheel, "wheel-record-mismatch", f"the files of the wheel and of its {record} differ: {differing[0]}"
        )
    for name in sorted(files - {record}):
        algorithm, _, text = listed[name][1].partition("=")
        with archive.open(name) as stream:
            content = cast("io.BufferedIOBase", stream)
            found = hashlib.file_digest(content, algorithm).digest() if algorithm in _HASHES else b""
        size = listed[name][2]
        if not found or _encoded(found) != text or size not in {"", str(archive.getinfo(name).file_size)}:
            raise _refused(wheel, "wheel-record-mismatch", f"{record} contains another hash or size of {name}")
    return rows


def _replace(wheel: Path, name: str, files: Sequence[tuple[str, bytes]]) -> None:
    """Remove the file `name` from a wheel, and append files, uncompressed, with the removed file's date and mode."""
    with zipfile.ZipFile(wheel, "a") as archive:
        stream = cast("io.BufferedRandom", archive.fp)
        removed = archive.getinfo(name)
        later = [row for row in archive.filelist if row.header_offset > removed.header_offset]
        end = min((row.header_offset for row in later), default=archive.start_dir)
        gap = end - removed.header_offset
        for start in range(end, archive.start_dir, CHUNK):  # in pieces, because entries may be gigabytes large
            stream.seek(start)
            moved = stream.read(min(CHUNK, archive.start_dir - start))
            stream.seek(start - gap)
            stream.write(moved)
        for row in later:
            row.header_offset -= gap
        archive.start_dir -= gap
        archive.filelist.remove(removed)
        del archive.NameToInfo[name]
        for added, content in files:
            info = zipfile.ZipInfo(added, removed.date_time)
            info.external_attr = removed.external_attr
            archive.writestr(info, content)
