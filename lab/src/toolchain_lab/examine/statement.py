"""An audit as a signed in-toto statement about what was audited."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical, sha256_bytes, sha256_file
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.publish.attestations import AttachedEvidence, attach_statement
from toolchain.trust import attest, dsse
from toolchain.trust.keys import Signer
from toolchain_lab.examine.places import images_of, opened

# A name of this project's own, not an address; explained in docs/lab/audit.md.
PREDICATE = "urn:toolchain:audit:v1"


def audit_statement(name: str, digests: list[str], result_json: Mapping[str, Any]) -> attest.Statement:
    """The statement: the result without the path of what was audited."""
    result = {key: value for key, value in result_json.items() if key not in {"what", "attested"}}
    return {
        "_type": attest.STATEMENT,
        "subject": attest.subjects(name, digests),
        "predicateType": PREDICATE,
        "predicate": {"audit": result, "tool": __version__},
    }


def attach_audit(
    what: str, cache: Cache, result_json: Mapping[str, Any], signer: Signer, scratch: Path
) -> AttachedEvidence:
    """Attach the signed statement to an image that a reference names.

    Raises:
        RegistryError, UnreachableError: see `Place.attach`.
    """
    _, images = images_of(what, cache, scratch)
    digests = [image.digest for image in images]
    with open_place(parse(what)) as place:
        statement = audit_statement("image", digests, result_json)
        return attach_statement(statement, digests, place, kind="audit", signer=signer, scratch=scratch)


def signed_audit(what: str, cache: Cache, result_json: Mapping[str, Any], signer: Signer) -> bytes:
    """The signed statement about a file by its digest, about a folder by that of the list of its files, or about an
    image by that of its manifest."""
    path = Path(what)
    if path.is_file():
        digests, name = [sha256_file(path)], path.name
    elif path.is_dir():
        with opened(what, cache) as files:
            rows = [[file, sha256_bytes(content())] for file, content in files]
        digests, name = [sha256_bytes(canonical(sorted(rows)))], "files of a folder"
    else:
        with tempfile.TemporaryDirectory(prefix="toolchain-audit-") as scratch:
            digests, name = [image.digest for image in images_of(what, cache, Path(scratch))[1]], "image"
    return dsse.sign(audit_statement(name, digests, result_json), signer).as_bytes()
