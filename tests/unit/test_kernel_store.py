"""Tests of kernel stores that campaigns share, and of records that are damaged, forged or not signed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_fixtures import FakeWorkers, local_executor, make_object, make_rule
from tests.refusals import refused
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.result_name import Naming, name_of
from toolchain.kernels.result_store import KernelStore, Result
from toolchain.kernels.rules import Rule
from toolchain.kernels.shared import SharedResults

KERNELS = ("one", "two", "three")


def rules_of(*kernels: str, target: str = "gfx942") -> list[Rule]:
    """Return one rule for each kernel, with a source file of its own."""
    return [replace(make_rule(kernel, target=target), source=f"{kernel}.py") for kernel in kernels]


class PlainKey:
    """A fake key; `test_kernel_store_options` tests real keys."""

    def __init__(self, word: str, *, private: bool = True) -> None:
        self.id = word
        self.can_sign = private

    def sign(self, statement: bytes) -> bytes | None:
        return self._signature(statement) if self.can_sign else None

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        return signature == self._signature(statement)

    def _signature(self, statement: bytes) -> bytes:
        return f"{self.id} {hash(statement)}".encode()


@dataclass
class Machine:
    """A machine with its own source tree, workers, ledger and folder of code objects."""

    root: Path
    layers: tuple[str, ...] = ("sha256:" + "a" * 64,)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = self.root / "tree"
        self.tree.mkdir(parents=True, exist_ok=True)
        (self.tree / "helper.py").write_text("WIDTH = 1\n")
        for kernel in (*KERNELS, "fails"):
            (self.tree / f"{kernel}.py").write_text("from helper import WIDTH\n" if kernel == "two" else "")
        self.workers = FakeWorkers(self.root / "workers")
        self.out = self.root / "out"

    def naming(self) -> Naming:
        return Naming(self.tree, triton=self.layers, recipe={"worker.py": "1"}, environment=self.environment)

    def run(self, store: KernelStore | None, rules: Sequence[Rule] | None = None, **how: Any) -> CampaignResult:
        rules = rules_of(*KERNELS) if rules is None else rules
        self.workers.provide(list(rules))
        shared = None
        if store is not None:
            shared = SharedResults([store], self.naming(), **how)
        with Ledger(self.root / "ledger.sqlite") as ledger:
            executor = local_executor(self.workers, workers=1, timeout=300)
            return run_campaign(rules, executor, ledger, self.out, worker_tree="/src", keep_going=True, shared=shared)

    def files(self) -> dict[str, bytes]:
        """Return the content of all files that the campaign wrote, by path."""
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes() for path in self.out.rglob("*") if path.is_file()
        }


def store_at(path: Path) -> KernelStore:
    return KernelStore(path / "store")


def record_path(store: Path, machine: Machine, rule: Rule) -> Path:
    name = name_of(machine.naming().inputs(rule))
    return store / "store" / "results" / name[:2] / name[2:]


def test_second_machine_takes_stored_results_and_compiles_nothing(tmp_path: Path) -> None:
    first, second, alone = (Machine(tmp_path / name) for name in ("first", "second", "alone"))
    made = first.run(store_at(tmp_path))
    taken = second.run(store_at(tmp_path))
    alone.run(None)

    assert (made.shared["added"], made.shared["taken"]) == (3, 0)
    assert (taken.shared["added"], taken.shared["taken"]) == (0, 3)
    assert second.workers.tries == []
    assert second.files() == first.files() == alone.files()
    assert taken.about == made.about == {"triton": "0.0"}, "packs tell what compiled their kernels"
    assert second.run(store_at(tmp_path)).skipped == 3


def test_source_change_recompiles_only_kernels_that_use_the_file(tmp_path: Path) -> None:
    Machine(tmp_path / "first").run(store_at(tmp_path))
    second = Machine(tmp_path / "second")
    (second.tree / "helper.py").write_text("WIDTH = 2\n")
    second.run(store_at(tmp_path))
    assert second.workers.tries == ["two"]

    third = Machine(tmp_path / "third")
    (third.tree / "three.py").write_text("# longer\n")
    third.run(store_at(tmp_path))
    assert third.workers.tries == ["three"]


def test_result_name_depends_on_options_signature_and_gpu_but_not_output_path(tmp_path: Path) -> None:
    naming = Machine(tmp_path).naming()
    rule = rules_of("one")[0]
    others = [
        replace(rule, num_warps=8),
        replace(rule, options=(("kpack", 2),)),
        replace(rule, target="gfx1100"),
        replace(rule, signature=(("x", "*fp16:16"),)),
    ]
    assert len({name_of(naming.inputs(each)) for each in (rule, *others)}) == 5
    assert name_of(naming.inputs(replace(rule, out="elsewhere.hsaco", cluster="other"))) == name_of(naming.inputs(rule))


@pytest.mark.parametrize("damage", ["a bit of the object", "a bit of the statement", "cut", "a folder"])
def test_damaged_record_is_recompiled_and_replaced(tmp_path: Path, damage: str) -> None:
    first = Machine(tmp_path / "first")
    first.run(store_at(tmp_path))
    path = record_path(tmp_path, first, rules_of("two")[0])
    content = bytearray(path.read_bytes())
    if damage == "a bit of the object":
        content[-3] ^= 1
    elif damage == "a bit of the statement":
        content[content.index(b"seconds") + 11] ^= 1
    elif damage == "cut":
        content = content[: len(content) // 2]
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(content)
    second = Machine(tmp_path / "second")
    result = second.run(store_at(tmp_path))

    assert (result.shared["taken"], result.shared["damaged"]) == (2, 1)
    assert second.workers.tries == ["two"]
    assert second.files() == first.files()
    if damage != "a folder":
        assert Machine(tmp_path / "third").run(store_at(tmp_path)).shared["taken"] == 3


def forge(machine: Machine, store: Path, rule: Rule, **changes: Any) -> None:
    """Store a well-formed record for a rule; `changes` replace parts of its content."""
    metadata = {"shared": 0, "num_warps": 4, "warp_size": 64, "compile_status": "Complete", "arch": rule.target}
    facts: dict[str, Any] = {
        "inputs": machine.naming().inputs(rule),
        "code": make_object(rule.target, rule.kernel),
        "metadata": json.dumps(metadata).encode(),
        "bitcode": ("ocml",),
        "about": {"triton": "0.0"},
    }
    record = Result(**{**facts, **changes}).record()
    KernelStore(store / "store").add(name_of(machine.naming().inputs(rule)), record, replace=True)


@pytest.mark.parametrize("forged", ["another GPU", "another Triton", "another rule", "no facts"])
def test_forged_record_is_recompiled_and_replaced(tmp_path: Path, forged: str) -> None:
    first = Machine(tmp_path / "first")
    first.run(store_at(tmp_path))
    rule = rules_of("two")[0]
    naming = first.naming()
    changes: dict[str, dict[str, Any]] = {
        "another GPU": {"code": make_object("gfx1100", "two")},
        "another Triton": {"inputs": {**naming.inputs(rule), "triton": ["sha256:" + "b" * 64]}},
        "another rule": {"inputs": naming.inputs(rules_of("three")[0])},
        "no facts": {"metadata": b"{}"},
    }
    forge(first, tmp_path, rule, **changes[forged])
    second = Machine(tmp_path / "second")
    result = second.run(store_at(tmp_path))

    assert (result.shared["taken"], result.shared["damaged"], result.shared["added"]) == (2, 1, 1)
    assert second.workers.tries == ["two"]
    assert second.files() == first.files()
    assert Machine(tmp_path / "third").run(store_at(tmp_path)).shared["taken"] == 3


def test_only_results_signed_by_the_given_key_are_taken(tmp_path: Path) -> None:
    Machine(tmp_path / "unsigned").run(store_at(tmp_path))
    result = Machine(tmp_path / "signed").run(store_at(tmp_path), key=PlainKey("ours"))
    assert (result.shared["taken"], result.shared["unsigned"], result.shared["added"]) == (0, 3, 3)
    reader = Machine(tmp_path / "reader")
    assert reader.run(store_at(tmp_path), key=PlainKey("ours", private=False)).shared["taken"] == 3
    second = Machine(tmp_path / "other")
    assert second.run(store_at(tmp_path), key=PlainKey("theirs", private=False)).shared["taken"] == 0


def test_failed_kernel_is_not_added_to_the_store(tmp_path: Path) -> None:
    rules = rules_of("one", "fails")
    Machine(tmp_path / "first").run(store_at(tmp_path), rules)
    second = Machine(tmp_path / "second")
    assert second.run(store_at(tmp_path), rules).counts() == {"done": 1, "failed": 1, "timed_out": 0}
    assert second.workers.tries == ["fails"]


WRITER = """
import sys
from pathlib import Path
from toolchain.kernels.result_store import KernelStore, Result
store = KernelStore(Path(sys.argv[1]))
for number in range(150):
    name = f"{number:064x}"
    record = Result(inputs={"number": number}, code=bytes(5000) + bytes([number]), metadata=b"{}").record()
    store.add(name, record)
