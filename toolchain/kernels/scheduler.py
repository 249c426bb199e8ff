"""Check the address, the certificates and the version of a Dask scheduler.

Anyone who can connect to a scheduler can run code on it, on its workers and on machines that run campaigns, because
Dask pickles tasks and results. So a scheduler must either listen on loopback or require certificates.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from toolchain.core.errors import ConfigError

PATIENCE = 600.0  # seconds that a worker waits for the scheduler, and that a campaign waits for a suitable worker


def check_address(text: str) -> str:
    """Return a scheduler's address; raise ConfigError if it is invalid, or uses neither loopback nor TLS."""
    match = re.fullmatch(r"(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[\w.-]+):([1-9][0-9]{0,4})", text, re.ASCII)
    if match is None or int(match[3]) > 65535:
        fix = "give an address such as tcp://127.0.0.1:8786 or tls://HOST:8786"
        raise ConfigError("scheduler-address-invalid", f"{text!r} is not the address of a scheduler", fix=fix)
    if match[1] == "tcp" and not _is_loopback(match[2].strip("[]")):
        raise ConfigError(
            "scheduler-without-tls",
            f"the scheduler at {text} is not on this machine and does not use TLS",
            why="anyone who can connect to it can run any code on it and on its workers",
            fix=f"start it with certificates and give tls{text[3:]}, or tcp://127.0.0.1:{match[3]} through a tunnel",
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def library() -> Any:
    """Return the module `distributed`; raise ConfigError if it is not installed."""
    try:
        module = import_module("distributed")
        logging.getLogger("distributed").setLevel(logging.getLogger().level)  # overrides the level INFO that Dask sets
        return module
    except ImportError as error:
        fix = f"run `{sys.executable} -m pip install '.[dask]'` in a checkout of this tool"
        raise ConfigError(
            "dask-missing",
            "Dask is not installed, and a campaign with a scheduler needs it",
            why="the package distributed cannot be imported",
            fix=fix,
        ) from error


def security(address: str, role: Literal["client", "worker"]) -> Any:
    """Return the TLS settings for a scheduler; None for a scheduler without TLS.

    Raises:
        ConfigError: Dask is not installed, or there are no usable certificates.
    """
    made = library().Security(require_encryption=True)
    if not address.startswith("tls://"):
        return None
    try:
        if made.get_connection_args(role)["ssl_context"] is None:
            raise ValueError("no certificates are named")
    except (OSError, ValueError) as error:
        names = ("CA_FILE", f"{role.upper()}__CERT", f"{role.upper()}__KEY")
        raise ConfigError(
            "scheduler-without-certificate",
            f"{address} requires a certificate for this {role} and the certificate of its authority",
            why="no files are configured for them, or the files cannot be read",
            fix=f"set the environment variables {', '.join(f'DASK_DISTRIBUTED__COMM__TLS__{name}' for name in names)}"
            " to the paths of PEM files",
        ) from error
    return made


def check_version(address: str, versions: Mapping[str, Any]) -> None:
    """Raise ConfigError if the scheduler's version of Dask in `versions` differs from the version on this machine."""
    there, here = versions["packages"]["distributed"], library().__version__
    if there != here:
        why, fix = f"it has distributed {there}, not {here}", f"install distributed=={there} here, or {here} there"
        raise ConfigError(
            "dask-other-version", f"the scheduler at {address} has another version of Dask", why=why, fix=fix
        )
