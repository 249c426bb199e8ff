"""Make reports from the JSON that other verbs print: `kernels diff`, `kernels try` and `audit` with `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolchain.core.errors import ConfigError
from toolchain_lab.report.content import Column, Kind, Picture, Report, Section, Table, Tone
from toolchain_lab.report.kernel_tables import FACTS

_WORDS = {
    "same": "same bytes", "same_instructions": "same instructions", "changed": "changed", "only_a": "only in A",
    "only_b": "only in B", "empty_a": "empty in A", "empty_b": "empty in B",
}  # fmt: skip
_LOSS = {"only_a", "empty_b"}
_FINDINGS = ("missing", "empty", "damaged", "absent", "uneven")


def json_report(value: Any, name: str) -> Report:
    """Return the report about the JSON document of a comparison or an audit; raise ConfigError for any other document.

    Args:
        name: the name of the document's file, for the report and for error messages.
    """
    try:
        if isinstance(value, dict) and {"counts", "groups", "kernels"} <= value.keys():
            return diff_report(value, name)
        if isinstance(value, dict) and {"what", "gpus", "libraries", *_FINDINGS} <= value.keys():
            return audit_report(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unknown(name, "a value is missing, or has an unexpected type") from error
    raise _unknown(name, "it does not have the keys of either")


def _unknown(name: str, why: str) -> ConfigError:
    return ConfigError(
        "not-a-report",
        f"{name} was written neither by `kernels diff --json` nor by `audit --json`",
        why=why,
        fix="name the output of one of these, a campaign, an image, or a place with kernels",
    )


def diff_report(value: Mapping[str, Any], name: str) -> Report:
    counts, listed = value["counts"], value["kernels"]
    slower = sum(row["lost_waves"] > 0 for row in listed)
    faster = sum(row["lost_waves"] < 0 for row in listed)
    spills = sum(row["new_spills"] > 0 for row in listed)
    figures = [
        ("kernels", f"{sum(counts.values()):,}", Tone.PLAIN),
        ("fewer waves", f"{slower:,}", Tone.BAD if slower else Tone.GOOD),
        ("new spills", f"{spills:,}", Tone.BAD if spills else Tone.GOOD),
        ("more waves", f"{faster:,}", Tone.GOOD if faster else Tone.PLAIN),
    ]
    figures += [
        (_WORDS[status], f"{count:,}", Tone.BAD if status in _LOSS else Tone.PLAIN)
        for status, count in counts.items()
        if count
    ]
    same = counts["same"]
    note = f"{same:,} kernels with the same bytes are not listed." if same else ""
    sections = [
        Section(title="Kernels whose bytes differ", table=_differences(listed), note=note),
        Section(title="By kernel and GPU", table=_groups(value["groups"])),
    ]
    # The output of `kernels try --json`, which has the same form, does not contain the names of A and B.
    a, b = str(value.get("a", "A")), str(value.get("b", "B"))
    subject = f"A is {a}, B is {b}; {name}"
    return Report(
        kind="kernels, A against B", title=f"From {a} to {b}", subject=subject, figures=figures, sections=sections
    )


def _differences(listed: Any) -> Table:
    columns = [
        Column("kernel", "Kernel", Kind.CHOICE),
        Column("gpu", "GPU", Kind.CHOICE),
        Column("status", "Status", Kind.CHOICE),
        Column("lost_waves", "Waves lost", help="waves that no longer fit on a SIMD; negative if more waves fit"),
        Column("new_spills", "New spills", help="additional spilled registers"),
    ]
    for key, (label, kind, help_) in FACTS.items():
        columns += [
            Column(f"{key}_a", f"{label} A", kind, help=help_),
            Column(f"{key}_b", f"{label} B", kind, help=help_, before=f"{key}_a"),
        ]
    columns.append(Column("name", "Name", Kind.TEXT))
    rows = []
    for row in listed:
        sides = [row["before"] or {}, row["after"] or {}]
        pairs = [side.get(key) for key in FACTS for side in sides]
        rows.append(
            [row["kernel"], row["gpu"], row["status"], row["lost_waves"], row["new_spills"], *pairs, row["key"]]
        )
    pictures: list[Picture] = [
        {"kind": "cloud", "title": "A against B:", "x": "vgpr_a", "y": "vgpr_b", "split": "gpu", "diagonal": True},
        {"kind": "bars", "title": "Waves of a SIMD that were lost", "by": "lost_waves", "split": "gpu"},
        {"kind": "bars", "title": "Kernels by status", "by": "kernel", "split": "status"},
        {"kind": "spread", "title": "Spread of", "of": "new_spills", "split": "gpu", "choose": True},
    ]  # fmt: skip
    return Table(columns=columns, rows=rows, pictures=pictures)


def _groups(groups: Any) -> Table:
    columns = [Column("kernel", "Kernel", Kind.CHOICE), Column("gpu", "GPU", Kind.CHOICE)]
    columns += [Column(key, label[0].upper() + label[1:]) for key, label in _WORDS.items()]
    names = {"slower": "Fewer waves", "faster": "More waves", "spills": "New spills"}
    columns += [Column(key, label) for key, label in names.items()]
    rows = [[group["kernel"], group["gpu"], *(group[key] for key in (*_WORDS, *names))] for group in groups]
    return Table(columns=columns, rows=rows, sort="slower", descending=True)


def audit_report(value: Mapping[str, Any]) -> Report:
    rebuilt = {key: bool(equal) for key, equal in value.get("rebuilt", {}).items()}
    figures = [("GPUs", f"{len(value['gpus']):,}", Tone.PLAIN), ("kernels", f"{value['kernels']:,}", Tone.PLAIN)]
    figures += [("planned", f"{value['planned']:,}", Tone.PLAIN)] if value.get("planned") is not None else []
    figures += [(kind, f"{len(value[kind]):,}", Tone.BAD if value[kind] else Tone.GOOD) for kind in _FINDINGS]
    if rebuilt:
        good = sum(rebuilt.values())
        tone = Tone.GOOD if good == len(rebuilt) else Tone.BAD
        figures.append(("rebuilt equal", f"{good} of {len(rebuilt)}", tone))
    figures += [("glibc, or newer", str(value["glibc"]), Tone.PLAIN)] if value.get("glibc") else []
    findings = [[kind, str(text)] for kind in _FINDINGS for text in value[kind]]
    findings += [["equal" if equal else "other bytes", key] for key, equal in rebuilt.items()]
    functions = [[name, gpu, count] for gpu, counts in value["gpus"].items() for name, count in counts.items()]
    sections = []
    if functions:
        columns = [
            Column("kernel", "Function", Kind.CHOICE),
            Column("gpu", "GPU", Kind.CHOICE),
            Column("count", "Kernels"),
        ]
        pictures = [
            {"kind": "bars", "title": "Kernels by GPU", "by": "gpu", "split": "kernel", "value": "count"},
            {"kind": "bars", "title": "Kernels by function", "by": "kernel", "split": "gpu", "value": "count"},
        ]
        table = Table(columns=columns, rows=functions, sort="count", descending=True, pictures=pictures)
        sections.append(Section(title="Kernels by GPU", table=table))
    if findings:
        columns = [Column("found", "Found", Kind.CHOICE), Column("name", "What", Kind.TEXT)]
        pictures = [{"kind": "bars", "title": "What was found", "by": "found"}]
        sections.append(Section(title="Findings", table=Table(columns=columns, rows=findings, pictures=pictures)))
    if value["libraries"]:
        sections.append(Section(title="Libraries", table=_libraries(value["libraries"])))
    problems = "; ".join(value.get("problems", ())) or "nothing is missing, empty or damaged"
    return Report(kind="audit", title=str(value["what"]), subject=problems, figures=figures, sections=sections)


def _libraries(libraries: Any) -> Table:
    columns = [
        Column("path", "Library", Kind.TEXT),
        Column("glibc", "glibc", Kind.CHOICE),
        Column("llvm", "LLVM", Kind.TEXT),
        Column("targets", "Code for", Kind.TEXT),
    ]
    rows = [
        [row["path"], row.get("glibc") or "", ", ".join(row.get("llvms", ())), ", ".join(row.get("targets", ()))]
        for row in libraries
    ]
    return Table(columns=columns, rows=rows)
