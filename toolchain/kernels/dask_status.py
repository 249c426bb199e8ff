"""How campaigns stand that a scheduler spreads, and its workers, for whoever reaches it."""

from __future__ import annotations

import contextlib
from typing import Any

from toolchain import strict_json
from toolchain.errors import UnreachableError
from toolchain.kernels.dask_link import KEY, connect, workers_of
from toolchain.kernels.status import FORMAT, told_elsewhere

_COUNTS = ("compiled", "found", "failed", "refused")


def ask(address: str) -> dict[str, Any]:
    """`{"campaigns", "machines"}` as `kernels status --scheduler --json` prints them.

    Raises:
        ConfigError, UnreachableError: see `dask_link.connect`.
    """
    client = connect(address)
    try:
        info = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=30)
        told = client.sync(client.scheduler.get_metadata, keys=[KEY], default={}, callback_timeout=30)
    except Exception as error:
        raise UnreachableError(
            f"the scheduler at {address} does not answer",
            why=str(error),
            fix="see that it runs and is no other version of Dask; its campaigns go on when it is there again",
        ) from error
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=5)
    campaigns: list[dict[str, Any]] = []
    refused: dict[str, dict[str, str]] = {}
    for name, text in sorted((told if isinstance(told, dict) else {}).items()):
        one = strict_json.read(text)
        if one["status"].get("format") == FORMAT:
            campaigns.append(told_elsewhere(name, one["status"]))
            for worker, why in one["refused"].items():
                refused.setdefault(worker, {})[name] = why
    machines = [
        {
            "name": row["name"],
            "address": at,
            "slots": row["slots"],
            "scope": row["scope"],
            "store": row["store"],
            "limits": row["limits"],
            **{name: int(row["now"].get(name, 0)) for name in _COUNTS},
            "memory": row["now"].get("memory", {"workers": 0, "together": 0, "share": 0, "kernel": 0}),
            "processes": row["now"].get("processes", []),
            "refused_by": refused.get(row["name"], {}),
        }
        for at, row in sorted(workers_of(info).items(), key=lambda item: (item[1]["name"], item[0]))
    ]
    return {"campaigns": campaigns, "machines": machines}
