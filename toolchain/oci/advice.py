"""Remedies for a registry's error answers."""

from __future__ import annotations

from toolchain.oci.auth import login_command
from toolchain.web import TRANSIENT

# What registries call a thing that was there a moment ago, or that another publisher is about to bring.
_GONE = frozenset({"BLOB_UPLOAD_UNKNOWN", "MANIFEST_BLOB_UNKNOWN", "BLOB_UPLOAD_INVALID", "DIGEST_INVALID"})
_PAGE = "docs/registries.md"


def advice(host: str, status: int, code: str, *, sending: bool) -> str:
    """The remedy for an unexpected answer.

    Args:
        code: what the registry calls it, e.g. `NAME_UNKNOWN`; empty if it does not say.
        sending: whether something was to be brought there, rather than read.
    """
    login = login_command(host)
    known = (
        (
            status in {401, 403} or code in {"DENIED", "UNAUTHORIZED"},
            f"log in{' as somebody who may push there' if sending else ''}: {login}",
        ),
        (
            status == 429 or code == "TOOMANYREQUESTS",
            f"wait, then try again; with a login the limit may be higher: {login}",
        ),
        (
            status == 413,
            "raise the limit of the registry, or of the server in front of it (in nginx client_max_body_size); see "
            + _PAGE,
        ),
        (code in _GONE or status in TRANSIENT or status >= 500, "try again; if it stays, ask who runs the registry"),
        (status == 404 and code == "BLOB_UNKNOWN", "the image there is not whole: publish it again, or ask who did"),
        (
            status == 404 or code == "NAME_UNKNOWN",
            f"create the repository or project there, or log in as somebody who may push to it: {login}"
            if sending
            else f"check the name and the tag; what is private there needs a login: {login}",
        ),
        (True, f"ask who runs the registry: it would answer the same again ({_PAGE} says how it is asked)"),
    )
    return next(text for fits, text in known if fits)
