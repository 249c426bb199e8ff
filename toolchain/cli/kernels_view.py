"""Formatting of the status of campaigns for a terminal with 80 columns."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from typing import Any

from toolchain.core import console
from toolchain.kernels.status import ENDED, FAILURES, KILLED, RUNNING, STOPPED

_WIDTH = 80
_WORKERS = 16
_STATES = {
    ENDED: "finished",
    FAILURES: "finished, with failures",
    STOPPED: "stopped",
    KILLED: "killed",
    "unknown": "no status",
}


def screen(row: Mapping[str, Any]) -> list[str]:
    """Return the status of a campaign as lines for 80 columns; long names and the command can make a line longer.

    Args:
        row: the status, as `toolchain.kernels.status.read` returns it.
    """
    lines = [f"{row['campaign']}  {_state(row)}", f"  {_counts(row)}"]
    if row["numbers"]:
        lines.append("  numbers: " + ", ".join(f"{count} {status}" for status, count in row["numbers"].items()))
    if row["state"] == RUNNING:
        lines += [f"  {_speed(row)}", *_memory(row)]
    lines += [f"  {text}" for text in (*_groups(row["by_kernel"]), *_workers(row["workers"]))]
    if row["slowest"]:
        lines.append("  slowest")
        lines += [f"    {kernel['seconds']:7.1f} s  {_tail(kernel['out'], _WIDTH - 15)}" for kernel in row["slowest"]]
    if row["bad"]:
        lines.append("  latest failures")
        for kernel in row["bad"]:
            lines += [f"    {_tail(kernel['out'], _WIDTH - 4)}", f"      {_cut(kernel['reason'], _WIDTH - 6)}"]
    if row["state"] in (FAILURES, STOPPED, KILLED) and row["command"]:
        lines += ["  to continue", f"    {row['command']}"]
    return [console.one_line(text) for text in lines]


def _state(row: Mapping[str, Any]) -> str:
    if row["state"] != RUNNING:
        return _STATES[row["state"]]
    return f"running for {console.duration(_since(row['began']))}, pid {row['pid']}"


def _counts(row: Mapping[str, Any]) -> str:
    reused = "" if row["reused"] is None else f" ({row['reused']} reused)"
    return (
        f"{row['count']} of {row['asked']} finished: {_total(row, 'done')} done{reused},"
        f" {_total(row, 'failed')} failed, {_total(row, 'timed_out')} timed out"
    )


def _speed(row: Mapping[str, Any]) -> str:
    left = _left(row)
    none = "no kernel in ten minutes" if row["slowest"] else "no kernel yet"
    pace = f"{row['rate']:.2f} kernels per second" if row["rate"] else none
    return f"{pace}, about {console.duration(left)} left" if left is not None else pace


def _memory(row: Mapping[str, Any]) -> list[str]:
    memory = row["memory"]
    limit, share = (console.size(memory[name]) for name in ("together", "share"))
    bound = f" of {limit}, {share} per kernel" if memory["together"] else ""
    return [
        f"  memory: workers {console.size(memory['workers'])}{bound}; this tool {console.size(memory['coordinator'])}"
    ]


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    names = ("asked", "done", "reused", "failed", "timed_out")
    lines = [f"{'kernel':28} {'gpu':8} {'asked':>6} {'done':>6} {'reused':>6} {'failed':>6} {'timeout':>7} {'mean':>4}"]
    for row in rows:
        asked, done, reused, failed, late = ("-" if row[name] is None else str(row[name]) for name in names)
        mean = "-" if row["mean_seconds"] is None else f"{row['mean_seconds']:.1f}"
        lines.append(
            f"{_tail(row['kernel'], 28):28} {row['gpu']:8} {asked:>6} {done:>6} {reused:>6} {failed:>6} {late:>7}"
            f" {mean:>4}"
        )
    return lines


def _workers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [f"{'worker':>8} {'memory':>9} {'done':>7} {'time':>9}  kernel"]
    for row in rows[:_WORKERS]:
        kernel = _tail(row["out"], 39) if row["out"] else "idle"
        took = console.duration(row["seconds"]) if row["out"] else ""
        lines.append(f"{row['pid']:>8} {console.size(row['memory']):>9} {row['compiled']:>7} {took:>9}  {kernel}")
    if len(rows) > _WORKERS:
        lines.append(f"and {len(rows) - _WORKERS} more workers: --json lists them")
    return lines


def _total(row: Mapping[str, Any], name: str) -> int:
    return sum(int(kernel[name] or 0) for kernel in row["by_kernel"])


def _left(row: Mapping[str, Any]) -> float | None:
    left = row["left_seconds"]
    return None if left is None else max(float(left) - _since(row["updated"]), 0.0)


def _since(text: str) -> float:
    return max(time.time() - calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")), 0.0)


def _tail(text: str, width: int) -> str:
    """Return `text`, shortened at its start to `width` characters, because the names of kernels differ at their end."""
    return text if len(text) <= width else f"…{text[-width + 1 :]}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
