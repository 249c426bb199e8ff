"""A campaign and its kernel stores: what a store has is checked and taken, what it lacks is added."""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.errors import KernelError, ResourceError, ToolchainError
from toolchain.core.filesystem import NewFile, is_inside, read_regular
from toolchain.kernels.cache_entries import check_made
from toolchain.kernels.codeobject import metadata_fault
from toolchain.kernels.ledger import DONE, Entry, Maker
from toolchain.kernels.result_name import Naming, name_of
from toolchain.kernels.result_store import (
    LARGEST_METADATA,
    LARGEST_OBJECT,
    Addition,
    DamagedError,
    KernelStore,
    Key,
    Result,
    UnsignedError,
    read_record,
)
from toolchain.kernels.rules import Rule

LOG = logging.getLogger(__name__)


@dataclass
class Counts:
    """Counts of results taken from and added to stores.

    Args:
        taken: results that were taken.
        absent: results that were not there.
        damaged, unsigned: results that were there and could not be used.
        added: results that this campaign added.
    """

    taken: int = 0
    absent: int = 0
    damaged: int = 0
    unsigned: int = 0
    added: int = 0


class SharedResults:
    """The stores of one campaign.

    Args:
        stores: where results may be; the first one gets what is compiled here.
        naming: names this campaign's results.
        key: signs what is added; what is taken must be signed by it. None: signatures are not looked at.
        only: whether results may come from the stores alone: nothing is compiled for them.
        about: how the workers here described themselves in an earlier run, if recorded.
    """

    def __init__(
        self,
        stores: Sequence[KernelStore],
        naming: Naming,
        *,
        key: Key | None = None,
        only: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.counts = Counts()
        self.naming = naming
        self.only = only
        self.failure: ToolchainError | None = None
        self.failures: Mapping[str, Entry] = {}
        self.about: Mapping[str, Any] = {}
        self._about_here: Mapping[str, Any] = about or {}
        self.stores = list(stores)  # those that answer
        self._writes: KernelStore | None = stores[0] if stores and not only else None
        self.key = key
        self._inputs: dict[str, Mapping[str, Any]] = {}
        self._unusable: set[str] = set()  # names whose record in the first store is to be replaced

    def prepare(self, rules: Sequence[Rule]) -> None:
        """List what the stores have.

        Raises:
            ToolchainError: one of them cannot be used. This is checked before hours of compiling.
        """
        targets = sorted({rule.target for rule in rules})
        for store in self.stores:
            store.prepare(self.naming.scope, targets)

    def name(self, rule: Rule) -> str:
        """The name of a rule's result."""
        return name_of(self._inputs_of(rule))

    def _inputs_of(self, rule: Rule) -> Mapping[str, Any]:
        if rule.id not in self._inputs:
            self._inputs[rule.id] = self.naming.inputs(rule)
        return self._inputs[rule.id]

    def take(self, rules: Sequence[Rule], out: Path) -> Iterator[Entry]:
        """Take the results of some rules from the stores; an entry for each.

        Args:
            out: folder of the objects.

        Raises:
            ToolchainError: with `only`, a store does not answer.
        """
        named = {self.name(rule): rule for rule in rules}
        left = {name: rule for name, rule in named.items() if name not in self._unusable}
        for store in tuple(self.stores):
            if left:
                for entry, name in self._take_from(store, left, out):
                    del left[name]
                    yield entry
        self.counts.absent += len(left)

    def _take_from(self, store: KernelStore, wanted: Mapping[str, Rule], out: Path) -> Iterator[tuple[Entry, str]]:
        try:
            for name, record in store.fetch(wanted.keys()):
                rule = wanted[name]
                try:
                    if record is None:
                        raise DamagedError("it cannot be read")
                    entry = self._taken(store.ref, rule, record, out)
                    self.counts.taken += 1
                    yield entry, name
                except DamagedError as error:
                    self.counts.damaged += 1
                    self._unusable.add(name)
                    LOG.warning("%s: %s is not taken: %s", store.ref, rule.out, error)
                except UnsignedError as error:
                    self.counts.unsigned += 1
                    self._unusable.add(name)
                    LOG.info("%s: %s is not taken: %s", store.ref, rule.out, error)
        except ToolchainError as error:
            if self.only:
                raise
            LOG.warning("%s is no longer used: %s", store.ref, error.what)
            self.stores.remove(store)

    def _taken(self, origin: str, rule: Rule, record: bytes, out: Path) -> Entry:
        result = read_record(record, self._inputs_of(rule), self.key)
        path = out / rule.out
        try:
            metadata = strict_json.read(result.metadata)
        except ValueError as error:
            raise DamagedError(f"the JSON beside the object cannot be read: {error}") from error
        if why := metadata_fault(metadata, rule.target):
            raise DamagedError(why)
        try:
            if not is_inside(path, out):
                raise OSError(errno.ELOOP, f"a link leads out of {out}", str(path.parent))
            _lay(path.with_suffix(".json"), result.metadata)
            _lay(path, result.code)
        except OSError as error:
            raise ResourceError(
                f"cannot write {path}", why=str(error), fix="free disk space and run it again: it continues"
            ) from error
        try:
            check_made(path, rule.target, rule.kernel)
        except KernelError as error:
            for written in (path, path.with_suffix(".json")):
                written.unlink(missing_ok=True)
            raise DamagedError(error.why) from error
        self._unusable.discard(name_of(result.inputs))
        self.about = self.about or dict(result.about)
        return Entry.of(
            rule,
            DONE,
            seconds=result.seconds,
            sha256=hashlib.sha256(result.code).hexdigest(),
            metadata_sha256=hashlib.sha256(result.metadata).hexdigest(),
            size=len(result.code),
            bitcode=result.bitcode,
            origin=origin,
            signer=self.key.id if self.key is not None else "",
        )

    def compiled_by(self, about: Mapping[str, Any]) -> None:
        """Note how the workers here describe themselves, for the results that are added."""
        self._about_here = about or self._about_here

    def add(self, rule: Rule, entry: Entry, out: Path) -> None:
        """Store a result that was compiled here. A failure to store it is logged once, and stops nothing.

        Raises:
            KernelError: its files are not those that were compiled.
        """
        store, name = self._writes, self.name(rule)
        if store is None or not self._about_here or entry.maker is Maker.STORE:
            return
        path = out / entry.out
        code = read_regular(path, LARGEST_OBJECT, within=out)
        metadata = read_regular(path.with_suffix(".json"), LARGEST_METADATA, within=out)
        digests = tuple(hashlib.sha256(content).hexdigest() for content in (code, metadata))
        if digests != (entry.sha256, entry.metadata_sha256):
            raise KernelError(
                f"{path} has changed since it was compiled",
                why="a kernel store gets what compile processes made, and nothing else",
                fix="run it again: it compiles this kernel again",
            )
        result = Result(
            inputs=self._inputs_of(rule),
            code=code,
            metadata=metadata,
            bitcode=entry.bitcode,
            seconds=entry.seconds,
            about=self._about_here,
        )
        record = result.record(self.key)
        self._try(lambda: store.add(Addition(name, rule.target, record), replace=name in self._unusable))

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
            LOG.warning("results are no longer added to the kernel store: %s (%s)", error.what, error.why)


def _lay(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all.

    It is not flushed to disk, which would cost more than all the rest of a hit: a campaign reads what is there, and
    takes what a crash has lost again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NewFile(path) as new:
        new.stream.write(content)
        new.finish(flush=False)
