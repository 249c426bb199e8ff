"""Lay out the kernels of old AOTritons (before 0.10), whose library contains its kernels."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.core.digest import write_atomically
from toolchain.core.errors import ContractError
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import Mount, Runner
from toolchain.kernels.aotriton_plan import BarePlan
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import Entry, reproducible
from toolchain.stages.hip import PLACE
from toolchain.stages.stage import Built, Workspace
from toolchain.stages.wheels import place

# The file below the prefix that lists the kernels that the library contains and lacks.
LEDGER = "share/aotriton/__ledger__"
# The folder of the kernels for the library's build, next to the campaign's objects.
OBJECTS = "objects"


def lay_objects(plan: BarePlan, result: CampaignResult, build: Path, into: Path) -> None:
    """Write a code object and its JSON for each line of the plan, in the layout that the library's build reads.

    An object that was not requested or did not compile becomes an empty file, which the library treats as missing.
    """
    emptied(into)
    good = result.objects
    for rule in plan.rules:
        for out in (rule.out, *plan.copies.get(rule.out, ())):
            target = into / out
            target.parent.mkdir(parents=True, exist_ok=True)
            if rule.out in good:
                place(build / rule.out, target)
                place((build / rule.out).with_suffix(".json"), target.with_suffix(".json"))
                continue
            target.write_bytes(b"")
            wide = 32 if int(rule.target[3:-2]) >= 10 else 64
            # The status is "Complete", because upstream takes the function's name from a kernel's first object.
            metadata = {
                "compile_status": "Complete", "name": rule.kernel, "shared": 0, "num_warps": rule.num_warps,
                "num_stages": rule.num_stages, "warp_size": wide,
            }  # fmt: skip
            target.with_suffix(".json").write_text(json.dumps(metadata), encoding="utf-8")


def lay_copies(plan: BarePlan, result: CampaignResult, build: Path) -> dict[str, str]:
    """Write each copy of the plan's objects, and its JSON.

    Returns:
        SHA-256 (64 hex digits) of all compiled objects, including copies, by path below `build`.
    """
    good = result.objects
    for out, copies in plan.copies.items():
        for path, copy in ((build / out, build / more) for more in copies if (build / out).is_file()):
            for suffix in (path.suffix, ".json"):
                copy.with_suffix(suffix).unlink(missing_ok=True)
                place(path.with_suffix(suffix), copy.with_suffix(suffix))
        good |= dict.fromkeys(copies, good[out]) if out in good else {}
    return good


def lay_ledger(tree: Path, prefix: str, result: CampaignResult, facts: Mapping[str, Any]) -> None:
    """Write the list of the library's kernels next to the library."""
    path = tree / prefix.lstrip("/") / LEDGER
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**facts, "kernels": ledger_rows(result.entries)})


def ledger_rows(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return the rows of an image's list of kernels.

    Only the first line of a reason is used, because other lines may contain addresses."""
    return [{**row, "reason": row["reason"].partition("\n")[0]} for row in reproducible(entries)]


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def loaded(runner: Runner, image: str, libraries: Mapping[str, str], workspace: Workspace, hip: Built | None) -> None:
    """Load each library with all its symbols bound; raise ContractError if a library does not load.

    Args:
        libraries: the path of each library in the image, by ROCm; the key of a library for the base's HIP is empty.
    """
    mounts = [Mount(workspace.unpack(hip) / PLACE.lstrip("/"), PLACE)] if hip is not None else []
    for rocm, library in libraries.items():
        environment = {"LD_LIBRARY_PATH": f"{PLACE}/rocm{rocm}/lib"} if rocm else {}
        command: Sequence[str] = ["python3", "-c", f"import ctypes; ctypes.CDLL({library!r}, mode={os.RTLD_NOW})"]
        done = runner.run(image, command, mounts=mounts, env=environment, log=workspace.log, capture=True, check=False)
        if done.returncode != 0:
            raise ContractError(
                "library-not-loadable",
                f"AOTriton's library{f' for ROCm {rocm}' if rocm else ''} does not load",
                why="\n".join((done.stdout or "").strip().splitlines()[-5:]),
                fix=f"see the log: {workspace.log}",
            )
