"""Put an SBOM into a wheel, as PEP 770 defines it; equal inputs give equal bytes.

The document is CycloneDX 1.6. It names the sources that the wheel was compiled from and no program of the host, so that
the wheel has the same bytes wherever it is built. A change of its bytes needs another `stages.wheels.SBOM_WRITER`.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from uuid import NAMESPACE_OID, uuid5

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from toolchain.core import strict_json
from toolchain.core.digest import EPOCH
from toolchain.core.errors import BuildError
from toolchain.core.record import RecordedSource
from toolchain.core.zips import open_wheel
from toolchain.trust.image_facts import is_tool, origin, purl

_FILE = "sboms/toolchain.cdx.json"
_LARGEST_FILE = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a wheel was made from.

    Args:
        input_digest: the input digest of the stage that builds it.
        sources: the sources of the stage and of the stages whose code the wheel holds. Wheels that the build only
            imports are left out of the SBOM.
    """

    input_digest: str
    sources: Sequence[RecordedSource]


def add_sbom(wheel: Path, contents: Contents) -> None:
    """Add the SBOM to a wheel that has none of this name, and to the wheel's list of files.

    The compressed bytes of the other files stay, because other versions of zlib would write other bytes.
    """
    with open_wheel(wheel) as archive:
        names = archive.namelist()
        folder = next((name[: -len("RECORD")] for name in names if name.endswith(".dist-info/RECORD")), "")
        wanted = (f"{folder}RECORD", f"{folder}METADATA")
        if folder.count("/") != 1 or not {*wanted} <= {*names}:
            why = "it has no RECORD or no METADATA"
        elif f"{folder}{_FILE}" in names:
            why = f"it has {_FILE} already"
        elif any(archive.getinfo(name).file_size > _LARGEST_FILE for name in wanted):
            why = "its RECORD or METADATA has more than 8 MiB"
        else:
            why = ""
        if why:
            fix = "see what the project's build packs"
            raise BuildError("wheel-without-record", f"{wheel.name} takes no SBOM", why=why, fix=fix)
        record, metadata = (archive.read(name).decode("utf-8", "replace") for name in wanted)
    project, version = _named(wheel, metadata)
    document = document_of(project, version, contents)
    digest = base64.urlsafe_b64encode(hashlib.sha256(document).digest()).rstrip(b"=").decode()
    rows = [*csv.reader(io.StringIO(record)), [f"{folder}{_FILE}", f"sha256={digest}", str(len(document))]]
    listing = io.StringIO()
    csv.writer(listing, lineterminator="\n").writerows(rows)
    _replace(
        wheel, f"{folder}RECORD", [(f"{folder}{_FILE}", document), (f"{folder}RECORD", listing.getvalue().encode())]
    )


def document_of(project: str, version: str, contents: Contents) -> bytes:
    """Return the SBOM of a wheel of a project as CycloneDX 1.6 in JSON."""
    from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415 - 0.15 seconds
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    def component(row: RecordedSource) -> Component:
        source = origin(row)
        patches = [f"{patch.name} {patch.digest}" for patch in row.patches]
        return Component(
            type=ComponentType.LIBRARY,
            name=row.name,
            version=source.version,
            bom_ref=f"source:{row.name}",
            purl=PackageURL.from_string(source.purl),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=source.sha256)] if source.sha256 else [],
            properties=[
                *(Property(name="toolchain:source", value=text) for text in (row.ref, row.digest) if text),
                *(Property(name="toolchain:patch", value=text) for text in patches),
            ],
        )

    own = Component(
        type=ComponentType.LIBRARY,
        name=project,
        version=version,
        bom_ref="wheel",
        purl=PackageURL.from_string(purl("pypi", project, version=version)),
        properties=[Property(name="toolchain:input-digest", value=contents.input_digest)],
    )
    sources = [component(row) for row in contents.sources if not is_tool(row)]
    bom = Bom(
        serial_number=uuid5(NAMESPACE_OID, f"{contents.input_digest} {project} {version}"),
        components=sources,
        metadata=BomMetaData(timestamp=datetime.fromtimestamp(EPOCH, UTC), component=own),
    )
    bom.register_dependency(own, sources)
    document = dict(strict_json.read(JsonV1Dot6(bom).output_as_string()))
    document["metadata"].pop("tools", None)
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _named(wheel: Path, metadata: str) -> tuple[str, str]:
    """Return the project and the version that METADATA names."""
    fields = email.parser.HeaderParser().parsestr(metadata)
    try:
        return canonicalize_name(fields["Name"] or "", validate=True), str(Version(fields["Version"] or ""))
    except (InvalidName, InvalidVersion):
        raise BuildError(
            "wheel-without-name",
            f"{wheel.name} takes no SBOM",
            why="its METADATA names no project or no version",
            fix="see the log",
        ) from None


def _replace(wheel: Path, name: str, files: Sequence[tuple[str, bytes]]) -> None:
    """Remove a file from a wheel and append files to it, uncompressed, with the date and rights of the removed one."""
    with zipfile.ZipFile(wheel, "a") as archive:
        stream = cast("io.BufferedRandom", archive.fp)
        rows = sorted(archive.filelist, key=lambda row: row.header_offset)
        ends = [*(row.header_offset for row in rows[1:]), archive.start_dir]
        at = next(number for number, row in enumerate(rows) if row.filename == name)
        removed, place = rows[at], rows[at].header_offset
        for row, end in zip(rows[at + 1 :], ends[at + 1 :], strict=True):
            stream.seek(row.header_offset)
            data = stream.read(end - row.header_offset)
            stream.seek(place)
            stream.write(data)
            row.header_offset, place = place, place + len(data)
        archive.start_dir = place
        archive.filelist.remove(removed)
        del archive.NameToInfo[name]
        for added, content in files:
            info = zipfile.ZipInfo(added, removed.date_time)
            info.external_attr = removed.external_attr
            archive.writestr(info, content)
