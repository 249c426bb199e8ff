"""Get logins from docker's credential helpers, which read them from a keyring or a cloud."""

from __future__ import annotations

import base64
import logging
import os
import re

from toolchain.core import process, strict_json
from toolchain.core.environment import inherited, network_environment
from toolchain.core.errors import RegistryError
from toolchain.core.strict_json import Keys

LOG = logging.getLogger(__name__)
_ANSWER: Keys = dict.fromkeys(("Username", "Secret", "ServerURL"))
_NONE = "credentials not found"  # docker's helpers print this on standard output and fail if they have no login
_SECONDS = 120.0  # seconds; the timeout is long, because the user may have to type a passphrase
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

VARIABLES = {
    "DBUS_SESSION_BUS_ADDRESS": "secretservice: the keyring of the desktop",
    "DISPLAY": "the window of the keyring or pinentry",
    "WAYLAND_DISPLAY": "the window of the keyring or pinentry",
    "GPG_TTY": "pass: the terminal for a passphrase",
    "PASSWORD_STORE_KEY": "pass: the key",
    "GITHUB_TOKEN": "helpers for ghcr.io: the token",
    "GH_TOKEN": "helpers for ghcr.io: the token",
}
FILES = {
    "XAUTHORITY": "the window of the keyring or pinentry",
    "XDG_CONFIG_HOME": "the settings of helpers",
    "XDG_DATA_HOME": "the data of helpers",
    "GNUPGHOME": "pass: the keys",
    "PASSWORD_STORE_DIR": "pass: the passwords",
    "DOCKER_CONFIG": "the folder of the login file",
}
PREFIXES = {
    "AWS_": "ecr-login: account, region and role",
    "AZURE_": "acr-env: account and identity",
    "GOOGLE_": "gcr: account and key file",
    "CLOUDSDK_": "gcloud: account and project",
    "ACTIONS_ID_TOKEN_REQUEST_": "helpers that use the identity of a GitHub job",
}
"""The prefixes of environment variables that are passed to a helper, and the use of each.

A helper also gets the environment variables in `VARIABLES` and `FILES`.
"""


def ask_helper(name: str, key: str) -> str | None:
    """Return the login to a registry from a credential helper, in the form that follows `Basic` in a header.

    The result is None if the helper has no login, is missing or fails; in the last two cases, a warning is logged.
    RegistryError is raised if the helper succeeds but does not print a login in the expected form.

    Args:
        name: the part of the program's name after `docker-credential-`.
        key: the name of the registry or namespace under which the login may be stored.
    """
    program = f"docker-credential-{name}"
    if not _NAME.fullmatch(name) or process.find(program) is None:
        LOG.warning("%s, which docker's login file names, is not installed: continuing without a login", program)
        return None
    # The output must not be logged, because it may contain the secret.
    done = process.run(
        [program, "get"], stdin=key, env=_environment(), capture=True, check=False, timeout=_SECONDS, helpers=True
    )
    if done.returncode != 0:
        if _NONE not in done.stdout:
            LOG.warning("%s failed for %s (exit code %d): continuing without a login", program, key, done.returncode)
        return None
    try:
        answer = strict_json.read(done.stdout, program, keys=_ANSWER)
        user, secret = answer["Username"], answer["Secret"]
        if not isinstance(user, str) or not isinstance(secret, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RegistryError(
            "credential-helper-failed",
            f"{program} returned no login",
            why="a credential helper must print JSON with Username and Secret",
            fix=f"check its output: printf %s {key} | {program} get",
        ) from None
    return base64.b64encode(f"{user}:{secret}".encode()).decode() if secret else None


def _environment() -> dict[str, str]:
    prefixes = tuple(PREFIXES)
    named = [name for name in os.environ if name in VARIABLES or name.startswith(prefixes)]
    return {**network_environment(), **inherited(named, files=FILES)}
