"""What the quickstart made: images, sizes, seconds of each stage; and the command of the full build."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.table import Table

from toolchain.core import console
from toolchain.core.cache import Cache, default_cache
from toolchain.core.check_result import describe
from toolchain.pipeline.records import records


def main(seconds: int, out: Path) -> None:
    """Print it."""
    cache = Cache(default_cache())
    table = Table(title="made")
    for column in ("stage", "image", "unpacked", "blob", "seconds", "steps"):
        table.add_column(column, overflow="fold")
    for record in records(cache):
        facts = record.facts
        steps = ", ".join(f"{name} {took:.0f}" for name, took in facts.get("seconds", {}).items())
        table.add_row(
            record.stage,
            record.image + (f"\n({record.partial})" if record.partial else ""),
            console.size(facts["unpacked_bytes"]),
            console.size(facts["blob_bytes"]),
            f"{facts['total_seconds']:.0f}",
            steps,
        )
        for row in facts.get("by_kernel", ()):
            times = f"median {row['median_seconds']} s, at most {row['max_seconds']} s"
            table.add_row("", f"  {row['kernel']} {row['gpu']}", "", f"{row['done']} objects", "", times)
    console.show(table)
    for record in records(cache):
        if numbers := record.facts.get("numbers"):
            console.text(f"numbers: {describe(numbers)}")
            for row in numbers["groups"]:
                of_all = sum(row[name] for name in ("right", "wrong", "skipped", "refused"))
                console.text(
                    f"  {row['gpu']:<8} {row['kernel']:<28} {row['right']:>2} of {of_all} right, largest error"
                    f" {row['share']:.0%} of the tolerance"
                )
    console.text(f"published to oci:{out}; this run took {console.duration(seconds)}")
    for line in (
        "FlashAttention's modules import torch; a stand-in that only satisfies the import was used.",
        "The full build (hours on two cores):",
        "  toolchain build llvm --source llvm=distro:llvm-toolchain-22",
        "  toolchain publish REGISTRY/NS llvm-triton-22.1.8",
    ):
        console.text(line)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
