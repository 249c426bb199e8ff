"""The environment of programs that run on the host: a fixed list of variables, each with its reason.

The list is closed, so variables that make a program load other code (`LD_PRELOAD`, `PYTHONPATH`, `PERL5LIB`, `GIT_*`,
`TAR_OPTIONS`) never reach a program. Callers add variables that one program needs: `network_environment` for programs
with a network, `sources/pip.py` for pip, `oci/credential_helper.py` and `engine/docker.py` for docker.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

INHERITED = {
    "HOME": "the caller's own configuration and logins: ~/.netrc, ~/.ssh, ~/.docker, ~/.config/pip",
    "TMPDIR": "the folder for large temporary files",
    "XDG_RUNTIME_DIR": "sockets and locks of docker, podman and buildah without root",
    "SSL_CERT_FILE": "the certificates that the caller trusts",
    "REGISTRY_AUTH_FILE": "the login file of skopeo, buildah and podman",
}
"""The variables that every program inherits, besides `PATH`; each names a file or folder."""

FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
"""The variables that every program gets with these values: messages in one language, and one time zone."""

NETWORK = {
    name: "the proxy, or what is asked without it"
    for stem in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for name in (stem, stem.upper())
}
NETWORK_FILES = {
    "SSL_CERT_FILE": "the certificates that the caller trusts",
    "SSL_CERT_DIR": "the same, as a folder",
    "CURL_CA_BUNDLE": "the same, for curl",
    "REQUESTS_CA_BUNDLE": "the same, for pip",
    "GIT_SSL_CAINFO": "the same, for git",
    "SSH_AUTH_SOCK": "the agent that holds the caller's SSH keys",
}
"""The variables that programs with a network get as well; those of the second group name files."""

_STANDARD = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def search_path() -> str:
    """Return the folders of the caller's `PATH` that are absolute.

    An empty or relative entry means the current folder or one in it, which may be a hostile checkout.
    """
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    return os.pathsep.join(folders) or _STANDARD


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a program: `PATH`, `INHERITED`, `FIXED`, and then `extra`."""
    return {"PATH": search_path(), **inherited(files=INHERITED), **FIXED, **(extra or {})}


def inherited(names: Iterable[str] = (), *, files: Iterable[str] = ()) -> dict[str, str]:
    """Return those of the named variables that are set.

    Args:
        names: variables that are taken as they are.
        files: variables that name a file or folder. A relative name becomes absolute because programs start in another
            folder than the caller's.
    """
    plain = {name: os.environ[name] for name in names if name in os.environ}
    return {**plain, **{name: str(Path(os.environ[name]).absolute()) for name in files if os.environ.get(name)}}


def network_environment() -> dict[str, str]:
    """Return the variables that only programs with a network get: proxies, trust stores and the SSH agent."""
    return inherited(NETWORK, files=NETWORK_FILES)


@contextlib.contextmanager
def python_children(variables: Mapping[str, str]) -> Iterator[None]:
    """Let multiprocessing start Pythons that ignore the current folder and the caller's `PYTHON*` variables.

    multiprocessing starts `python -c` with this process's own variables and has no option for others. The current
    folder would come first in the module path.

    Args:
        variables: further variables for the children.
    """
    wanted = {**variables, "PYTHONSAFEPATH": "1"}
    before = {name: value for name, value in os.environ.items() if name.startswith("PYTHON") or name in wanted}
    for name in before:
        del os.environ[name]
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update(before)
