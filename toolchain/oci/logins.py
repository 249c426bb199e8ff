"""Find the user's logins to registries in the login files and credential helpers of docker and podman."""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.errors import DocumentError, RegistryError
from toolchain.core.strict_json import Keys
from toolchain.oci.credential_helper import ask_helper

HUB = "docker.io"
IDENTITY = "<token>"
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")
_NAMED = re.compile(r"(?:https?://)?([^/]+)(?:/(?:v[12]/?)?)?", re.IGNORECASE)
_LOOPBACK = re.compile(r"^((?:https?://)?)(localhost|127\.0\.0\.1)(?=[:/]|$)")
_LOGINS: Keys = dict.fromkeys(("auths", "credHelpers", "credsStore"))
_SENDABLE = re.compile(r"[\x21-\x7e]+")  # printable ASCII except the space; safe in a header


@dataclass(frozen=True)
class _File:
    """A login file: its logins and helpers by registry, and the helper for all other registries."""

    path: Path
    auths: Mapping[str, Any]
    helpers: Mapping[str, Any]
    store: str


def credentials(host: str, repository: str = "") -> str | None:
    """Return the user's login to a registry in the form that follows `Basic` in a header; None if there is none.

    The login files are `$REGISTRY_AUTH_FILE`, `$DOCKER_CONFIG/config.json` and `~/.docker/config.json`. A login for a
    namespace of the repository is preferred to a login for the whole registry. For each name under which the login may
    be stored, the first login file that contains a login is used, and credential helpers are run only if no login file
    contains a login for this name. RegistryError is raised if a login file is unreadable, or if a helper succeeds but
    prints no login.
    """
    known = registry_name(host)
    files = list(_login_files())
    parts = repository.split("/") if repository else []
    for length in range(len(parts), -1, -1):
        names: dict[str, None] = dict.fromkeys(
            "/".join((name, *parts[:length])) for name in _with_loopback((host, f"https://{host}"))
        )
        if not length:
            written = (name for file in files for part in (file.auths, file.helpers) for name in part)
            same = [name for name in written if registry_name(name) == known]
            names = dict.fromkeys(
                _with_loopback((host, f"https://{host}", *(_HUB_KEYS if known == HUB else ()), *same))
            )
        for name in names:
            if login := _login(files, name):
                return login
    return None


def _with_loopback(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, and a copy of each whose host is `localhost` or `127.0.0.1` with the other one as its host."""
    other = {"localhost": "127.0.0.1", "127.0.0.1": "localhost"}
    variants = ((name, _LOOPBACK.sub(lambda match: match[1] + other[match[2]], name)) for name in names)
    return tuple(dict.fromkeys(name for group in variants for name in group))


def _login(files: list[_File], name: str) -> str:
    """Return the login for a name from the files, or from the helpers; an empty string if there is none."""
    for file in files:
        if name in file.auths and (login := _written(file, name)):
            return login
    helpers = (helper for file in files if (helper := file.helpers.get(name)))
    stores = (file.store for file in files if file.store)
    for helper in filter(None, (next(helpers, None), next(stores, None))):
        if answer := ask_helper(str(helper), name):
            return answer
    return ""


def _written(file: _File, name: str) -> str:
    """Return the login for a name from a login file; an empty string if the entry for the name contains none.

    An entry contains an identity token, or base64 of USER:PASSWORD as `auth`, or plain `username` and `password`.
    """
    entry = file.auths[name]
    if not isinstance(entry, dict):
        raise _unreadable(file.path, f"the entry of {name} is not an object")
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return base64.b64encode(f"{IDENTITY}:{token}".encode()).decode()
    if login := entry.get("auth"):
        text = "".join(login.split()) if isinstance(login, str) else ""
        if not _SENDABLE.fullmatch(text):
            raise _unreadable(file.path, f"`auth` of {name} is not valid base64")
        return text
    user, password = entry.get("username"), entry.get("password")
    if isinstance(user, str) and isinstance(password, str) and user and password:
        return base64.b64encode(f"{user}:{password}".encode()).decode()
    return ""


def _unreadable(path: Path, why: str) -> RegistryError:
    return RegistryError(
        "login-file-unreadable",
        f"the login file {path} cannot be read",
        why=why,
        fix="correct the file, or log in again",
    )


def registry_name(text: str) -> str:
    """Return the host of a name in a login file, in lower case and without a scheme, slash or API version.

    All names of Docker Hub become `HUB`. A name with a namespace is returned unchanged.
    """
    match = _NAMED.fullmatch(text.strip())
    host = match[1].lower() if match else text
    return HUB if host in {HUB, *_HUB_KEYS} else host


def _login_files() -> Iterator[_File]:
    """Yield the existing login files in the order of their priority."""
    paths = [Path(name) for name in (os.environ.get("REGISTRY_AUTH_FILE"),) if name]
    paths += [Path(name) / "config.json" for name in (os.environ.get("DOCKER_CONFIG"),) if name]
    with contextlib.suppress(RuntimeError):  # the user may have no home folder
        paths.append(Path.home() / ".docker" / "config.json")
    for path in paths:
        if path.is_file():
            yield _read_file(path)


def _read_file(path: Path) -> _File:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        value = strict_json.read(text, path.name, keys=_LOGINS)
    except OSError as error:
        raise _unreadable(path, error.strerror or "it cannot be opened") from error
    except DocumentError as error:
        raise _unreadable(path, error.what) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "it is not valid JSON") from error
    if not isinstance(value, dict):
        raise _unreadable(path, "it is not a JSON object")
    parts = {part: value.get(part) or {} for part in ("auths", "credHelpers")}
    for part, content in parts.items():
        if not isinstance(content, dict):
            raise _unreadable(path, f"`{part}` is not an object")
    return _File(path, parts["auths"], parts["credHelpers"], str(value.get("credsStore") or ""))
