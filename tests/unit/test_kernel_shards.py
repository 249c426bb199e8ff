"""Tests of campaigns in shards: how rules are cut into shards, and what a merge of the shards refuses."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kernel_fixtures import local_executor, make_rule, only_hanging_ones_time_out
from tests.refusals import refused
from tests.unit.test_kernel_store import Machine, PlainKey
from toolchain.cli.app import app
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.result_name import name_of
from toolchain.kernels.result_store import KernelStore
from toolchain.kernels.rules import Rule, RuleSet
from toolchain.kernels.shards import cut, shard_of
from toolchain.kernels.shared import SharedResults

NAMES = ("a", "b", "c", "d", "e")
RULES = [
    replace(make_rule(name, warps=2**number, cluster=f"gfx942/{name}"), source=f"{name}.py")
    for name in NAMES
    for number in range(2)
]


def run(
    machine: Machine,
    stores: Sequence[KernelStore],
    part: tuple[int, int] | None = None,
    rules: Sequence[Rule] = RULES,
    timeout: float = 300,
    **how: Any,
) -> CampaignResult:
    """Cut, compile and leave the mark, as a stage does; merge if there is no part and `only` is set."""
    for rule in rules:
        (machine.tree / rule.source).touch()
    machine.workers.provide(list(rules))
    shared = SharedResults(stores, machine.naming(), **how)
    shard = shard_of(RuleSet(tuple(rules), len(rules)), part, shared, {"timeout": timeout})
    with Ledger(machine.root / "ledger.sqlite") as ledger:
        executor = local_executor(machine.workers, workers=1, timeout=timeout)
        result = run_campaign(
            shard.rules, executor, ledger, machine.out, worker_tree="/src", keep_going=True, shared=shared
        )
    shard.finish(shared, result.entries)
    return result


def merge(machine: Machine, stores: Sequence[KernelStore], rules: Sequence[Rule] = RULES, **how: Any) -> CampaignResult:
    return run(machine, stores, None, rules, only=True, **how)


def folder(path: Path) -> KernelStore:
    return KernelStore(path)


def test_each_cluster_is_in_one_shard_and_the_shards_have_equal_sizes() -> None:
    rules = [*RULES, make_rule("large", cluster="gfx942/a"), make_rule("larger", cluster="gfx942/a")]
    shuffled = random.Random(1).sample(rules, len(rules))
    shards = cut(rules, 2)
    assert shards == cut(shuffled, 2), "the same cut, whatever the order"
    assert set(shards) == {f"gfx942/{name}" for name in NAMES}
    assert Counter(shards[rule.cluster] for rule in rules) == {1: 6, 2: 6}


def test_more_shards_than_clusters_are_refused() -> None:
    with refused("too-many-shards") as caught:
        cut(RULES, 6)
    assert "K/5" in caught.value.fix


def test_merged_shards_equal_the_result_of_one_machine(tmp_path: Path) -> None:
    alone = Machine(tmp_path / "alone")
    run(alone, [folder(tmp_path / "of-alone")])
    stores = [folder(tmp_path / f"store-{number}") for number in (0, 1)]
    machines = [Machine(tmp_path / f"machine-{number}") for number in range(4)]
    for number, machine in enumerate(machines):
        run(machine, [stores[number % 2]], (number + 1, 4))
    tries = [name for machine in machines for name in machine.workers.tries]
    assert sorted(tries) == sorted(name for name in NAMES for _ in range(2)), "nothing twice, nothing never"

    joined = Machine(tmp_path / "joined")
    result = merge(joined, stores)
    assert joined.workers.tries == []
    assert result.counts() == {"done": 10, "failed": 0, "timed_out": 0}
    assert joined.files() == alone.files()
    assert result.about == {"triton": "0.0"}


def test_merge_names_a_missing_kernel(tmp_path: Path) -> None:
    store, machine = folder(tmp_path / "store"), Machine(tmp_path / "machine")
    for number in (1, 2):
        run(machine, [store], (number, 2))
    name = name_of(machine.naming().inputs(RULES[3]))
    (tmp_path / "store" / "results" / name[:2] / name[2:]).unlink()
    with refused("kernels-missing") as caught:
        merge(Machine(tmp_path / "joined"), [store])
    assert caught.value.why == RULES[3].out


def test_shards_of_other_inputs_are_refused(tmp_path: Path) -> None:
    store = folder(tmp_path / "store")
    run(Machine(tmp_path / "machine"), [store], (1, 2))
    other_triton = Machine(tmp_path / "other", layers=("sha256:" + "b" * 64,))
    for joined, rules in ((other_triton, RULES), (Machine(tmp_path / "joined"), RULES[:8])):
        with refused("shards-other-options"):
            merge(joined, [store], rules)


def test_kernel_that_exceeded_another_limit_in_its_shard_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged image gets the input digest of an image whose kernels had the limits of the merge."""
    only_hanging_ones_time_out(monkeypatch)
    store, rules = folder(tmp_path / "store"), [*RULES, make_rule("hangs", cluster="gfx942/e")]
    for number in (1, 2):
        run(Machine(tmp_path / f"machine-{number}"), [store], (number, 2), rules, timeout=2)
    assert merge(Machine(tmp_path / "same"), [store], rules, timeout=2).counts()["timed_out"] == 1
    with refused("shards-other-options") as caught:
        merge(Machine(tmp_path / "other"), [store], rules, timeout=3600)
    assert "hangs" in caught.value.why
    sound = folder(tmp_path / "sound")
    for number in (1, 2):
        run(Machine(tmp_path / f"sound-{number}"), [sound], (number, 2), timeout=2)
    assert len(merge(Machine(tmp_path / "joined"), [sound], timeout=3600).done) == 10, "no limit decided its content"


