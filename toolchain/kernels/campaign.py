"""Compile rules to code objects, check the objects, and record an entry in the ledger for every rule."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.digest import canonical, sha256_file, write_atomically
from toolchain.core.errors import KernelError, ResourceError
from toolchain.core.filesystem import is_inside, read_regular
from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.cache_entries import check_made
from toolchain.kernels.codeobject import metadata_fault
from toolchain.kernels.executors import Executor
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, Entry, Ledger, Maker, by_kernel, counts, reproducible
from toolchain.kernels.pool import Outcome
from toolchain.kernels.result_store import LARGEST_METADATA, write_result
from toolchain.kernels.rules import Rule, RuleSet, in_order
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.status import STATUS, Board
from toolchain.kernels.summary import summary
from toolchain.kernels.worker_process import machine_fault

REPORT = "report.json"
# These are values of `compile_status` in the JSON beside an empty object, by which AOTriton's packers recognize a
# kernel that does not compile.
KNOWN_BAD = {FAILED: "ExitWithError", TIMEOUT: "Timeout"}
LISTED = 20


@dataclass(frozen=True, kw_only=True)
class CampaignResult:
    """The result of a campaign.

    Args:
        entries: an entry for each rule, in the order of the rules.
        skipped: the number of rules that an earlier run had finished.
        partial: whether only a part of all rules was requested.
        about: the facts that the workers reported, or those in a result from a store; empty if an earlier run had
            finished all rules.
        shared: the fields of `shared.Counts`; empty without a kernel store.
    """

    entries: tuple[Entry, ...]
    skipped: int
    partial: bool
    about: Mapping[str, Any]
    shared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.status == DONE)

    @property
    def bad(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.status != DONE)

    @property
    def objects(self) -> dict[str, str]:
        """The SHA-256 of the object of each compiled rule, by the object's path below the output folder."""
        return {entry.out: entry.sha256 for entry in self.done}

    def counts(self) -> dict[str, int]:
        return counts(self.entries)

    def as_json(self) -> dict[str, Any]:
        """Return the content of the report."""
        return {"partial": self.partial, **self.counts(), "kernels": reproducible(self.entries)}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row with counts, seconds and bytes for each kernel and GPU."""
        return [
            {
                "kernel": kernel,
                "gpu": gpu,
                **counts(inside),
                "median_seconds": round(statistics.median(entry.seconds for entry in inside), 2),
                "max_seconds": round(max(entry.seconds for entry in inside), 2),
                "bytes": sum(entry.size for entry in inside),
            }
            for kernel, gpu, inside in by_kernel(self.entries)
        ]


def run_campaign(
    rules: RuleSet | Sequence[Rule],
    executor: Executor,
    ledger: Ledger,
    out: Path,
    *,
    worker_tree: str,
    keep_going: bool = False,
    on_count: Callable[[int, int, str], None] | None = None,
    on_end: Callable[[Sequence[str]], None] | None = None,
    command: str = "",
    bounds: MemoryBounds | None = None,
    shared: SharedResults | None = None,
    scope: str = "",
) -> CampaignResult:
    """Compile the rules that have no valid object in `out` or in a store, check every object, and write the report.

    The file `status.json` beside the ledger shows the progress.

    Args:
        out: the folder of the objects and of `report.json`.
        worker_tree: the path at which the workers see the source tree.
        keep_going: whether to mark failed rules as known bad, with an empty object and its JSON, instead of raising an
            error after all rules were tried.
        on_count: called with the number of finished rules, the number of all rules, and text about the latest rule,
            which is empty at first.
        on_end: called with the lines of a summary when every rule has an entry, before an error is raised for failures.
        command: the command line that continues the campaign.
        scope: the value of `Naming.scope`. Objects of earlier runs are added to a store only if all entries of the
            ledger have this scope.

    Raises:
        KernelError: rules failed and `keep_going` is not set (raised after all rules were tried), or the campaign
            cannot continue, for example because no worker started.
        ResourceError: a kernel failed because of the machine that compiled it, workers were lost, or a file cannot be
            written. The next run continues.
        ConfigError: the ledger cannot be read.
        UnreachableError: the executor's scheduler was lost.
    """
    wanted = rules.rules if isinstance(rules, RuleSet) else tuple(rules)
    partial = rules.partial if isinstance(rules, RuleSet) else False
    out.mkdir(parents=True, exist_ok=True)
    place, began = ledger.path.with_name(STATUS), time.monotonic()
    with Board(place, wanted, workers=executor.workers, bounds=bounds, command=command) as board:
        todo = {rule.id: rule for rule in wanted}
        run = _Run(wanted, todo, executor, ledger, out, worker_tree, on_count, board, shared)
        alike, earlier = ledger.begin(scope), run.earlier()
        if alike and shared is not None:
            shared.compiled_by(ledger.facts())
        run.to_the_end(earlier if alike else ())
        compiled_here = executor.about() or (shared.about if shared is not None else {})
        result = CampaignResult(
            entries=ledger.entries(wanted),
            skipped=len(earlier),
            partial=partial,
            about=compiled_here if len(earlier) < len(wanted) else {},
            shared=asdict(shared.counts) if shared is not None else {},
        )
        if on_end is not None:
            seconds = time.monotonic() - began
            lines = summary(result, seconds=seconds, command=command, keep_going=keep_going)
            where = ["to look at all of them:", f"  toolchain report {shlex.quote(str(ledger.path.parent))}"]
            on_end([*lines, *(where if result.bad else [])])
        _write_report(result, ledger, out, keep_going=keep_going)
    return result


def _write_report(result: CampaignResult, ledger: Ledger, out: Path, *, keep_going: bool) -> None:
    # Killed workers leave partial files.
    for partial_file in out.rglob(".*.partial"):
        partial_file.unlink()
    bad = result.bad
    if bad and not keep_going:
        raise KernelError(
            "kernels-failed",
            f"{len(bad)} of {len(result.entries)} kernels did not compile",
            why=_listed([f"{entry.out}: {_brief(entry.reason)}" for entry in bad]),
            fix=f"see them with `toolchain report {shlex.quote(str(ledger.path.parent))}`, or run `kernels run`"
            " with --keep-going, which marks them as known bad and continues",
        )
    for entry in bad:
        _mark_known_bad(out, entry)
    write_atomically(out / REPORT, json.dumps(result.as_json(), indent=1, sort_keys=True).encode() + b"\n")


@dataclass(frozen=True)
class _Run:
    """A running campaign. `todo` contains the unfinished rules by id."""

    wanted: Sequence[Rule]
    todo: dict[str, Rule]
    executor: Executor
    ledger: Ledger
    out: Path
    tree: str
    on_count: Callable[[int, int, str], None] | None
    board: Board
    shared: SharedResults | None

    def earlier(self) -> list[Rule]:
        """Remove from `todo` the rules that an earlier run had finished, and return these rules."""
        finished = []
        for rule in self.wanted:
            entry = self.ledger.get(rule.id)
            if entry is not None and _finished(entry, rule, self.out):
                self.board.count(entry, reused=True)
                finished.append(self.todo.pop(rule.id))
        return finished

    def to_the_end(self, earlier: Sequence[Rule]) -> None:
        """Take results from the stores, compile the other rules, and add results to the first store.

        The results of the `earlier` rules are also added.
        """
        self.ledger.progress(*self.progress)
        self.tell()
        for rule in self.todo.values():
            _objects(self.out, rule, unlink=True)
        if self.shared is None:
            self.compile_rest()
            return
        self.take(self.shared)
        self.compile_rest()
        self.shared.add_earlier(earlier, {entry.id: entry for entry in self.ledger.entries(earlier)}, self.out)

    @property
    def progress(self) -> tuple[int, int]:
        return len(self.wanted) - len(self.todo), len(self.wanted)

    def tell(self, label: str = "") -> None:
        if self.on_count is not None:
            self.on_count(*self.progress, label)

    def record(self, entry: Entry, label: str = "", *, reused: bool = False) -> None:
        del self.todo[entry.id]
        self.ledger.record(entry, self.progress, self.executor.about())
        self.board.count(entry, reused=reused)
        self.tell(f"{entry.kernel} {entry.target}{label}")

    def compile_rest(self) -> None:
        with contextlib.closing(self.executor.run(in_order(self.todo.values()), self.tree, str(self.out))) as outcomes:
            for outcome in outcomes:
                rule = self.todo[outcome["id"]]
                if "code" in outcome:  # a Dask worker compiled the rule
                    path, _ = _objects(self.out, rule)
                    write_result(path, outcome["code"], outcome["json"], within=self.out)
                entry = _entry(rule, outcome, self.out)
                if entry.status != DONE:
                    _objects(self.out, rule, unlink=True)
                    if entry.maker is Maker.HERE:
                        _blame_the_machine(entry, self.out)
                self.record(entry)
                if self.shared is not None and entry.status == DONE:
                    self.shared.compiled_by(self.executor.about())
                    self.shared.add(rule, entry, self.out)

    def take(self, shared: SharedResults) -> None:
        """Take results from the stores.

        If nothing may be compiled, also record the known failures, and raise KernelError if results are missing.
        """
        for entry in shared.take(tuple(self.todo.values()), self.out):
            self.record(entry, " (from the store)", reused=True)
        if not shared.only:
            return
        for entry in [shared.failures[rule_id] for rule_id in self.todo if rule_id in shared.failures]:
            self.record(entry, reused=True)
        if self.todo:
            raise KernelError(
                "kernels-missing",
                f"{len(self.todo)} kernels are missing from {', '.join(str(store.root) for store in shared.stores)}",
                why=_listed([rule.out for rule in self.todo.values()]),
                fix="run the shards with these kernels again, with the same options",
            )


def _blame_the_machine(entry: Entry, out: Path) -> None:
    """Raise ResourceError if the machine caused a failure, because the kernel would otherwise be recorded as bad."""
    if entry.status == FAILED and (what := machine_fault(entry.reason, out)):
        raise ResourceError(
            "kernel-resources",
            what,
            why=f"{entry.out}: {_brief(entry.reason)}",
            fix="free disk space or memory, or lower --jobs, and run the command again; it continues with this kernel",
        )


def _finished(entry: Entry, rule: Rule, out: Path) -> bool:
    if entry.status != DONE or entry.out != rule.out:
        return False
    path, beside = _objects(out, rule)
    try:
        metadata = read_regular(beside, LARGEST_METADATA)
        return (
            sha256_file(path) == f"sha256:{entry.sha256}"
            and hashlib.sha256(metadata).hexdigest() == entry.metadata_sha256
            and not metadata_fault(strict_json.read(metadata), rule.target)
        )
    except (OSError, ValueError):
        return False


def _objects(out: Path, rule: Rule | Entry, *, unlink: bool = False) -> tuple[Path, Path]:
    """Return the paths of an object and its JSON, after removing both files if `unlink` is set.

    KernelError is raised if the object is a link, or if its path leads out of `out`.
    """
    path = out / rule.out
    if not is_inside(path, out) or path.is_symlink():
        raise KernelError(
            "kernel-path-escapes",
            f"{rule.out} leads out of {out}",
            why="the path in the rule, or a link that a worker made, leads there",
            fix="remove the link, and run the command again; it continues",
        )
    both = (path, path.with_suffix(".json"))
    if unlink:
        for file in both:
            file.unlink(missing_ok=True)
    return both


def _entry(rule: Rule, outcome: Outcome, out: Path) -> Entry:
    """Return the entry for an outcome. Its status is "done" only if the object and its JSON are valid."""
    status, reason = str(outcome["status"]), str(outcome.get("reason", ""))
    digest, metadata_digest, size = "", "", 0
    if status == DONE:
        path, beside = _objects(out, rule)
        try:
            check_made(path, rule.target, rule.kernel)
            digest, size = sha256_file(path).removeprefix("sha256:"), path.stat().st_size
            metadata = read_regular(beside, LARGEST_METADATA)
            metadata_digest = hashlib.sha256(metadata).hexdigest()
            reason = metadata_fault(strict_json.read(metadata), rule.target)
            if digest != outcome.get("sha256"):
                reason = f"the object's SHA-256 is {digest}, the worker reported {outcome.get('sha256')}"
        except KernelError as error:
            reason = error.why
        except (OSError, ValueError) as error:
            reason = f"the object's JSON file is unusable{f': {error.strerror}' if isinstance(error, OSError) else ''}"
        if reason:
            status, digest, metadata_digest, size = FAILED, "", "", 0
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
        sha256=digest,
        metadata_sha256=metadata_digest,
        size=size,
        bitcode=tuple(outcome.get("bitcode", ())) if done else (),
        origin=str(outcome.get("origin", "")),
    )


def _mark_known_bad(out: Path, entry: Entry) -> None:
    path, beside = _objects(out, entry)
    write_atomically(beside, canonical({"compile_status": KNOWN_BAD[entry.status]}) + b"\n")
    write_atomically(path, b"")


def _listed(lines: Sequence[str]) -> str:
    more = [f"… and {len(lines) - LISTED} more"] if lines[LISTED:] else []
    return "\n".join([*lines[:LISTED], *more])


def _brief(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason given"]
    return lines[0][:300] if len(lines) == 1 else f"{lines[0][:200]} … {lines[-1][:200]}"
