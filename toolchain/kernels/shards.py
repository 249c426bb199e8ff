"""Cut a campaign into shards: each machine compiles one shard, and one machine joins the results.

The shard of a kernel depends only on the rules and the number of shards, so all machines compute the same shards.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toolchain.core import strict_json
from toolchain.core.digest import canonical, sha256_json
from toolchain.core.errors import ConfigError, KernelError
from toolchain.core.typed import TypedError, typed
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, Entry
from toolchain.kernels.result_store import DamagedError, KernelStore, UnsignedError, opened, sealed
from toolchain.kernels.rules import Rule, RuleSet
from toolchain.kernels.shared import SharedResults

_WORDS = {
    "rules": "the kernels, or the options that select them",
    "triton": "the Triton image",
    "recipe": "the version of the worker",
    "environment": "the environment of the workers",
    "names": "the kernel sources",
}
_MOST_SHARDS = 99_999  # the maximum number of shards that `--shard` accepts


def cut(rules: Iterable[Rule], count: int) -> dict[str, int]:
    """Return the number of each cluster's shard, from 1 to `count`, by the cluster's name.

    Each cluster, beginning with the largest, is put into the shard that has the fewest kernels at that point.
    ConfigError is raised if there are fewer clusters than shards.
    """
    clusters = Counter(rule.cluster for rule in rules)
    if count > len(clusters):
        raise ConfigError(
            "too-many-shards",
            f"{len(clusters)} clusters of kernels cannot be cut into {count} shards",
            why="a cluster, whose kernels are packed into one file, is never split",
            fix=f"use --shard K/{len(clusters)}, or fewer shards",
        )
    loads = [(0, number) for number in range(1, count + 1)]
    shards = {}
    for name in sorted(clusters, key=lambda name: (-clusters[name], name)):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + clusters[name], number))
        shards[name] = number
    return shards


@dataclass(frozen=True)
class Shard:
    """A shard of a campaign, or the whole campaign.

    Args:
        identity: the properties that all shards of one campaign share.
        part: the number of this shard, and how many shards there are; None for the whole campaign.
        limits: the limits of kernels that are inputs of the image, by name.
    """

    rules: RuleSet
    identity: Mapping[str, Any]
    part: tuple[int, int] | None
    limits: Mapping[str, float] = field(default_factory=dict)

    def finish(self, shared: SharedResults | None, entries: Sequence[Entry]) -> None:
        """Mark the shard as finished in the first store. The mark lists the kernels that do not compile.

        Nothing is written for a whole campaign, or without a store. ToolchainError is raised if the store lacks a
        result, or if the mark cannot be written to it.
        """
        if self.part is None or shared is None:
            return
        if shared.failure is not None:
            raise shared.failure
        done = {entry.id for entry in entries if entry.status == DONE}
        # The store may lack results of an earlier run that are not added again, such as those from another store.
        if lacking := shared.lacking([rule for rule in self.rules.rules if rule.id in done]):
            raise KernelError(
                "kernels-missing",
                f"{len(lacking)} of {len(done)} compiled kernels are not in {shared.stores[0].root}",
                why=f"another store had them in an earlier run, or other workers compiled them: {lacking[0].out}",
                fix="remove the unfinished campaign (`toolchain cache prune --unfinished`), and run the command again",
            )
        number, count = self.part
        mark = {
            **self.identity,
            "shard": number,
            "of": count,
            "kernels": len(self.rules.rules),
            "limits": dict(self.limits),
            "bad": [asdict(entry) for entry in entries if entry.status != DONE],
        }
        shared.stores[0].note(f"shard-{_short(self.identity)}-{number}-of-{count}", sealed(canonical(mark), shared.key))


def _short(identity: Mapping[str, Any]) -> str:
    return sha256_json(dict(identity)).removeprefix("sha256:")[:12]


def _identity(rules: RuleSet, shared: SharedResults) -> dict[str, Any]:
    about = shared.naming.shared
    return {
        "rules": rules.digest,
        **{name: sha256_json(about[name]) for name in ("triton", "recipe", "environment")},
        "names": sha256_json([shared.name(rule) for rule in rules.rules]),
    }


def without_store(part: tuple[int, int]) -> ConfigError:
    """Return the error for the option `--shard` without `--kernel-store`."""
    return ConfigError(
        "option-needs-option",
        f"--shard {part[0]}/{part[1]} needs --kernel-store",
        why="`kernels merge` reads the results of a shard from its store",
        fix="name a folder that `kernels merge` can read, or that you copy to its machine",
    )


def shard_of(
    rules: RuleSet, part: tuple[int, int] | None, shared: SharedResults | None, limits: Mapping[str, float]
) -> Shard:
    """Return the shard that this machine must compile, or the whole campaign.

    If `shared.only` is set, nothing is compiled. The stores must then contain all shards of the campaign, and
    `shared.failures` is set to the entries of the kernels that do not compile.

    Args:
        part: the number of this shard and the total number of shards; None for all rules.
        shared: the kernel stores, which a shard needs; None if there are none.
        limits: the limits of kernels that are inputs of the image, by name.

    Raises:
        ConfigError: there are fewer clusters than shards, `part` is given without stores, a store contains no shard of
            this campaign or an invalid mark of one, a kernel exceeded other limits in its shard, or the stores contain
            only incomplete campaigns, which were cut into different numbers of shards.
        KernelError: shards are missing.
    """
    if shared is not None and shared.only:
        identity = _identity(rules, shared)
        shared.failures = _joined(shared, identity, rules, limits)
        return Shard(rules, identity, None)
    if part is None:
        return Shard(rules, {}, None)
    if shared is None:
        raise without_store(part)
    numbers = cut(rules.rules, part[1])
    inside = tuple(rule for rule in rules.rules if numbers[rule.cluster] == part[0])
    return Shard(RuleSet(inside, rules.total), _identity(rules, shared), part, limits)


def _joined(
    shared: SharedResults, identity: Mapping[str, Any], rules: RuleSet, limits: Mapping[str, float]
) -> dict[str, Entry]:
    """Return the entries of kernels that do not compile, by the rule's id; raise the errors of `shard_of`."""
    by_count: dict[int, dict[int, Mapping[str, Any]]] = {}
    for store in shared.stores:
        marks = _marks(store, shared, identity)
        own = [mark for mark in marks if _unlike(mark, identity) == []]
        if not own:
            raise _no_shard(store, marks, identity)
        for mark in own:
            by_count.setdefault(mark["of"], {})[mark["shard"]] = mark
    # The stores may also contain marks from an earlier attempt with a different number of shards.
    complete = [count for count, by_number in by_count.items() if len(by_number) == count]
    if len(by_count) > 1 and not complete:
        raise ConfigError(
            "shards-incomplete",
            "the stores contain no complete campaign",
            why=f"they contain shards of campaigns that were cut into {', '.join(map(str, sorted(by_count)))} shards",
            fix="run the missing shards of one of these campaigns",
        )
    count = next(iter((*complete, *by_count)))
    by_number = by_count[count]
    if missing := [f"{number}/{count}" for number in range(1, count + 1) if number not in by_number]:
        raise KernelError(
            "shards-missing",
            f"{len(missing)} of {count} shards are missing: {', '.join(missing)}",
            why=f"{', '.join(str(store.root) for store in shared.stores)} contain the others",
            fix="run them, or name the stores that they wrote to",
        )
    ids = {rule.id for rule in rules.rules}
    bad = [(mark, entry) for mark in by_number.values() for entry in _bad(mark) if entry.id in ids]
    for mark, entry in bad:
        # The image would get the same input digest as one whose kernels had the limits of the merge.
        if (entry.status == TIMEOUT or entry.over_memory) and mark.get("limits", limits) != limits:
            raise _other_limits(mark, entry)
    return {entry.id: entry for _, entry in bad}


