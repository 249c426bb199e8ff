"""The environment variables that `core.process` passes to programs on the host.

This module lists the variables that programs inherit from the caller in addition to `PATH`, with a reason for each. So
programs do not inherit variables through which code can be injected, such as `LD_PRELOAD` and `PYTHONPATH`. Callers add
the variables that a single program needs.
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
"""The environment variables that `clean_environment` passes on in addition to `PATH`; each contains a path."""

FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}
"""The environment variables that have fixed values, so that messages and times do not depend on the user."""

NETWORK = {
    name: "the proxy, or the hosts that are reached without it"
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
"""The environment variables that programs with network access inherit in addition to `NETWORK`; they contain paths."""

_STANDARD = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def search_path() -> str:
    """Return the caller's `PATH` without its relative and empty entries, or the standard folders if no entry is left.

    Relative and empty entries depend on the current folder, which may be a hostile checkout.
    """
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    return os.pathsep.join(folders) or _STANDARD


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a program: `PATH`, `INHERITED` and `FIXED`, and `extra`, which overrides them."""
    return {"PATH": search_path(), **inherited(files=INHERITED), **FIXED, **(extra or {})}


def inherited(names: Iterable[str] = (), *, files: Iterable[str] = ()) -> dict[str, str]:
    """Return the named environment variables that are set in this process.

    Args:
        names: variables whose values are returned unchanged.
        files: variables that contain the path of a file or folder. Relative paths become absolute, because programs
            start in a folder other than the caller's. Empty values are omitted.
    """
    plain = {name: os.environ[name] for name in names if name in os.environ}
    return {**plain, **{name: str(Path(os.environ[name]).absolute()) for name in files if os.environ.get(name)}}


def network_environment() -> dict[str, str]:
    """Return the environment variables for programs with network access: proxies, certificates and the SSH agent."""
    return inherited(NETWORK, files=NETWORK_FILES)


@contextlib.contextmanager
def python_children(variables: Mapping[str, str]) -> Iterator[None]:
    """Make child processes of multiprocessing ignore the current folder and the caller's `PYTHON*` variables.

    To spawn a process, multiprocessing starts `python -c`, which puts the current folder first in the module path.
    multiprocessing passes this process's environment on and has no option to change that, so this function changes
    `os.environ` for the whole block and adds `variables` to it.
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
