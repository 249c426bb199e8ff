"""One campaign: rules in, checked code objects out, every rule accounted for."""

from __future__ import annotations

import contextlib
import json
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain import strict_json
from toolchain.digest import canonical, sha256_file, write_atomically
from toolchain.errors import KernelError, ResourceError
from toolchain.filesystem import is_inside, read_regular
from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.codeobject import metadata_fault
from toolchain.kernels.executors import Executor, Outcome
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, Entry, Ledger, Maker, reproducible
from toolchain.kernels.made import check_made
from toolchain.kernels.rules import Rule, RuleSet, Tasks, in_order
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.status import STATUS, Board
from toolchain.kernels.store import LARGEST_METADATA
from toolchain.kernels.summary import summary
from toolchain.kernels.worker_process import machine_fault

REPORT = "report.json"
# What AOTriton's loader and packers read beside an empty object, for a kernel that is known not to compile.
KNOWN_BAD = {FAILED: "ExitWithError", TIMEOUT: "Timeout"}
LISTED = 20


@dataclass(frozen=True, kw_only=True)
class CampaignResult:
    """The result of a campaign.

    Args:
        entries: one for each rule, in the rules' order.
        skipped: rules that an earlier run had finished.
        partial: only a part of all rules was requested.
        about: what the workers said of themselves; empty when none was needed.
        shared: what it had of its stores, see `shared.Counts`; empty without one.
    """

    entries: tuple[Entry, ...]
    skipped: int
    partial: bool
    about: Mapping[str, Any]
    shared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> tuple[Entry, ...]:
        """Rules whose object is there, from this run or an earlier one."""
        return tuple(entry for entry in self.entries if entry.status == DONE)

    @property
    def failed(self) -> tuple[Entry, ...]:
        """Rules that failed."""
        return tuple(entry for entry in self.entries if entry.status == FAILED)

    @property
    def timed_out(self) -> tuple[Entry, ...]:
        """Rules that took too long."""
        return tuple(entry for entry in self.entries if entry.status == TIMEOUT)

    @property
    def bad(self) -> tuple[Entry, ...]:
        """Rules that have no object."""
        return self.failed + self.timed_out

    @property
    def objects(self) -> dict[str, str]:
        """SHA-256 by path below the output folder."""
        return {entry.out: entry.sha256 for entry in self.done}

    def counts(self) -> dict[str, int]:
        """Rules by what became of them."""
        return {"done": len(self.done), "failed": len(self.failed), "timed_out": len(self.timed_out)}

    def as_json(self) -> dict[str, Any]:
        """The manifest of the objects; the same for the same objects, whatever the time, order and number of runs."""
        return {
            "partial": self.partial,
            **self.counts(),
            "kernels": reproducible(self.entries),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Counts and seconds by kernel and GPU."""
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault((entry.kernel, entry.target), []).append(entry)
        return [
            {
                "kernel": kernel,
                "gpu": target,
                "done": sum(entry.status == DONE for entry in inside),
                "failed": sum(entry.status == FAILED for entry in inside),
                "timed_out": sum(entry.status == TIMEOUT for entry in inside),
                "median_seconds": round(statistics.median(entry.seconds for entry in inside), 2),
                "max_seconds": round(max(entry.seconds for entry in inside), 2),
                "bytes": sum(entry.size for entry in inside),
            }
            for (kernel, target), inside in sorted(groups.items())
        ]


def run_campaign(
    rules: RuleSet | Sequence[Rule],
    executor: Executor,
    ledger: Ledger,
    out: Path,
    *,
    worker_tree: str,
    worker_out: str | None = None,
    keep_going: bool = False,
    on_count: Callable[[int, int, str], None] | None = None,
    on_end: Callable[[Sequence[str]], None] | None = None,
    command: str = "",
    bounds: MemoryBounds | None = None,
    shared: SharedResults | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> CampaignResult:
    """Compile what is not there yet, check every object, write the report.

    All rules are tried even after one has failed: the list of failures is whole. Its progress is in `status.json`
    beside the ledger while it runs.

    Args:
        out: folder of the objects, `Rule.out` below it; also gets `report.json`.
        worker_tree: the source tree as the workers see it.
        worker_out: `out` as the workers see it, if that is a different path.
        keep_going: mark failed rules as known bad, an empty object and a JSON that says so, instead of raising.
        on_count: called with rules finished, all rules, and the name of the last one.
        on_end: called with the lines of a summary, also before failures are raised.
        command: the command line, for advice on how to continue.
        bounds: those of the executor's workers, for the status.
        shared: stores to take results from, and to add new ones to.
        tell: see `Board`.

    Raises:
        KernelError: rules failed or timed out and `keep_going` is not set, or no worker came up.
        ResourceError: the disk is full, or something ends the workers. What failed for that reason is not a bad kernel:
            it is not recorded, and the same campaign continues with it.
    """
    wanted = rules.rules if isinstance(rules, RuleSet) else tuple(rules)
    partial = rules.partial if isinstance(rules, RuleSet) else False
    if shared is not None:
        shared.prepare(wanted)
    todo: dict[str, Rule] = {}
    earlier: list[Rule] = []
    out.mkdir(parents=True, exist_ok=True)
    place, began = ledger.path.with_name(STATUS), time.monotonic()
    with Board(place, wanted, workers=executor.workers, bounds=bounds, command=command, tell=tell) as board:
        for rule in wanted:
            entry = ledger.get(rule.id)
            if entry is not None and _finished(entry, rule, out):
                board.count(entry, reused=True)
                earlier.append(rule)
            else:
                todo[rule.id] = rule
        seen = (worker_tree, worker_out or str(out))
        _Run(wanted, todo, executor, ledger, out, seen, on_count, board).to_the_end(shared, earlier)
        result = CampaignResult(
            entries=ledger.entries(wanted),
            skipped=len(earlier),
            partial=partial,
            about=(executor.about() or (shared.about if shared is not None else {}))
            if len(earlier) < len(wanted)
            else {},
            shared=shared.counts.as_json() if shared is not None else {},
        )
        if on_end is not None:
            lines = summary(result, seconds=time.monotonic() - began, command=command, keep_going=keep_going)
            where = ["to look at all of them:", f"  toolchain report {shlex.quote(str(ledger.path.parent))}"]
            on_end([*lines, *(where if result.bad else [])])
        _settle(result, len(wanted), ledger, out, keep_going=keep_going)
    return result


def _settle(result: CampaignResult, wanted: int, ledger: Ledger, out: Path, *, keep_going: bool) -> None:
    """Raise for what failed, or mark it; then write the report."""
    # A killed worker may have left one.
    for partial_file in out.rglob(".*.partial"):
        partial_file.unlink()
    bad = result.bad
    if len(result.entries) != wanted:
        raise AssertionError("a rule without an entry")
    if bad and not keep_going:
        raise KernelError(
            f"{len(bad)} of {wanted} kernels did not compile",
            why="\n".join(f"{entry.out}: {_brief(entry.reason)}" for entry in bad[:LISTED])
            + (f"\n… and {len(bad) - LISTED} more" if len(bad) > LISTED else ""),
            fix=f"see {ledger.path}; keep-going marks them as known bad and continues",
        )
    for entry in bad:
        _mark_known_bad(out, entry)
    write_atomically(out / REPORT, json.dumps(result.as_json(), indent=1, sort_keys=True).encode() + b"\n")


@dataclass(frozen=True)
class _Run:
    """A campaign under way.

    Args:
        todo: rules by id that have no entry yet; becomes empty.
        seen: source tree and folder of the objects as the workers see them.
    """

    wanted: Sequence[Rule]
    todo: dict[str, Rule]
    executor: Executor
    ledger: Ledger
    out: Path
    seen: tuple[str, str]
    on_count: Callable[[int, int, str], None] | None
    board: Board

    def to_the_end(self, shared: SharedResults | None, earlier: Sequence[Rule]) -> None:
        """Take what stores have, compile the rest, and give the stores what they lack.

        Args:
            earlier: rules that an earlier run had finished.
        """
        self.tell()
        if shared is None:
            self.compile_rest()
            return
        self.take(shared)
        self.compile_rest(shared)
        shared.add_earlier(earlier, {entry.id: entry for entry in self.ledger.entries(earlier)}, self.out)
        shared.flush()

    def tell(self, label: str = "") -> None:
        """Report how many rules are finished."""
        count = len(self.wanted) - len(self.todo)
        self.ledger.progress(count, len(self.wanted))
        if self.on_count is not None:
            self.on_count(count, len(self.wanted), label)

    def compile_rest(self, shared: SharedResults | None = None) -> None:
        """Compile what has no entry."""
        for rule, entry in self._compiled(dict(self.todo)):
            self.ledger.record(entry)
            self.board.count(entry)
            del self.todo[rule.id]
            if shared is not None and entry.status == DONE:
                shared.compiled_by(self.executor.about())
                if entry.maker is Maker.HERE:
                    shared.add(rule, entry, self.out)
            self.tell(f"{rule.kernel} {rule.target}")

    def _compiled(self, todo: Mapping[str, Rule]) -> Iterator[tuple[Rule, Entry]]:
        for rule in todo.values():
            _objects(self.out, rule, unlink=True)
        tasks = Tasks(in_order(todo.values()), *self.seen)
        with contextlib.closing(self.executor.run(tasks)) as outcomes:
            for outcome in outcomes:
                rule = todo[outcome["id"]]
                entry = _entry(rule, outcome, self.out)
                if entry.status != DONE:
                    _objects(self.out, rule, unlink=True)
                    if entry.maker is Maker.HERE:
                        _blame_the_machine(entry, self.out)
                yield rule, entry

    def take(self, shared: SharedResults) -> None:
        """Take what the stores have."""
        for rule in self.todo.values():
            _objects(self.out, rule, unlink=True)
        for entry in shared.take(tuple(self.todo.values()), self.out):
            self.ledger.record(entry)
            self.board.count(entry, reused=True)
            del self.todo[entry.id]
            self.tell(f"{entry.kernel} {entry.target} (from the store)")
        if shared.only:
            self._record_known(shared)

    def _record_known(self, shared: SharedResults) -> None:
        """Without compiling: record the kernels that are known to fail, and raise for the rest.

        Raises:
            KernelError: no store has the others.
        """
        for entry in shared.known_bad(tuple(self.todo.values())):
            self.ledger.record(entry)
            self.board.count(entry, reused=True)
            del self.todo[entry.id]
        if self.todo:
            lacking = [rule.out for rule in self.todo.values()]
            more = f"\n… and {len(lacking) - LISTED} more" if lacking[LISTED:] else ""
            raise KernelError(
                f"{len(lacking)} kernels are in none of {', '.join(store.ref for store in shared.stores)}",
                why="\n".join(lacking[:LISTED]) + more,
                fix="run the shards that lack them again, with the same options",
            )


def _blame_the_machine(entry: Entry, out: Path) -> None:
    """Raise if a failure is not the kernel's fault: marked as known bad, it would be missing forever."""
    if entry.status == FAILED and (what := machine_fault(entry.reason, out)):
        raise ResourceError(
            what,
            why=f"{entry.out}: {_brief(entry.reason)}",
            fix="free disk or memory, or give fewer --jobs, and run it again: it continues with this kernel",
        )


def _finished(entry: Entry | None, rule: Rule, out: Path) -> bool:
    if entry is None or entry.status != DONE or entry.out != rule.out:
        return False
    path, beside = _objects(out, rule)
    try:
        return sha256_file(path) == f"sha256:{entry.sha256}" and not metadata_fault(
            strict_json.read(read_regular(beside, LARGEST_METADATA)), rule.target
        )
    except (OSError, ValueError):
        return False


def _objects(out: Path, rule: Rule | Entry, *, unlink: bool = False) -> tuple[Path, Path]:
    """The object and its JSON.

    Raises:
        KernelError: they would be elsewhere: a worker may write here, links too, and must not lead us to other files.
    """
    path = out / rule.out
    if not is_inside(path, out) or path.is_symlink():
        raise KernelError(
            f"{rule.out} leads out of {out}",
            why="a worker or a rule made a link or a path that does",
            fix="remove what is there, then run it again: it continues",
        )
    both = (path, path.with_suffix(".json"))
    if unlink:
        for file in both:
            file.unlink(missing_ok=True)
    return both


def _entry(rule: Rule, outcome: Outcome, out: Path) -> Entry:
    """The entry for an outcome; "done" only when the object on this side is whole and for the right GPU."""
    status, reason = str(outcome["status"]), str(outcome.get("reason", ""))
    digest = size = None
    if status == DONE:
        path, beside = _objects(out, rule)
        try:
            check_made(path, rule.target, rule.kernel)
            digest, size = sha256_file(path).removeprefix("sha256:"), path.stat().st_size
            metadata = strict_json.read(read_regular(beside, LARGEST_METADATA))
            reason = metadata_fault(metadata, rule.target)
            if digest != outcome.get("sha256"):
                reason = f"the object's SHA-256 is {digest}, the worker reported {outcome.get('sha256')}"
        except KernelError as error:
            reason = error.why
        except (OSError, ValueError) as error:
            reason = f"no usable JSON beside the object: {error}"
        if reason:
            status = FAILED
    done = status == DONE
    return Entry.of(
        rule,
        status,
        reason="" if done else reason or "no reason given",
        over_memory=bool(outcome.get("over_memory")),
        refused=bool(outcome.get("refused")),
        exit_code=outcome.get("exit_code"),
        seconds=float(outcome.get("seconds", 0.0)),
        attempt=int(outcome.get("attempt", 1)),
        sha256=digest or "" if done else "",
        size=size or 0 if done else 0,
        bitcode=tuple(outcome.get("bitcode", ())) if done else (),
        origin=str(outcome.get("origin", "")),
    )


def _mark_known_bad(out: Path, entry: Entry) -> None:
    path, beside = _objects(out, entry)
    write_atomically(beside, canonical({"compile_status": KNOWN_BAD[entry.status]}) + b"\n")
    write_atomically(path, b"")


def _brief(reason: str) -> str:
    """The first line, and the last one where it says more."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason given"]
    return lines[0][:300] if len(lines) == 1 else f"{lines[0][:200]} … {lines[-1][:200]}"
