"""Read the output of `build --json`, and print what the quickstart built and the commands for the full build."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from toolchain.cli.listing import Listing
from toolchain.core import console
from toolchain.core.check_result import describe


def main(seconds: int, out: Path) -> None:
    stages = json.load(sys.stdin)["stages"]
    columns = ("stage", "image", "unpacked", "seconds")
    rows = [
        [
            stage["name"],
            stage["image"],
            console.size(stage["facts"]["unpacked_bytes"]),
            f"{stage['facts']['total_seconds']:.0f}",
        ]
        for stage in stages
    ]
    console.show(Listing(columns=columns, rows=rows, head=columns, right=columns[2:]))
    for stage in stages:
        if numbers := stage["facts"].get("numbers"):
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
        "The full build (45 min to 2.5 h on two cores):",
        "  toolchain build llvm --source llvm=distro:llvm-toolchain-22",
        "  toolchain publish REGISTRY/NS llvm-triton-22.1.8",
    ):
        console.text(line)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