def _other_limits(mark: Mapping[str, Any], entry: Entry) -> ConfigError:
    return ConfigError(
        "shards-other-options",
        f"shard {mark['shard']}/{mark['of']} had other limits than this merge, and a kernel exceeded them",
        why=f"{entry.out}: {entry.reason.partition(chr(10))[0]}",
        fix="give the options --kernel-timeout and --kernel-memory of the shard, or run it again with those given here",
    )


def _marks(store: KernelStore, shared: SharedResults, identity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the marks in a store; raise ConfigError if one of this campaign is invalid.

    Invalid marks of other campaigns are skipped, because another key may have signed them.
    """
    marks = []
    for name, content in store.notes("shard-").items():
        try:
            mark = strict_json.read(opened(content, shared.key))
            if not (isinstance(mark["shard"], int) and isinstance(mark["of"], int)):
                raise DamagedError("it does not name a shard")
            if not 1 <= mark["shard"] <= mark["of"] <= _MOST_SHARDS:
                raise DamagedError(f"there is no shard {mark['shard']} of {mark['of']}")
        except (DamagedError, UnsignedError, ValueError, KeyError, TypeError) as error:
            if not name.startswith(f"shard-{_short(identity)}-"):
                continue
            known = isinstance(error, DamagedError | UnsignedError)
            raise ConfigError(
                "shard-mark-invalid",
                f"the mark {name} of a finished shard in {store.root} is invalid",
                why=str(error) if known else "its content does not have the expected form",
                fix="run that shard again",
            ) from error
        marks.append(mark)
    return marks


def _bad(mark: Mapping[str, Any]) -> list[Entry]:
    try:
        rows = [typed(Entry, {**row, "bitcode": ()}) for row in mark["bad"]]
    except (KeyError, TypeError, TypedError) as error:
        raise ConfigError(
            "shard-mark-invalid",
            "the mark of a shard is malformed",
            why="its list of failed kernels does not have the expected form",
            fix="run that shard again",
        ) from error
    return [entry for entry in rows if entry.status in {FAILED, TIMEOUT}]


def _unlike(mark: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    return [name for name in identity if mark.get(name) != identity[name]]


def _no_shard(store: KernelStore, marks: Sequence[Mapping[str, Any]], identity: Mapping[str, Any]) -> ConfigError:
    what = f"{store.root} contains no shard of this campaign"
    if not marks:
        fix = "wait for its shards, or name the right store"
        return ConfigError("shards-incomplete", what, why="no shard in it is finished", fix=fix)
    nearest = min((_unlike(mark, identity) for mark in marks), key=len)
    why = "its shards differ from this campaign in " + ", ".join(_WORDS[name] for name in nearest)
    return ConfigError("shards-other-options", what, why=why, fix="give the options that the shards were given")
