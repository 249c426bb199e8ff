"""Summarize a campaign on one screen: results, slow kernels, failures, and how to continue."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolchain.catalog.stages import CAMPAIGNS
from toolchain.core import console
from toolchain.kernels.ledger import TIMEOUT, Entry

if TYPE_CHECKING:
    from toolchain.kernels.campaign import CampaignResult

WIDTH = 80
_ROWS, _SLOW, _REASONS = 8, 3, 4


def summary(result: CampaignResult, *, seconds: float, command: str, keep_going: bool) -> list[str]:
    """Return the lines of a summary for a terminal of 80 columns.

    Args:
        keep_going: whether failed kernels are marked as known bad; otherwise the campaign fails after all kernels.
    """
    taken = int(result.shared.get("taken", 0))
    made = len(result.entries) - result.skipped - taken
    size = console.size(sum(entry.size for entry in result.done))
    reused = f", {result.skipped} of them from earlier runs" if result.skipped else ""
    reused += f", {taken} from kernel stores" if taken else ""
    lines = [
        f"{len(result.done)} of {len(result.entries)} kernels, {size}{reused}",
        f"{made} tried in {console.duration(seconds)}" + (f", {made / seconds:.2f} a second" if seconds >= 1 else ""),
        *_table(result),
    ]
    timed = sorted(result.entries, key=lambda entry: (-entry.seconds, entry.out))[:_SLOW]
    if timed and made:
        lines += ["slowest:", *(f"  {entry.seconds:7.1f} s  {_tail(entry.out, WIDTH - 13)}" for entry in timed)]
    if result.bad:
        lines += [f"{len(result.bad)} have no object:", *_reasons(result.bad)]
    if (
        result.bad
        and not result.done
        and all(entry.status != TIMEOUT and not entry.over_memory for entry in result.bad)
    ):
        return [*lines, "no kernel compiled; correct the source or use another Triton, and run again:", f"  {command}"]
    return [*lines, *_advice(result.bad, command, keep_going=keep_going)]


def _table(result: CampaignResult) -> list[str]:
    rows = result.rows()
    wide = min(max((len(row["kernel"]) for row in rows), default=0), 30)
    lines = [
        f"  {_tail(row['kernel'], wide):{wide}}  {row['gpu']:8} {row['done']:6} done"
        + "".join(f" {row[key]:5} {name}" for key, name in (("failed", "failed"), ("timed_out", "late")) if row[key])
        + f"  {row['median_seconds']:6.1f} s"
        for row in rows
    ]
    if len(lines) > _ROWS:
        rest = len(lines) - _ROWS + 1
        lines[_ROWS - 1 :] = [f"  and {rest} more rows, which `toolchain kernels status` shows"]
    return lines


def _reasons(bad: Sequence[Entry]) -> list[str]:
    """Return lines with the most common reasons for failures, each with an example."""
    by_reason = Counter(_first(entry) for entry in bad)
    lines: list[str] = []
    for reason, count in by_reason.most_common(_REASONS):
        example = min(entry.out for entry in bad if _first(entry) == reason)
        lines += [f"  {count:5}  {reason[: WIDTH - 9]}", f"         {_tail(example, WIDTH - 9)}"]
    if (more := len(by_reason) - _REASONS) > 0:
        lines.append(f"         and {more} other reasons")
    return lines


def _first(entry: Entry) -> str:
    """Return the first line of an entry's reason without control characters; `no reason` if the reason is empty.

    If the line ends with a colon, such as `kernel.py:12:3:`, the last line that is not only spaces and `^` is appended.
    """
    first, _, rest = entry.reason.strip().partition("\n")
    last = next((line.strip() for line in reversed(rest.splitlines()) if line.strip(" ^")), "")
    return console.one_line(f"{first} {last}" if first.endswith(":") and last else first) or "no reason"


def _advice(bad: Sequence[Entry], command: str, *, keep_going: bool) -> list[str]:
    if not bad or not command:
        return []
    lines = [] if keep_going else ["to continue without them:", f"  {_more(command, 'keep-going')}"]
    if any(entry.status == TIMEOUT for entry in bad):
        lines += ["to give slow kernels more time:", f"  {_more(command, 'kernel-timeout', 'SECONDS')}"]
    if any(entry.over_memory for entry in bad):
        lines += ["to give large kernels more memory:", f"  {_more(command + ' --jobs 1', 'kernel-memory', 'MB')}"]
    return lines or ["to try them again:", f"  {command}"]


def _more(command: str, option: str, value: str = "") -> str:
    """Return the command with one more option. `kernels run` replaces `build`, which does not have the option.

    If `kernels run` cannot run the stage that is built, the result is text that describes the command.
    """
    added = f"--{option} {value}".rstrip()
    build = re.match(r"toolchain (.*\b)?build (?=([\w-]+))", command)
    if build is None:
        return f"{command} {added}"
    if build[2] not in CAMPAIGNS:
        return f"toolchain kernels run, with the options of this build and {added}"
    return f"toolchain {build[1] or ''}kernels run {command[build.end() :]} {added}"


def _tail(text: str, width: int) -> str:
    """Return a path with at most `width` characters. The end is kept, because it identifies the kernel."""
    text = console.one_line(text)
    return text if len(text) <= width else f"…{text[-width + 1 :]}"
