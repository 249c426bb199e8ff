"""Compare two collections of compiled kernels, and list the differences, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolchain.core.errors import ConfigError
from toolchain_lab.examine.facts import Facts
from toolchain_lab.examine.kernels import Kernel, size

SAME, INSTRUCTIONS, CHANGED = "same", "same_instructions", "changed"
ONLY_A, ONLY_B, EMPTY_A, EMPTY_B = "only_a", "only_b", "empty_a", "empty_b"
STATUSES = (SAME, INSTRUCTIONS, CHANGED, ONLY_A, ONLY_B, EMPTY_A, EMPTY_B)
NUMBERS = ("vgpr", "agpr", "sgpr", "vgpr_spills", "sgpr_spills", "lds", "scratch", "code")
CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "spills": lambda row: row.new_spills > 0,
    "occupancy": lambda row: row.lost_waves > 0,
    "missing": lambda row: row.status in {ONLY_A, EMPTY_B},
    "changed": lambda row: row.status == CHANGED,
}

_MOST_TRIED = 200_000  # pairs; they take about a second


@dataclass(frozen=True)
class Row:
    """A kernel in A, in B or in both.

    Args:
        before, after: the facts about the kernel in A and in B; None if the kernel is missing there, or if it is empty,
            which AOTriton treats as known bad.
        files: the digests of the code objects in A and B; only one if the kernel is missing from A or B.
    """

    key: str
    gpu: str
    kernel: str
    status: str
    before: Facts | None
    after: Facts | None
    files: tuple[str, ...] = ()

    @property
    def lost_waves(self) -> int:
        """The number of waves by which the occupancy is lower in B than in A; negative if higher, 0 if unknown."""
        before, after = (side and side.occupancy for side in (self.before, self.after))
        return before.waves - after.waves if before and after else 0

    @property
    def new_spills(self) -> int:
        """The number of additional spilled registers in B; for PTX, the number of additional bytes of local memory.

        It is negative if B has fewer, and 0 if the facts are not known for both A and B.
        """
        if self.before is None or self.after is None:
            return 0
        if self.after.vgpr is None:
            return (self.after.scratch or 0) - (self.before.scratch or 0)
        return self.after.spills - self.before.spills

    def changes(self) -> dict[str, tuple[int, int]]:
        """Return those of the numbers in `NUMBERS` and `waves` that differ, as (before, after), by name."""
        if self.before is None or self.after is None:
            return {}
        rows = {name: (getattr(self.before, name), getattr(self.after, name)) for name in NUMBERS}
        if self.before.occupancy and self.after.occupancy:
            rows["waves"] = (self.before.occupancy.waves, self.after.occupancy.waves)
        return {name: pair for name, pair in rows.items() if None not in pair and pair[0] != pair[1]}

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "gpu": self.gpu,
            "kernel": self.kernel,
            "status": self.status,
            "lost_waves": self.lost_waves,
            "new_spills": self.new_spills,
            "before": self.before and self.before.as_json(),
            "after": self.after and self.after.as_json(),
        }


@dataclass(frozen=True)
class Difference:
    """The kernels of A and B, as rows in the order of `ranked`."""

    rows: tuple[Row, ...]

    def counts(self) -> dict[str, int]:
        counted = Counter(row.status for row in self.rows)
        return {status: counted[status] for status in STATUSES}

    def groups(self) -> list[dict[str, Any]]:
        """Return a row for each GPU and function, with its kernels counted by status, occupancy and new spills."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.gpu, row.kernel), []).append(row)
        return [
            {
                "gpu": gpu,
                "kernel": kernel,
                **{status: sum(row.status == status for row in rows) for status in STATUSES},
                "slower": sum(row.lost_waves > 0 for row in rows),
                "faster": sum(row.lost_waves < 0 for row in rows),
                "spills": sum(row.new_spills > 0 for row in rows),
            }
            for (gpu, kernel), rows in sorted(groups.items())
        ]

    def failing(self, condition: str) -> list[Row]:
        """Return the rows for which the named condition in `CONDITIONS` holds."""
        return [row for row in self.rows if CONDITIONS[condition](row)]

    def as_json(self) -> dict[str, Any]:
        """Return the difference in the form of `kernels diff --json`, without the keys `a` and `b`.

        Kernels with the same bytes in A and B are only counted.
        """
        listed = [row.as_json() for row in self.rows if row.status != SAME]
        return {"counts": self.counts(), "groups": self.groups(), "kernels": listed}


def ranked(rows: Iterable[Row]) -> Difference:
    """Sort rows, worst first, and return them as a difference.

    The rows are sorted by lost waves, new spills, gained waves, status, and the growth of scratch memory, vector
    registers and code. Rows that are equal in all of these are sorted by key.
    """
    return Difference(tuple(sorted(rows, key=_rank)))


def compare(a: Sequence[Kernel], b: Sequence[Kernel]) -> Difference:
    """Compare the kernels of A and B, and return the differences.

    Kernels are paired by key; several with the same key, such as the variants of a function in Triton's cache, by
    content and size. If A and B have no key in common, kernels are paired by the digest of their compilation inputs.
    ConfigError is raised if there are no pairs.
    """
    for by_launch in (False, True):
        before, after = _named(a, by_launch=by_launch), _named(b, by_launch=by_launch)
        if before.keys() & after.keys():
            names = before.keys() | after.keys()
            return ranked(row for name in names for row in _rows(before.get(name, []), after.get(name, [])))
    raise ConfigError(
        "nothing-in-common",
        "A and B have no kernel in common",
        why=f"the first kernel is {a[0].key} in A, and {b[0].key} in B",
        fix="compare two campaigns of the same kernels and GPUs",
    )


