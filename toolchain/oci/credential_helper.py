"""Docker's credential helpers: programs `docker-credential-NAME` that keep logins outside the login file."""

from __future__ import annotations

import base64
import logging
import os
import shutil

from toolchain import strict_json
from toolchain.errors import RegistryError
from toolchain.process import run

LOG = logging.getLogger(__name__)
_ANSWER = dict.fromkeys(("Username", "Secret", "ServerURL"))
_NONE = "credentials not found"  # as docker's own helpers say it, on standard output
_SECONDS = 120.0  # the user may have to type a passphrase


def ask_helper(name: str, key: str) -> str | None:
    """The login that a helper keeps under `key`, as the text that follows `Basic`.

    Returns:
        None if it keeps none. Where it is missing or fails, a warning says so: what follows is anonymous.

    Raises:
        RegistryError: it answers something else than a login.
    """
    program = f"docker-credential-{name}"
    if shutil.which(program) is None:
        LOG.warning("%s, which the login file of docker names, is not installed: going on without a login", program)
        return None
    # Helpers of clouds and keyrings find what they need in the environment. Nothing that they print may be shown.
    done = run([program, "get"], stdin=key, env=os.environ, capture=True, check=False, timeout=_SECONDS, helpers=True)
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
            f"{program} answers without a login",
            why="a credential helper gives JSON with Username and Secret",
            fix=f"see what it says: printf %s {key} | {program} get",
        ) from None
    return base64.b64encode(f"{user}:{secret}".encode()).decode() if secret else None