"""


def test_two_concurrent_writers_store_all_records(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "store")]) for _ in range(2)]
    assert [writer.wait(1200) for writer in writers] == [0, 0]
    store = store_at(tmp_path)
    names = [f"{number:064x}" for number in range(150)]
    fetched = dict(store.fetch(names))
    for number, name in enumerate(names):
        made = Result(inputs={"number": number}, code=bytes(5000) + bytes([number]), metadata=b"{}").record()
        assert fetched[name] == made
    assert not list((tmp_path / "store").rglob("*.partial"))


def test_folder_with_other_files_is_refused_as_a_store(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("mine")
    with refused("not-a-kernel-store"):
        KernelStore(tmp_path / "letters")


@pytest.mark.parametrize("how", ["unsigned", "damaged"])
def test_continued_run_replaces_unsigned_and_damaged_records(tmp_path: Path, how: str) -> None:
    """A merge compiles nothing, so it needs a usable record of each kernel in the store of the shard."""
    machine, store, rules = Machine(tmp_path / "shard"), tmp_path / "store", rules_of(*KERNELS)
    key = PlainKey("ours")
    machine.run(store_at(store), rules[:2], key=None if how == "unsigned" else key)
    if how == "damaged":
        path = record_path(store, machine, rules[0])
        path.write_bytes(path.read_bytes()[:-5])
    machine.run(store_at(store), rules, key=key)
    merged = Machine(tmp_path / "merge").run(store_at(store), rules, key=key, only=True)
    assert merged.shared["taken"] == len(KERNELS)