def _named(kernels: Sequence[Kernel], *, by_launch: bool) -> dict[str, list[Kernel]]:
    named: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        named.setdefault((by_launch and kernel.launch) or kernel.alike or kernel.key, []).append(kernel)
    return named


def _rows(a: Sequence[Kernel], b: Sequence[Kernel]) -> Iterator[Row]:
    """Yield the rows of kernels with the same key, of which A and B may have different numbers."""
    pairs = _paired(a, b)
    paired = {id(kernel) for pair in pairs for kernel in pair}
    # The key of a kernel in B may be the key of another kernel in A.
    yield from (_row(one, replace(other, key=one.key)) for one, other in pairs)
    yield from (_row(kernel, None) for kernel in a if id(kernel) not in paired)
    for number, kernel in enumerate((kernel for kernel in b if id(kernel) not in paired), len(a) + 1):
        yield _row(None, replace(kernel, key=f"{kernel.alike or kernel.key}~{number}") if a else kernel)


def _paired(a: Sequence[Kernel], b: Sequence[Kernel]) -> list[tuple[Kernel, Kernel]]:
    """Pair as many kernels as possible: those with equal bytes, then those with equal code, then the others by size."""
    pairs: list[tuple[Kernel, Kernel]] = []
    left, right = sorted(a, key=size), sorted(b, key=size)
    for identity in (_bytes, _code):
        there: dict[str, list[Kernel]] = {}
        for kernel in reversed(right):
            there.setdefault(identity(kernel), []).append(kernel)
        equal = [(kernel, there[identity(kernel)].pop()) for kernel in left if there.get(identity(kernel))]
        paired = {id(kernel) for pair in equal for kernel in pair}
        left, right = ([kernel for kernel in side if id(kernel) not in paired] for side in (left, right))
        pairs += equal
    if len(left) <= len(right):
        return [*pairs, *zip(left, _nearest(left, right), strict=True)]
    return [*pairs, *zip(_nearest(right, left), right, strict=True)]


def _bytes(kernel: Kernel) -> str:
    return kernel.sha256


def _code(kernel: Kernel) -> str:
    return kernel.facts.digest if kernel.facts is not None else ""


def _nearest(few: Sequence[Kernel], many: Sequence[Kernel]) -> list[Kernel]:
    """Return a kernel in `many` for each one in `few`, in the same order, with the least sum of distances.

    Both are sorted by size. The first kernels are returned if there are too many possibilities to try.
    """
    skipped = range(len(many) - len(few) + 1)
    if not few or len(few) * len(skipped) > _MOST_TRIED:
        return list(many[: len(few)])
    sums, ways = [0.0 for _ in skipped], list[list[int]]()
    for at, kernel in enumerate(few):
        best, least = 0, list[int]()  # how many kernels to skip before this one, if it is at most so many
        for skip in skipped:
            best = skip if sums[skip] < sums[best] else best
            least.append(best)
        ways.append(least)
        sums = [sums[least[skip]] + _distance(kernel, many[at + skip]) for skip in skipped]
    skip, chosen = min(skipped, key=lambda skip: sums[skip]), list[Kernel]()
    for at in reversed(range(len(few))):
        chosen.append(many[at + skip])
        skip = ways[at][skip]
    return chosen[::-1]


def _distance(a: Kernel, b: Kernel) -> float:
    """Return the sum of the relative differences of code size and LDS, plus 1 if only one kernel uses XNACK.

    LDS has the same weight as code, because both follow from the block sizes. The distance to an empty kernel is 3.
    """
    if a.facts is None or b.facts is None:
        return 3.0 if a.facts is not b.facts else 0.0
    sizes = (a.facts.code, b.facts.code), (a.facts.lds or 0, b.facts.lds or 0)
    return sum(abs(one - other) / max(one, other, 1) for one, other in sizes) + (a.facts.xnack is not b.facts.xnack)


def _row(a: Kernel | None, b: Kernel | None) -> Row:
    named = a if a is not None and (a.facts is not None or b is None) else b
    assert named is not None  # noqa: S101 - each key comes from A or B
    before = a.facts if a is not None else None
    after = b.facts if b is not None else None
    if a is None or b is None:
        status = ONLY_A if b is None else ONLY_B
    elif a.sha256 == b.sha256:
        status = SAME
    elif before is None or after is None:
        status = EMPTY_A if before is None else EMPTY_B
    else:
        status = INSTRUCTIONS if before.digest == after.digest else CHANGED
    files = tuple(kernel.sha256 for kernel in (a, b) if kernel is not None)
    return Row(named.key, named.gpu, named.family, status, before, after, files)


def _rank(row: Row) -> tuple[Any, ...]:
    order = (CHANGED, EMPTY_B, ONLY_A, EMPTY_A, ONLY_B, INSTRUCTIONS, SAME).index(row.status)
    more = [
        after - before for name in ("scratch", "vgpr", "code") for before, after in [row.changes().get(name, (0, 0))]
    ]
    # New spills rank before gained waves, because a lower limit on registers can cause both.
    lost = row.lost_waves
    return (-max(lost, 0), -row.new_spills, -lost, order, *(-number for number in more), row.key)


def change_texts(row: Row) -> Iterator[str]:
    """Yield the changes to a kernel as strings for display, such as `waves 5 -> 3`."""
    names = {"vgpr_spills": "VGPR spills", "sgpr_spills": "SGPR spills", "lds": "LDS"}
    first = ("waves", "vgpr_spills", "sgpr_spills")
    changes = row.changes()
    for name in (*first, *(name for name in changes if name not in first)):
        if name in changes:
            before, after = changes[name]
            label = names.get(name, name.upper() if name.endswith("gpr") else name)
            yield f"{label} {before} -> {after}"
