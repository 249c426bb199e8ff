"""Ask docker's credential helpers, which keep logins in a keyring or a cloud."""

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
_NONE = "credentials not found"  # docker's own helpers print it on standard output
_SECONDS = 120.0  # the user may have to type a passphrase
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

VARIABLES = {
    "DBUS_SESSION_BUS_ADDRESS": "secretservice: the desktop's keyring",
    "DISPLAY": "the keyring's or pinentry's window",
    "WAYLAND_DISPLAY": "the same",
    "GPG_TTY": "pass: the terminal for a passphrase",
    "PASSWORD_STORE_KEY": "pass: the key",
    "GITHUB_TOKEN": "helpers for ghcr.io",
    "GH_TOKEN": "the same",
}
FILES = {
    "XAUTHORITY": "the keyring's or pinentry's window",
    "XDG_CONFIG_HOME": "the settings of helpers",
    "XDG_DATA_HOME": "their data",
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
"""The variables that a helper gets besides those of every program with a network, and what each is for."""


def ask_helper(name: str, key: str) -> str | None:
    """Return the login that a credential helper keeps under `key`, as the text that follows `Basic`.

    Returns:
        None without a login. If the helper is missing or fails, a warning says so, and the caller goes on without one.
    """
    program = f"docker-credential-{name}"
    if not _NAME.fullmatch(name) or process.find(program) is None:
        LOG.warning("%s, which the login file of docker names, is not installed: going on without a login", program)
        return None
    # The output is never shown, because it may hold the secret.
    done = process.run(
        [program, "get"], stdin=key, env=_environment(), capture=True, check=False, timeout=_SECONDS, helpers=True
    )
    if done.returncode != 0:
        if _NONE not in done.stdout:
            LOG.warning("%s fails for %s (exit code %d): going on without its login", program, key, done.returncode)
        return None
    try:
        answer = strict_json.read(done.stdout, program, keys=_ANSWER)
        user, secret = answer["Username"], answer["Secret"]
        if not isinstance(user, str) or not isinstance(secret, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RegistryError(
            "credential-helper-failed",
            f"{program} answers without a login",
            why="a credential helper gives JSON with Username and Secret",
            fix=f"see what it says: printf %s {key} | {program} get",
        ) from None
    return base64.b64encode(f"{user}:{secret}".encode()).decode() if secret else None


def _environment() -> dict[str, str]:
    prefixes = tuple(PREFIXES)
    named = [name for name in os.environ if name in VARIABLES or name.startswith(prefixes)]
    return {**network_environment(), **inherited(named, files=FILES)}
