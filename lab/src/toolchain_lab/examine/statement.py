"""Sign the result of an audit as an in-toto statement about the audited images or files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical, sha256_bytes, sha256_file, sha256_stream
from toolchain.core.errors import SourceError
from toolchain.core.stored_file import StoredFile
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.publish.attestations import AttachedEvidence, attach_statement
from toolchain.trust import attest, dsse
from toolchain.trust.keys import Signer
from toolchain_lab.examine.audit import Audit
from toolchain_lab.examine.places import opened, reading

# This is the type of the predicate; see docs/lab/audit.md.
PREDICATE = "urn:toolchain:audit:v1"


def audit_statement(name: str, digests: list[str], result_json: Mapping[str, Any]) -> attest.Statement:
    """Return the in-toto statement for an audit, without the keys `what` and `attested` of the result.

    Args:
        name, digests: the name that all subjects of the statement have, and the digest of each subject.
        result_json: the result of the audit as `audit --json` prints it.
    """
    result = {key: value for key, value in result_json.items() if key not in {"what", "attested"}}
    return {
        "_type": attest.STATEMENT,
        "subject": attest.subjects(name, digests),
        "predicateType": PREDICATE,
        "predicate": {"audit": result, "tool": __version__},
    }


def attach_audit(audited: Audit, result_json: Mapping[str, Any], signer: Signer, scratch: Path) -> AttachedEvidence:
    """Sign the statement about an audit, and attach it to the audited images in their registry or layout."""
    with open_place(parse(audited.what)) as place:
        statement = audit_statement("image", list(audited.images), result_json)
        return attach_statement(statement, list(audited.images), place, kind="audit", signer=signer, scratch=scratch)


def subject_of(what: str, cache: Cache) -> tuple[str, str]:
    """Return the name and the digest of the subject of a statement about a file, or about the files of a folder.

    The digest for a folder is that of the list of the paths and digests of its files.
    """
    path = Path(what)
    if path.is_file():
        with reading(what):
            return path.name, sha256_file(path)
    with opened(what, cache) as files:
        rows = [[file.path, _digest(file)] for file in files]
    return "files of a folder", sha256_bytes(canonical(sorted(rows)))


def signed_audit(
    audited: Audit, cache: Cache, result_json: Mapping[str, Any], signer: Signer, before: tuple[str, str] | None
) -> bytes:
    """Return the signed statement about an audit, as the bytes of a DSSE envelope.

    The subjects of the statement are the audited images, or the file or folder. SourceError is raised if the file or
    folder was changed during the audit.

    Args:
        before: the result of `subject_of` before the audit; None if images were audited.
    """
    if audited.images:
        digests, name = list(audited.images), "image"
    else:
        name, digest = subject_of(audited.what, cache)
        if (name, digest) != before:
            raise SourceError(
                "source-changed", f"{audited.what} was changed while it was audited", fix="run the command again"
            )
        digests = [digest]
    return dsse.sign(audit_statement(name, digests, result_json), signer).as_bytes()


def _digest(file: StoredFile) -> str:
    with file.start() as stream:
        return sha256_stream(stream)
