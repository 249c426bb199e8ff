"""A campaign and its store: what the store has is checked and taken, what it lacks is added. It is never believed."""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain import strict_json
from toolchain.errors import KernelError, ResourceError, ToolchainError
from toolchain.kernels.bounds import OVER_MEMORY
from toolchain.kernels.codeobject import check_object
from toolchain.kernels.faults import of_metadata
from toolchain.kernels.ledger import DONE, TIMEOUT, Entry
from toolchain.kernels.result_name import Naming, name_of
from toolchain.kernels.rules import Rule
from toolchain.kernels.store import (
    Addition,
    DamagedError,
    KernelStore,
    Key,
    LiedError,
    Result,
    UnsignedError,
    read_record,
)

LOG = logging.getLogger(__name__)
# Where results are compiled again, below the folder of the objects.
AGAIN = ".again"
# Begins the origin of what another machine compiled for this campaign; a store's reference is none of these.
WORKER = "worker "
_LISTED = 5


@dataclass
class Counts:
    """What a campaign had of its store.

    Args:
        taken: results that were taken.
        absent: results that were not there.
        damaged, unsigned: results that were there and of no use.
        rechecked: results that were taken and compiled here too, with the same bytes.
        added: results that the store has from this campaign.
        lied: by store, what was found about it.
    """

    taken: int = 0
    absent: int = 0
    damaged: int = 0
    unsigned: int = 0
    rechecked: int = 0
    added: int = 0
    lied: dict[str, list[str]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As a report has it."""
        return dict(vars(self))


class SharedResults:
    """The stores of one campaign.

    Args:
        stores: where results may be; the first one gets what is compiled here.
        naming: names this campaign's results.
        key: signs what is added; what is taken must be signed by it. None: signatures are not looked at.
        recheck: from 0 to 1, the probability with which each result that is taken is compiled here too.
        only: whether results may come from the stores alone: nothing is compiled for them.
        distrusted: stores that lied before; what earlier runs took from them is compiled here.
        about: what the workers here said of themselves in an earlier run, if anybody noted it.
        on_lie: called with a store's reference and what it said; the store is not used again.
    """

    def __init__(
        self,
        stores: Sequence[KernelStore],
        naming: Naming,
        *,
        key: Key | None = None,
        recheck: float = 0.0,
        only: bool = False,
        distrusted: Iterable[str] = (),
        about: Mapping[str, Any] | None = None,
        on_lie: Callable[[str, str], None] = lambda _ref, _why: None,
    ) -> None:
        self.counts = Counts()
        self.naming = naming
        self.only = only
        self.failure: ToolchainError | None = None
        self.failures: Mapping[str, Entry] = {}
        self.about: Mapping[str, Any] = {}
        self._about_here: Mapping[str, Any] = about or {}
        self._distrusted = frozenset(distrusted)
        self._stores = list(stores)
        self._writes: KernelStore | None = stores[0] if stores and not only else None
        self.key = key
        self._recheck = recheck
        self._on_lie = on_lie
        self._inputs: dict[str, Mapping[str, Any]] = {}
        self._useless: set[str] = set()  # names that the first store has, and that it may not keep

    @property
    def stores(self) -> Sequence[KernelStore]:
        """Those that are used still."""
        return tuple(self._stores)

    def prepare(self, rules: Sequence[Rule]) -> None:
        """Ask the stores what they have.

        Raises:
            ToolchainError: one of them cannot be used. Better now than after hours of compiling what it has.
        """
        targets = sorted({rule.target for rule in rules})
        for store in self._stores:
            store.prepare(self.naming.scope, targets)

    def name(self, rule: Rule) -> str:
        """The name of a rule's result."""
        return name_of(self._inputs_of(rule))

    def _inputs_of(self, rule: Rule) -> Mapping[str, Any]:
        if rule.id not in self._inputs:
            self._inputs[rule.id] = self.naming.inputs(rule)
        return self._inputs[rule.id]

    def take(self, rules: Sequence[Rule], out: Path) -> Iterator[Entry]:
        """Bring what the stores have of some rules' results; an entry for each.

        Args:
            out: folder of the objects.

        Raises:
            ToolchainError: with `only`, a store does not answer.
        """
        named = {self.name(rule): rule for rule in rules}
        left = {name: rule for name, rule in named.items() if name not in self._useless}
        for store in tuple(self._stores):
            if left:
                for entry, name in self._take_from(store, left, out):
                    del left[name]
                    yield entry
        self.counts.absent += len(left)

    def _take_from(self, store: KernelStore, wanted: Mapping[str, Rule], out: Path) -> Iterator[tuple[Entry, str]]:
        try:
            for name, record in store.fetch(wanted.keys()):
                rule = wanted.get(name)
                if rule is None:
                    continue
                try:
                    if record is None:
                        raise DamagedError("it cannot be read")
                    entry = self._taken(store.ref, rule, record, out)
                    self.counts.taken += 1
                    yield entry, name
                except DamagedError as error:
                    self.counts.damaged += 1
                    self._useless.add(name)
                    LOG.warning("%s: %s is damaged and not taken: %s", store.ref, rule.out, error)
                except UnsignedError as error:
                    self.counts.unsigned += 1
                    self._useless.add(name)
                    LOG.info("%s: %s is not taken: %s", store.ref, rule.out, error)
                except LiedError as error:
                    self.lied(store.ref, f"{rule.out}: {error}")
                    return
        except ToolchainError as error:
            if self.only:
                raise
            LOG.warning("%s is not asked any more: %s", store.ref, error.what)
            self._stores.remove(store)

    def receive(self, rule: Rule, out: Path, origin: str, said: str) -> Entry | None:
        """Bring what a machine that works for this campaign left in the first store; None where it is not there.

        Args:
            origin: of the entry: that machine, or the store where the machine found it there.
            said: SHA-256 of the object, as that machine said.

        Raises:
            DamagedError, UnsignedError: it is there, and of no use; or it is another one, perhaps of another machine.
            LiedError: it is the one that was said, and of no use.
            ToolchainError: the store does not answer, or the disk is full.
        """
        name, store = self.name(rule), self._stores[0]
        for found, record in store.fetch([name]):
            if found == name:
                if record is None:
                    raise DamagedError("it cannot be read")
                if hashlib.sha256(record.partition(b"\n")[2]).hexdigest() != said:
                    raise DamagedError(f"its SHA-256 is not {said}")
                entry = self._taken(origin, rule, record, out)
                if origin == store.ref:
                    self.counts.taken += 1
                else:
                    self.counts.added += 1
                return entry
        return None

    def spoil(self, rule: Rule) -> None:
        """Believe nothing that the stores have of a rule: what is compiled next takes its place there."""
        self._useless.add(self.name(rule))

    def is_spoilt(self, rule: Rule) -> bool:
        """Whether what the first store has of a rule is worth nothing."""
        return self.name(rule) in self._useless

    def _taken(self, origin: str, rule: Rule, record: bytes, out: Path) -> Entry:
        result = read_record(record, self._inputs_of(rule), self.key)
        path = out / rule.out
        try:
            metadata = strict_json.read(result.metadata)
        except ValueError as error:
            raise LiedError(f"the JSON beside the object is none: {error}") from error
        if why := of_metadata(rule, metadata):
            raise LiedError(why)
        version, said = str(result.about.get("triton", "")), str(metadata.get("triton_version", ""))
        if version and said and version != said:
            raise LiedError(f"it was made by Triton {said}, and said to be made by {version}")
        if self.about and dict(result.about) != dict(self.about):
            raise LiedError("its compiler is not the one that made other results")
        try:
            _lay(path.with_suffix(".json"), result.metadata)
            _lay(path, result.code)
        except OSError as error:
            raise ResourceError(
                f"cannot write {path}", why=str(error), fix="free room and run it again: it goes on"
            ) from error
        try:
            check_object(path, rule.target, rule.kernel)
        except KernelError as error:
            for one in (path, path.with_suffix(".json")):
                one.unlink(missing_ok=True)
            raise LiedError(error.why) from error
        self._useless.discard(name_of(result.inputs))
        self.about = self.about or dict(result.about)
        return Entry.of(
            rule,
            DONE,
            seconds=result.seconds,
            sha256=hashlib.sha256(result.code).hexdigest(),
            size=len(result.code),
            bitcode=result.bitcode,
            origin=origin,
        )

    def lied(self, ref: str, why: str) -> None:
        """Name a store, or a machine that works for the campaign, that lied, and use it no more."""
        told = self.counts.lied.setdefault(ref, [])
        told.append(why)
        if len(told) <= _LISTED:
            LOG.warning("%s lied, and is not used again: %s", ref, why)
        self._stores = [store for store in self._stores if store.ref != ref]
        if self._writes is not None and self._writes.ref == ref:
            self._writes = None
        self._on_lie(ref, why)

    def sample(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that are compiled here too. Nobody can know which: each is chosen by chance, apart from the others.

        Kernels that took too long or too much elsewhere are none of them: that tells of the machine there.
        """
        chance = random.SystemRandom()
        fair = [one for one in entries if one.status != TIMEOUT and not one.reason.startswith(OVER_MEMORY)]
        return [entry for entry in fair if entry.origin and chance.random() < self._recheck]

    def compare(self, entry: Entry, again: Entry, out: Path, rule: Rule) -> None:
        """Hold what was taken against what was compiled here; a difference is a lie.

        Args:
            entry: what was taken.
            again: what became of the same rule here.
            rule: the rule with its output below `AGAIN`.
        """
        if entry.status != DONE:
            if again.status == DONE:
                said = entry.reason.partition("\n")[0][:200]
                self.lied(entry.origin, f"{entry.out}: it is said to fail ({said}), and compiles here")
            return
        if again.status != DONE:
            self.lied(entry.origin, f"{entry.out}: here it {again.status}: {again.reason.splitlines()[0][:200]}")
            return
        here, there = ((out / one).with_suffix(".json").read_bytes() for one in (rule.out, entry.out))
        if again.sha256 != entry.sha256:
            self.lied(entry.origin, f"{entry.out}: SHA-256 {entry.sha256} there, {again.sha256} here")
        elif here != there or again.bitcode != entry.bitcode:
            self.lied(entry.origin, f"{entry.out}: the JSON beside the object is another one here")
        else:
            self.counts.rechecked += 1

    def compare_compiler(self, about: Mapping[str, Any]) -> None:
        """Hold the compiler that is said to have made what was taken against the one here."""
        self._about_here = about or self._about_here
        if self.about and self._about_here and dict(self.about) != dict(self._about_here):
            for store in tuple(self._stores):
                self.lied(store.ref, f"its results are said to be made by {self.about}, here it is {self._about_here}")
            self.about = {}

    @property
    def distrusted(self) -> frozenset[str]:
        """The stores and machines that lied, now or before."""
        return self._distrusted | self.counts.lied.keys()

    def is_distrusted(self, entry: Entry | None) -> bool:
        """Whether an entry is from a store or a machine that lied."""
        return entry is not None and entry.origin in self.distrusted

    def known_bad(self, rules: Sequence[Rule]) -> Iterator[Entry]:
        """What shards say of rules that did not compile there."""
        for rule in rules:
            if rule.id in self.failures:
                yield self.failures[rule.id]

    def add(self, rule: Rule, entry: Entry, out: Path) -> None:
        """Store a result that was compiled here. What keeps it from being stored is told once, and stops nothing."""
        store, name = self._writes, self.name(rule)
        if store is None or not self._about_here or (entry.origin and not entry.origin.startswith(WORKER)):
            return
        path = out / entry.out
        result = Result(
            inputs=self._inputs_of(rule),
            code=path.read_bytes(),
            metadata=path.with_suffix(".json").read_bytes(),
            bitcode=entry.bitcode,
            seconds=entry.seconds,
            about=self._about_here,
        )
        record = result.record(self.key)
        self._try(
            lambda: store.add(
                Addition(name, rule.target, rule.id, entry.seconds, record), replace=name in self._useless
            )
        )

    def add_earlier(self, rules: Sequence[Rule], entries: Mapping[str, Entry], out: Path) -> None:
        """Store what an earlier run compiled and the store lacks: it may have been killed before it stored it.

        Args:
            entries: by a rule's id.
        """
        for rule in rules:
            store = self._writes
            if store is not None and rule.id in entries and not store.holds(self.name(rule)):
                self.add(rule, entries[rule.id], out)

    def flush(self) -> None:
        """Store what was added."""
        if self._writes is not None:
            self._try(self._writes.flush)

    def _try(self, store: Callable[[], int]) -> None:
        try:
            self.counts.added += store()
        except ToolchainError as error:
            self.failure, self._writes = error, None
            LOG.warning("results are not added to the kernel store any more: %s (%s)", error.what, error.why)


def _lay(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all.

    It is not flushed to disk, which would cost more than all the rest of a hit: a campaign reads what it finds, and
    takes again what a crash has lost.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def again(rule: Rule) -> Rule:
    """The rule with its output where results are compiled a second time."""
    return replace(rule, out=f"{AGAIN}/{rule.out}")
