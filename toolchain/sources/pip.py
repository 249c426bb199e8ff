"""Run pip to download wheels, isolated from the current folder and from most `PIP_*` environment variables.

pip reads its configuration files as usual, and gets the environment variables in `KEPT` and `KEPT_FILES`. The options
in `DOWNLOAD` override both, so no configuration can make pip build a source distribution and run its code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolchain.core import process
from toolchain.core.environment import inherited, network_environment
from toolchain.core.errors import SourceError, UnreachableError
from toolchain.core.process import CommandError

KEPT: Mapping[str, str] = {
    "PIP_INDEX_URL": "the URL of the index",
    "PIP_EXTRA_INDEX_URL": "additional indexes",
    "PIP_NO_INDEX": "use only PIP_FIND_LINKS",
    "PIP_FIND_LINKS": "pages and absolute folders with files",
    "PIP_TRUSTED_HOST": "hosts that are used without TLS",
    "PIP_PROXY": "the proxy",
    "PIP_RETRIES": "the number of retries",
    "PIP_TIMEOUT": "the timeout in seconds",
    "PIP_DEFAULT_TIMEOUT": "the timeout in seconds",
    "PIP_NO_CACHE_DIR": "do not cache downloads",
}
"""The environment variables that are passed to pip unchanged, and the meaning of each."""

KEPT_FILES: Mapping[str, str] = {
    "PIP_CONFIG_FILE": "the configuration file, or /dev/null",
    "PIP_CERT": "the file with the certificates of authorities",
    "PIP_CLIENT_CERT": "the client certificate",
    "PIP_CACHE_DIR": "the folder of cached downloads",
}
"""The environment variables that contain a path and are passed to pip, and the meaning of each.

Other `PIP_*` variables are dropped, because `PIP_PYTHON` and `PIP_KEYRING_PROVIDER` start other programs,
`PIP_REQUIREMENT` and `PIP_EDITABLE` add other projects, and `PIP_NO_BINARY` requests source distributions.
"""

DOWNLOAD = (
    "download", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", "--only-binary=:all:",
)  # fmt: skip
"""The arguments of `pip download`. Only wheels are allowed, because pip would run the code of a source distribution."""


def pip(*words: str) -> str:
    """Run pip and return its standard output."""
    environment = {**network_environment(), **inherited(KEPT, files=KEPT_FILES), "COLUMNS": "2000"}
    return process.run(process.python("-m", "pip", *words), capture=True, env=environment).stdout


def pip_error(what: str, error: CommandError) -> SourceError | UnreachableError:
    """Return the error to raise after pip failed to download `what`."""
    output = "\n".join(error.tail[-6:])
    if "No module named pip" in output:
        return SourceError("pip-missing", "this Python has no pip", why=output, fix="install it: python -m ensurepip")
    if "No matching distribution" in output and "connection" not in output.lower():
        return SourceError(
            "not-in-index", f"the index has no {what}", why=output, fix="check which index `pip config list` names"
        )
    return UnreachableError(
        "index-unreachable",
        f"{what} could not be downloaded",
        why=output,
        fix="check the network and `pip config list`",
    )


def index_url() -> str:
    """Return the URL of the index that pip is configured to use, without a slash at its end."""
    try:
        text = pip("download", "--help")
    except CommandError as error:
        raise pip_error("the index", error) from error
    match = re.search(r"Python Package Index \(default\s+(\S+?)\)", text)
    if match is None:
        raise SourceError(
            "index-unknown", "the help of pip does not show the URL of the index", fix="use another version of pip"
        )
    return match[1].rstrip("/")
