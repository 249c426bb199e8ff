"""Compute the random numbers that dropout uses: Philox 4x32-10, as in Triton's `randint4x`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEYS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = (0xD2511F53, 0xCD9E8D57)
_WORD = np.uint64(0xFFFFFFFF)


def random_words(seed: int, offsets: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return four arrays with a random `uint32` for each offset.

    Args:
        seed: an unsigned 64-bit number.
        offsets: the offsets, a `uint64` array of any shape.
    """
    offsets = np.asarray(offsets, np.uint64)
    c0, c1 = offsets & _WORD, offsets >> np.uint64(32)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        a, b = np.uint64(_ROUNDS[0]) * c0, np.uint64(_ROUNDS[1]) * c2
        c0, c2 = (b >> np.uint64(32)) ^ c1 ^ np.uint64(keys[0]), (a >> np.uint64(32)) ^ c3 ^ np.uint64(keys[1])
        c1, c3 = b & _WORD, a & _WORD
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, _KEYS, strict=True)]
    return tuple(word.astype(np.uint32) for word in (c0, c1, c2, c3))
