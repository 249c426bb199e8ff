"""Find out from the logs how many steps of a stage's unfinished build are finished."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolchain.core.cache import Cache
from toolchain.stages.stage import Planned

_STEP = re.compile(rb"@step (\S*)")
_COUNT = re.compile(rb"@ninja (\d{1,7})/(\d{1,7}) ")


@dataclass(frozen=True)
class Unfinished:
    """The progress of an unfinished build, which a later build can continue in the same tree.

    Args:
        done: the number of finished steps of ninja.
        total: the number of all steps of ninja.
    """

    done: int
    total: int

    @property
    def left(self) -> float:
        """The fraction of the steps that are not finished."""
        return 1 - self.done / self.total


def unfinished(cache: Cache, planned: Planned) -> Unfinished | None:
    """Return the progress of a stage's unfinished build.

    Return None if there is no log or no tree of such a build, if the tree cannot be looked up, or if none or all of the
    steps are finished.
    Each run of ninja counts only the remaining steps, so the largest total in the logs is that of the whole build.
    """
    key = planned.tree_key
    logs = sorted(cache.logs.glob(f"{planned.name}-{key}-*.log"))
    if not logs:
        return None
    from toolchain.engine.storage import cache_mounts  # noqa: PLC0415 - most stages have no log

    try:
        trees = cache_mounts(cache, f"toolchain-{planned.name}-tree-{key}")
    except PermissionError:  # outside of the namespace of builds, an ordinary user may not enter the folder of trees
        trees = []
    if not trees:
        return None
    total, left = 0, 0
    for log in logs:
        step = b""
        with log.open("rb") as lines:
            for line in lines:
                if match := _STEP.match(line):
                    step = match[1]
                elif step == b"compile" and (match := _COUNT.match(line)):
                    total = max(total, int(match[2]))
                    left = max(int(match[2]) - int(match[1]), 0)
    return Unfinished(total - left, total) if 0 < left < total else None
