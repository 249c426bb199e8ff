"""Lay out compiled kernels for upstream's build or packers, and load built libraries.

The library of an AOTriton release before 0.8 contains the kernels; releases since 0.8 have image packs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.core.digest import write_atomically
from toolchain.core.errors import ContractError
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import Mount, Runner
from toolchain.kernels.aotriton_plan import BarePlan
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import reproducible
from toolchain.stages.hip import PLACE
from toolchain.stages.stage import Built, Workspace
from toolchain.stages.wheels import place

# This is the path, below the prefix, of the list of the kernels that the library contains or lacks.
LEDGER = "share/aotriton/__ledger__"
# The library's build takes the kernels from the folder with this name in the campaign's folder.
OBJECTS = "objects"


def lay_objects(plan: BarePlan, result: CampaignResult, build: Path, into: Path) -> None:
    """Write code objects with their JSON for the plan's rules and their copies, in the layout of the library's build.

    An object that was not requested or did not compile becomes an empty file, which the library treats as missing.

    Args:
        build: the folder with the campaign's objects.
        into: the folder to write to, which is emptied first.
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
            # Upstream takes a function's name from the kernel's first object, which may be empty, so the status of an
            # empty object must be "Complete" too.
            metadata = {
                "compile_status": "Complete", "name": rule.kernel, "shared": 0, "num_warps": rule.num_warps,
                "num_stages": rule.num_stages, "warp_size": wide,
            }  # fmt: skip
            target.with_suffix(".json").write_text(json.dumps(metadata), encoding="utf-8")


def lay_copies(plan: BarePlan, result: CampaignResult, build: Path) -> dict[str, str]:
    """Write the objects that the plan lists as copies of other objects, each with its JSON.

    If an object does not exist, its copies are not written.

    Returns:
        the SHA-256 (64 hex digits) of each compiled object, copies included, by its path below `build`.
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
    """Write the list of the kernels that the library contains or lacks to `LEDGER` below the prefix.

    Args:
        facts: the other values in the JSON object that contains the list.
    """
    path = tree / prefix.lstrip("/") / LEDGER
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**facts, "kernels": reproducible(result.entries)})


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def loaded(runner: Runner, image: str, libraries: Mapping[str, str], workspace: Workspace, hip: Built | None) -> None:
    """Load each library in a container and bind all its symbols; raise ContractError if a library does not load.

    Args:
        libraries: the path of each library in the image, by the ROCm that it is linked for. The key is empty for a
            library that is linked with the base's HIP.
        hip: the finished HIP stage; None if the library is linked with the base's HIP.
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
