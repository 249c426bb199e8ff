"""The way to a Dask scheduler: which addresses may be one, TLS, and the library, which is an extra.

Anyone who reaches a scheduler can run any code on it, since Dask unpickles messages. It can also give orders to workers
and forge their answers. So a scheduler that is not on this machine alone must ask for certificates. Workers and
campaigns read data alone: see `dask_board`.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from toolchain.core.errors import ConfigError
from toolchain.kernels.rules import Rule

FORMAT = 2
"""Of orders, answers and the descriptions of workers."""
_TLS = {"client": "the campaign's", "worker": "the worker's"}


def check_address(text: str) -> str:
    """The address of a scheduler, if it may be one.

    Raises:
        ConfigError: it is invalid, or open to everyone.
    """
    example = "e.g. tcp://127.0.0.1:8786, or tls://HOST:8786"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} is not an address of a scheduler", why=str(error), fix=example) from error
    if parts.scheme not in {"tcp", "tls"} or not host or not port or parts.path or parts.query or parts.username:
        why = "it is tcp://HOST:PORT or tls://…"
        raise ConfigError(f"{text!r} is not an address of a scheduler", why=why, fix=example)
    if parts.scheme == "tcp" and not _is_loopback(host):
        raise ConfigError(
            f"the scheduler at {text} is not on this machine, and without TLS",
            why="anyone who reaches it can run any code on it, and give orders to all workers",
            fix=f"start it with certificates and give tls://{host}:{port}, or tcp://127.0.0.1:{port} through a tunnel",
        )
    return text


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def library() -> Any:
    """The module `distributed`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("distributed")
    except ImportError as error:
        raise ConfigError(
            "a Dask scheduler needs Dask, which is not installed",
            why=str(error),
            fix=f"{sys.executable} -m pip install '.[dask]' in a checkout of the tool",
        ) from error


def security(address: str, role: Literal["client", "worker"]) -> Any:
    """The TLS settings for a scheduler; None on loopback.

    Raises:
        ConfigError: TLS, and no certificates, or files that cannot be read.
    """
    if not address.startswith("tls://"):
        return None
    made = library().Security(require_encryption=True)
    needed = {
        "tls_ca_file": "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
        f"tls_{role}_cert": f"DASK_DISTRIBUTED__COMM__TLS__{role.upper()}__CERT",
    }
    if lacking := [variable for name, variable in needed.items() if not getattr(made, name)]:
        raise ConfigError(
            f"{address} needs {_TLS[role]} certificate and the authority that signs for all",
            why=f"not set: {', '.join(lacking)}",
            fix=f"set {', '.join(needed.values())} (and …__{role.upper()}__KEY) to PEM files, or Dask's own file",
        )
    try:
        made.get_connection_args(role)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificates for {address} cannot be used", why=str(error), fix="name files in PEM"
        ) from error
    return made


def order_of(rule: Rule, name: str, *, recompile: bool) -> dict[str, Any]:
    """An order, as it goes to a worker.

    Args:
        name: of the result.
        recompile: compile it even if the store has it.
    """
    content = asdict(rule)
    del content["_id"]
    return {"format": FORMAT, "name": name, "recompile": recompile, "rule": content}


def rule_of(content: Mapping[str, Any]) -> Rule:
    """The rule of an order.

    Raises:
        TypeError, ValueError, KeyError: it is invalid.
    """
    pairs = {key: tuple((str(name), value) for name, value in content[key]) for key in ("signature", "constexprs")}
    options = tuple((str(name), value) for name, value in content["options"])
    return Rule(**{**content, **pairs, "options": options})
