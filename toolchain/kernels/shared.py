"""Take results for a campaign from kernel stores, and add the campaign's results to a store."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.errors import KernelError, ToolchainError
from toolchain.core.filesystem import read_regular
from toolchain.kernels.cache_entries import check_made
from toolchain.kernels.codeobject import metadata_fault
from toolchain.kernels.ledger import DONE, Entry, Maker
from toolchain.kernels.result_name import Naming, name_of
from toolchain.kernels.result_store import (
    LARGEST_METADATA,
    LARGEST_OBJECT,
    DamagedError,
    KernelStore,
    Key,
    Result,
    UnsignedError,
    read_record,
    write_result,
)
from toolchain.kernels.rules import Rule

LOG = logging.getLogger(__name__)


@dataclass
class Counts:
    """The numbers of results that a campaign took from stores and added to a store.

    Args:
        absent: the number of results that are in none of the stores.
        damaged, unsigned: the numbers of records that were found in the stores, but were not used because of damage,
            or because the required key did not sign them.
    """

    taken: int = 0
    absent: int = 0
    damaged: int = 0
    unsigned: int = 0
    added: int = 0


class SharedResults:
    """The kernel stores of one campaign.

    Args:
        stores: the stores to take results from. Compiled results are added to the first store.
        key: the key that signs added results, and that must have signed taken results. With None, signatures are not
            checked.
        only: whether to compile nothing and take all results from the stores.
    """

    def __init__(
        self, stores: Sequence[KernelStore], naming: Naming, *, key: Key | None = None, only: bool = False
    ) -> None:
        self.counts = Counts()
        self.naming = naming
        self.only = only
        self.failure: ToolchainError | None = None  # the error after which no more results are added
        self.failures: Mapping[str, Entry] = {}
        self.about: Mapping[str, Any] = {}
        self._about_here: Mapping[str, Any] = {}
        self.stores = list(stores)
        self._writes: KernelStore | None = stores[0] if stores and not only else None
        self.key = key
        self._inputs: dict[str, Mapping[str, Any]] = {}
        self._unusable: set[str] = set()  # names of records to replace

    def name(self, rule: Rule) -> str:
        return name_of(self._inputs_of(rule))

    def _inputs_of(self, rule: Rule) -> Mapping[str, Any]:
        if rule.id not in self._inputs:
            self._inputs[rule.id] = self.naming.inputs(rule)
        return self._inputs[rule.id]

    def take(self, rules: Sequence[Rule], out: Path) -> Iterator[Entry]:
        """Take results for `rules` from the stores: write each object and its JSON to `out`, and yield its entry.

        Damaged results, and those without a required signature, are skipped. ResourceError is raised if a file cannot
        be written.
        """
        left = {self.name(rule): rule for rule in rules}
        for store in self.stores:
            for name, record in store.fetch(left.keys()):
                if (entry := self._checked(store, name, left[name], record, out)) is not None:
                    del left[name]
                    yield entry
        self.counts.absent += len(left.keys() - self._unusable)

    def _checked(self, store: KernelStore, name: str, rule: Rule, record: bytes | None, out: Path) -> Entry | None:
        try:
            if record is None:
                raise DamagedError("it cannot be read")
            entry = self._taken(str(store.root), rule, record, out)
        except DamagedError as error:
            self.counts.damaged += 1
            self._unusable.add(name)
            LOG.warning("%s: %s is not used: %s", store.root, rule.out, error)
            return None
        except UnsignedError as error:
            self.counts.unsigned += 1
            self._unusable.add(name)
            LOG.info("%s: %s is not used: %s", store.root, rule.out, error)
            return None
        self.counts.taken += 1
        return entry

    def _taken(self, origin: str, rule: Rule, record: bytes, out: Path) -> Entry:
        result = read_record(record, self._inputs_of(rule), self.key)
        path = out / rule.out
        try:
            metadata = strict_json.read(result.metadata)
        except ValueError as error:
            raise DamagedError("the JSON of the object cannot be read") from error
        if why := metadata_fault(metadata, rule.target):
            raise DamagedError(why)
        write_result(path, result.code, result.metadata, within=out)
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
        """Keep the facts that the workers reported, if there are any, because they become part of added results."""
        self._about_here = about or self._about_here

    def add(self, rule: Rule, entry: Entry, out: Path) -> None:
        """Add a result to the first store.

        Nothing is added if no store may be written to, if the result comes from a store or has a usable record in the
        first store, or if the facts that the workers report are unknown. If the store cannot be written, warn once and
        add no more results. Raise KernelError if the files have changed since they were compiled.
        """
        if self._writes is None or not self._about_here or entry.maker is Maker.STORE:
            return
        name, path = self.name(rule), out / entry.out
        code = read_regular(path, LARGEST_OBJECT, within=out)
        metadata = read_regular(path.with_suffix(".json"), LARGEST_METADATA, within=out)
        digests = tuple(hashlib.sha256(content).hexdigest() for content in (code, metadata))
        if digests != (entry.sha256, entry.metadata_sha256):
            raise KernelError(
                "kernel-changed",
                f"{path} has changed since it was compiled",
                why="only what a compile process made may be added to a kernel store",
                fix="run the command again; it compiles this kernel again",
            )
        result = Result(
            inputs=self._inputs_of(rule),
            code=code,
            metadata=metadata,
            bitcode=entry.bitcode,
            seconds=entry.seconds,
            about=self._about_here,
        )
        try:
            self.counts.added += self._writes.add(name, result.record(self.key), replace=name in self._unusable)
        except ToolchainError as error:
            self.failure, self._writes = error, None
            LOG.warning("results are no longer added to the kernel store: %s (%s)", error.what, error.why)

    def add_earlier(self, rules: Sequence[Rule], entries: Mapping[str, Entry], out: Path) -> None:
        """Add those results of an earlier run that have no usable record in the first store."""
        if self._writes is None:
            return
        for rule in self.lacking([rule for rule in rules if rule.id in entries]):
            self.add(rule, entries[rule.id], out)

    def lacking(self, rules: Sequence[Rule]) -> list[Rule]:
        """Return those of `rules` whose results have no usable record in the first store.

        If the key cannot sign, records need no signature, because those that `add` makes have none either.
        """
        left = {self.name(rule): rule for rule in rules}
        key = self.key if self.key is not None and self.key.can_sign else None
        for name, record in self.stores[0].fetch(left.keys()):
            try:
                read_record(record or b"", self._inputs_of(left[name]), key)
                del left[name]
            except (DamagedError, UnsignedError):
                self._unusable.add(name)
        return list(left.values())
