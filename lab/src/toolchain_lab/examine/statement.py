"""Sign the result of an audit as an in-toto statement about the audited images or files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical, sha256_bytes, sha256_file, sha256_stream
from toolchain.core.stored_file import StoredFile
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.publish.attestations import AttachedEvidence, attach_statement
from toolchain.trust import attest, dsse
from toolchain.trust.keys import Signer
from toolchain_lab.examine.audit import Audit
from toolchain_lab.examine.places import opened

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


def signed_audit(audited: Audit, cache: Cache, result_json: Mapping[str, Any], signer: Signer) -> bytes:
    """Return the signed statement about an audit, as the bytes of a DSSE envelope.

    The subjects of the statement are the audited images, the audited file, or the list of the paths and digests of the
    files in the audited folder.
    """
    path = Path(audited.what)
    if audited.images:
        digests, name = list(audited.images), "image"
    elif path.is_file():
        digests, name = [sha256_file(path)], path.name
    else:
        with opened(audited.what, cache) as files:
            rows = [[file.path, _digest(file)] for file in files]
        digests, name = [sha256_bytes(canonical(sorted(rows)))], "files of a folder"
    return dsse.sign(audit_statement(name, digests, result_json), signer).as_bytes()


def _digest(file: StoredFile) -> str:
    with file.start() as stream:
        return sha256_stream(stream)
