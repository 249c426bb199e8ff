"""Draw random samples of code objects."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from toolchain.core.check_result import Object

SUFFIX = ".hsaco"


def sample(objects: Sequence[Object], count: int | None, seed: int) -> list[Object]:
    """Return a random sample of code objects, in their original order; None for `count` returns all of them.

    An object is drawn from each pair of GPU and function before a second one is drawn from any pair, and so on. So a
    small sample covers as many pairs as possible.
    """
    if count is None or count >= len(objects):
        return list(objects)
    draw = random.Random(seed)  # noqa: S311 - the sample must be reproducible
    queues: dict[tuple[str, str], list[Object]] = {}
    for each in objects:
        queues.setdefault((each.gpu, each.kernel), []).append(each)
    for queue in queues.values():
        draw.shuffle(queue)
    chosen: set[Path] = set()
    while len(chosen) < count:
        for queue in queues.values():
            if queue and len(chosen) < count:
                chosen.add(queue.pop().path)
    return [each for each in objects if each.path in chosen]
