"""Run pip as a downloader: isolated from the current folder, and with a known part of the caller's configuration.

pip reads its configuration files as always: pip.conf of the machine, of the user below `HOME`, and of this Python. They
belong to root or to the caller. Of the caller's `PIP_*` variables it gets those in `KEPT`. `DOWNLOAD` comes after both
and wins, so that no configuration makes pip build a source distribution, which would run its code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolchain.core import process
from toolchain.core.environment import inherited, network_environment
from toolchain.core.errors import SourceError, UnreachableError
from toolchain.core.process import CommandError

KEPT: Mapping[str, str] = {
    "PIP_INDEX_URL": "the index or its mirror",
    "PIP_EXTRA_INDEX_URL": "further indexes",
    "PIP_NO_INDEX": "a machine that only has PIP_FIND_LINKS",
    "PIP_FIND_LINKS": "pages and absolute folders with files",
    "PIP_TRUSTED_HOST": "a mirror without TLS",
    "PIP_PROXY": "a proxy for pip alone",
    "PIP_RETRIES": "attempts",
    "PIP_TIMEOUT": "seconds to wait for an answer",
    "PIP_DEFAULT_TIMEOUT": "the same",
    "PIP_NO_CACHE_DIR": "no cache of downloads",
}
"""The variables that pip gets as they are, and what each is for."""

KEPT_FILES: Mapping[str, str] = {
    "PIP_CONFIG_FILE": "another pip.conf, or none",
    "PIP_CERT": "the certificates of a mirror",
    "PIP_CLIENT_CERT": "the caller's certificate for a mirror",
    "PIP_CACHE_DIR": "the cache of downloads",
}
"""The variables with files that pip gets, and what each is for.

Others are dropped. `PIP_PYTHON` and `PIP_KEYRING_PROVIDER` start further programs, `PIP_REQUIREMENT` and `PIP_EDITABLE`
add other projects, and `PIP_NO_BINARY` asks for source distributions.
"""

DOWNLOAD = (
    "download", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", "--only-binary=:all:",
)  # fmt: skip
"""`pip download` of wheels alone: a source distribution would have to be built to be described."""


def pip(*words: str) -> str:
    """Run pip and return its standard output."""
    environment = {**network_environment(), **inherited(KEPT, files=KEPT_FILES), "COLUMNS": "2000"}
    return process.run(process.python("-m", "pip", *words), capture=True, env=environment).stdout


def pip_error(what: str, error: CommandError) -> SourceError | UnreachableError:
    """Return the error for a pip that could not fetch `what`."""
    output = "\n".join(error.tail[-6:])
    if "No module named pip" in output:
        return SourceError("pip-missing", "this Python has no pip", why=output, fix="install it: python -m ensurepip")
    if "No matching distribution" in output and "connection" not in output.lower():
        return SourceError(
            "not-in-index",
            f"the index has no {what}",
            why=output,
            fix="check `pip config list`: which index serves this machine",
        )
    return UnreachableError(
        "index-unreachable", f"{what} could not be fetched", why=output, fix="check the network and `pip config list`"
    )


def index_url() -> str:
    """Return the URL of the index that pip is configured to use, as its help shows it."""
    try:
        text = pip("download", "--help")
    except CommandError as error:
        raise pip_error("the index", error) from error
    match = re.search(r"Python Package Index \(default\s+(\S+?)\)", text)
    if match is None:
        raise SourceError("index-unknown", "pip does not say which index it uses", fix="check `pip config list`")
    return match[1].rstrip("/")