def test_shards_of_two_incomplete_cuts_are_refused(tmp_path: Path) -> None:
    stores = [folder(tmp_path / f"store-{number}") for number in range(2)]
    for number, store in enumerate(stores):
        run(Machine(tmp_path / f"machine-{number}"), [store], (1, 2 + number))
    with pytest.raises(ConfigError) as caught:
        merge(Machine(tmp_path / "joined"), stores)
    assert "2, 3" in caught.value.why


def test_marks_of_shards_must_be_signed_if_a_key_is_given(tmp_path: Path) -> None:
    store = folder(tmp_path / "store")
    key = PlainKey("ours")
    for number in (1, 2):
        run(Machine(tmp_path / f"machine-{number}"), [store], (number, 2), key=key)
    assert len(merge(Machine(tmp_path / "joined"), [store], key=PlainKey("ours", private=False)).done) == 10
    run(Machine(tmp_path / "reader"), [folder(tmp_path / "unsigned")], (1, 2), key=PlainKey("ours", private=False))
    (mark, *_) = (tmp_path / "store" / "notes").glob("shard-*")
    unsigned = {name: value for name, value in json.loads(mark.read_bytes()).items() if name != "sig"}
    mark.write_text(json.dumps(unsigned))
    with refused("shard-mark-invalid"):
        merge(Machine(tmp_path / "other"), [store], key=key)


def test_merge_ignores_shards_of_other_campaigns_and_cuts(tmp_path: Path) -> None:
    """The store contains unsigned shards of another campaign, and shards of an abandoned cut of this campaign."""
    store, key = folder(tmp_path / "store"), PlainKey("ours")
    run(Machine(tmp_path / "others"), [store], (1, 2), RULES[:8])
    run(Machine(tmp_path / "given-up"), [store], (1, 3), key=key)
    for number in (1, 2):
        run(Machine(tmp_path / f"machine-{number}"), [store], (number, 2), key=key)
    assert len(merge(Machine(tmp_path / "joined"), [store], key=key).done) == 10


class FullStore(KernelStore):
    """A store that accepts notes but no results."""

    def add(self, name: str, record: bytes, *, replace: bool = False) -> bool:  # noqa: ARG002
        raise ToolchainError("test-error", "the disk is full")


def test_shard_whose_results_cannot_be_stored_gets_no_mark(tmp_path: Path) -> None:
    with refused("test-error"):
        run(Machine(tmp_path / "machine"), [FullStore(tmp_path / "store")], (1, 2))
    assert folder(tmp_path / "store").notes("shard-") == {}
    run(Machine(tmp_path / "machine"), [folder(tmp_path / "store")], (1, 2))
    assert len(folder(tmp_path / "store").notes("shard-")) == 1


def test_shard_is_marked_in_another_store_only_if_its_results_are_added(tmp_path: Path) -> None:
    """The shard has nothing to compile, and results from one store are not added to another store."""
    first, second = Machine(tmp_path / "first"), Machine(tmp_path / "second")
    run(first, [folder(tmp_path / "store")], (1, 2))
    run(second, [folder(tmp_path / "store")], (1, 2))
    with refused("kernels-missing"):
        run(second, [folder(tmp_path / "other")], (1, 2))
    assert folder(tmp_path / "other").notes("shard-") == {}
    run(first, [folder(tmp_path / "other")], (1, 2))
    assert len(folder(tmp_path / "other").notes("shard-")) == 1
    assert len(first.workers.tries) == len(list((tmp_path / "other" / "results").glob("*/*")))


@pytest.mark.parametrize("words", [[], ["--shard", "1/2"]])
def test_a_shard_without_a_store_is_refused_before_anything_is_built(words: list[str], tmp_path: Path) -> None:
    environment = {"TOOLCHAIN_SHARD": "1/2", "TOOLCHAIN_CACHE": str(tmp_path / "cache")}
    done = CliRunner().invoke(app, ["kernels", "run", *words, "--json"], env=environment)
    assert done.exit_code == 3, done.output
    assert json.loads(done.stdout)["what"].startswith("--shard 1/2 needs --kernel-store")
    assert not (tmp_path / "cache").exists()
