"""The state of a scheduler's campaigns and workers."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from toolchain.core.errors import UnreachableError
from toolchain.kernels.dask_board import Board, BoardError, Presence, workers_on
from toolchain.kernels.status import FORMAT, remote_row

_COUNTS = ("compiled", "found", "failed", "refused")


def ask(address: str, *, watch: float = 0.0) -> dict[str, Any]:
    """`{"campaigns", "machines"}` as `kernels status --scheduler --json` prints them.

    Args:
        watch: seconds between two looks; workers without a heartbeat in between are left out. Without it, those that
            were killed are still listed.

    Raises:
        ConfigError, UnreachableError: see `dask_board.Board`.
    """
    board = Board(address)
    try:
        before = workers_on(board, Presence())
        time.sleep(watch)
        workers, campaign_rows = workers_on(board, Presence()), board.read("campaigns")
    except BoardError as error:
        raise UnreachableError(
            f"the scheduler at {address} does not answer",
            why=str(error),
            fix="check that it runs and has the same version of Dask; its campaigns continue when it is back",
        ) from error
    finally:
        board.close()
    campaigns: list[dict[str, Any]] = []
    refused: dict[str, dict[str, str]] = {}
    for name, row in sorted(campaign_rows.items()):
        # Anyone who reaches the scheduler may have written it.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            if row["status"].get("format") == FORMAT:
                campaigns.append(remote_row(name, row["status"]))
                for worker, why in row["refused"].items():
                    refused.setdefault(str(worker), {})[name] = str(why)
    machines = [
        {
            "name": row["name"],
            "address": row["at"],
            "slots": row["slots"],
            "scope": row["scope"],
            "store": row["store"],
            "limits": row["limits"],
            **{name: row["now"][name] for name in _COUNTS},
            "memory": row["now"]["memory"],
            "processes": row["now"]["processes"],
            "refused_by": refused.get(row["name"], {}),
        }
        for key, row in sorted(workers.items(), key=lambda item: (item[1]["name"], item[0]))
        if not watch or row["beat"] != before.get(key, {}).get("beat")
    ]
    return {"campaigns": campaigns, "machines": machines}
