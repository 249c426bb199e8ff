"""The environment in which programs of the host start: a fixed list of variables, each with its reason.

The list is closed, so the variables that make a program load other code (`LD_PRELOAD`, `PYTHONPATH`, `PERL5LIB`,
`GIT_*`, `TAR_OPTIONS`) never reach one. Callers add what one program needs: see `sources/network.py` for programs that
reach out, `sources/pip.py` for pip, `oci/auth.py` for credential helpers and `engine/docker.py` for docker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
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
