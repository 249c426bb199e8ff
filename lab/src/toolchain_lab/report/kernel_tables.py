"""Make reports about compiled kernels: the outcome for each kernel of a campaign, and facts about its code object."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from toolchain.core import console
from toolchain.kernels.ledger import DONE, TIMEOUT, Entry
from toolchain_lab.examine.facts import Facts
from toolchain_lab.examine.kernels import Kernel
from toolchain_lab.report.content import Cell, Column, Kind, Picture, Report, Section, Table, Tone

# The keys are the names of a kernel's facts in filters; the values are the heading, the kind and the help text of the
# column.
FACTS = {
    "waves": ("Waves", Kind.NUMBER, "waves that fit on a SIMD, by registers and LDS"),
    "vgpr": ("VGPR", Kind.NUMBER, "vector registers of a wave, including AGPRs"),
    "agpr": ("AGPR", Kind.NUMBER, "accumulation registers of a wave"),
    "sgpr": ("SGPR", Kind.NUMBER, "scalar registers of a wave"),
    "vgpr_spills": ("VGPR spills", Kind.NUMBER, "spilled vector registers"),
    "sgpr_spills": ("SGPR spills", Kind.NUMBER, "spilled scalar registers"),
    "lds": ("LDS", Kind.NUMBER, "bytes of LDS of a workgroup"),
    "scratch": ("Scratch", Kind.NUMBER, "bytes of scratch memory of a lane"),
    "code": ("Code", Kind.BYTES, "bytes of instructions"),
}
Figures: TypeAlias = "list[tuple[str, str, Tone]]"
_LONGEST = 4000  # characters; longer reasons are truncated
_COLUMNS = (
    Column("kernel", "Kernel", Kind.CHOICE),
    Column("gpu", "GPU", Kind.CHOICE),
    Column("status", "Status", Kind.CHOICE),
    Column("seconds", "Time", Kind.SECONDS, help="wall time of the compilation"),
    *(Column(key, label, kind, help=help_) for key, (label, kind, help_) in FACTS.items()),
    Column("size", "Object", Kind.BYTES, help="bytes of the code object"),
    Column("reason", "Reason", Kind.TEXT),
    Column("message", "Message", Kind.TEXT, help="the lines of the reason, if there are several"),
    Column("name", "Name", Kind.TEXT),
)
_PICTURES: tuple[Picture, ...] = (
    {"kind": "bars", "title": "Kernels by function and GPU", "by": "kernel", "split": "gpu"},
    {"kind": "bars", "title": "Without an object, by reason", "by": "reason", "split": "gpu", "top": 8},
    {"kind": "spread", "title": "Spread of", "of": "seconds", "split": "gpu", "choose": True},
    {"kind": "bars", "title": "Waves of a SIMD", "by": "waves", "split": "gpu"},
    {"kind": "cloud", "title": "Two numbers of each kernel:", "x": "vgpr", "y": "vgpr_spills", "split": "gpu"},
)


def campaign_report(title: str, entries: Sequence[Entry], kernels: Sequence[Kernel]) -> Report:
    """Return the report about a campaign.

    Args:
        kernels: the kernels in the campaign's code objects.
    """
    figures, section = campaign_part(entries, kernels)
    subject = _gpus(entry.target for entry in entries)
    return Report(kind="campaign", title=title, subject=subject, figures=figures, sections=[section])


def campaign_part(entries: Sequence[Entry], kernels: Sequence[Kernel]) -> tuple[Figures, Section]:
    """Return figures about a campaign, and a section with a row for each entry."""
    return _campaign_figures(entries, kernels), _campaign_section(entries, kernels)


def _campaign_figures(entries: Sequence[Entry], kernels: Sequence[Kernel]) -> Figures:
    done = sum(entry.status == DONE for entry in entries)
    late = sum(entry.status == TIMEOUT for entry in entries)
    failed = len(entries) - done - late
    seconds = [entry.seconds for entry in entries]
    rows = [("kernels", f"{len(entries):,}", Tone.PLAIN), ("done", f"{done:,}", Tone.GOOD)]
    rows += [
        (name, f"{count:,}", Tone.BAD if count else Tone.PLAIN)
        for name, count in (("failed", failed), ("too slow", late))
    ]
    rows += [
        ("compiling, all together", console.duration(sum(seconds)), Tone.PLAIN),
        ("median of a kernel", f"{statistics.median(seconds):.1f} s" if seconds else "", Tone.PLAIN),
        ("objects", console.size(sum(entry.size for entry in entries)), Tone.PLAIN),
    ]
    return rows + _spilling(kernels)


def _campaign_section(entries: Sequence[Entry], kernels: Sequence[Kernel]) -> Section:
    by_digest = {kernel.sha256: kernel.facts for kernel in kernels}
    rows: list[list[Cell]] = [
        [
            entry.kernel, entry.target, entry.status, entry.seconds, *_facts_cells(by_digest.get(entry.sha256)),
            entry.size or None, *_reason(entry.reason), entry.out,
        ]
        for entry in sorted(entries, key=lambda entry: (entry.status == DONE, entry.out))
    ]  # fmt: skip
    table = Table(columns=_COLUMNS, rows=rows, sort="seconds", descending=True, pictures=_PICTURES)
    return Section(title="Kernels", table=table, note=_note(any(entry.sha256 in by_digest for entry in entries)))


def kernels_report(what: str, kernels: Sequence[Kernel]) -> Report:
    """Return the report about kernels for which there is no ledger of a campaign."""
    figures, section = kernels_part(kernels)
    subject = _gpus(kernel.gpu for kernel in kernels)
    return Report(kind="kernels", title=what, subject=subject, figures=figures, sections=[section])


def kernels_part(kernels: Sequence[Kernel]) -> tuple[Figures, Section]:
    """Return figures about kernels, and a section with a row for each kernel."""
    empty = sum(kernel.facts is None for kernel in kernels)
    figures = [("kernels", f"{len(kernels):,}", Tone.PLAIN)]
    figures += [("empty (known bad)", f"{empty:,}", Tone.BAD)] if empty else []
    rows: list[list[Cell]] = [
        [
            kernel.family, kernel.gpu, "empty" if kernel.facts is None else DONE, None, *_facts_cells(kernel.facts),
            None, "", "", kernel.key,
        ]
        for kernel in kernels
    ]  # fmt: skip
    pictures = [{**picture, "of": "vgpr"} if picture["kind"] == "spread" else picture for picture in _PICTURES]
    table = Table(columns=_COLUMNS, rows=rows, sort="waves", pictures=pictures)
    return figures + _spilling(kernels), Section(title="Kernels", table=table, note=_note(known=True))


def _facts_cells(facts: Facts | None) -> list[Cell]:
    if facts is None:
        return [None] * len(FACTS)
    there = facts.occupancy
    return [there and there.waves, *(getattr(facts, name) for name in FACTS if name != "waves")]


def _reason(text: str) -> tuple[str, str]:
    """Return the first line of a reason, and the whole reason (empty if it is one line), both truncated."""
    first = text.partition("\n")[0]
    return first[:_LONGEST], text[:_LONGEST] if text != first else ""


def _spilling(kernels: Sequence[Kernel]) -> Figures:
    known = [kernel.facts for kernel in kernels if kernel.facts is not None and kernel.facts.vgpr is not None]
    if not known:
        return []
    spilling = sum(facts.spills > 0 for facts in known)
    least = min((facts.occupancy.waves for facts in known if facts.occupancy), default=None)
    rows = [("spill registers", f"{spilling:,}", Tone.BAD if spilling else Tone.GOOD)]
    return rows + ([("fewest waves of a SIMD", str(least), Tone.PLAIN)] if least else [])


def _gpus(gpus: Iterable[str]) -> str:
    counts = Counter(gpus)
    return ", ".join(f"{gpu or 'no GPU'} {count:,}" for gpu, count in sorted(counts.items()))


def _note(known: bool) -> str:
    if known:
        return "Registers, spills, LDS, scratch and code are from the code objects; waves are computed for each GPU."
    return "Registers, spills and waves are unknown, because the code objects are not available."
