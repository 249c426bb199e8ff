"""Detection of memory accesses whose result depends on the order in which the waves of a workgroup run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolchain_lab.emulator.bits import WORD, Array
from toolchain_lab.emulator.memory import Views

# An access consists of byte offsets, the number of bytes at each offset, and the indices of the waves that access the
# offsets. If there is only one index, that wave accesses all offsets.
Access = tuple[Array, int, Array]
_NOBODY, _SEVERAL = 255, 254
_STEPS = np.arange(64)
# If more accesses than this are recorded, the waves run one after the other, because the records of a long loop without
# a barrier could exhaust the memory.
_MOST = 20_000


class ApartError(Exception):
    """The waves of a workgroup cannot run together, so they must run one after the other."""


class Accesses:
    """The accesses to global memory or to LDS since the last barrier.

    Args:
        undo: whether to keep the values that are overwritten, so that `restore` can write them back.
    """

    def __init__(self, views: Views, *, undo: bool) -> None:
        self._views = views
        self._undo: list[tuple[Array, int, Array]] | None = [] if undo else None
        self._loads: list[Access] = []
        self._stores: list[Access] = []
        self._values: list[Array | None] = []

    @property
    def too_many(self) -> bool:
        return len(self._loads) + len(self._stores) > _MOST

    def load(self, place: Array, size: int, owners: Array) -> None:
        """Record a load; the arguments are the parts of an `Access`."""
        self._loads.append((place, size, owners))

    def load_for_all(self, place: int, size: int, waves: Array) -> None:
        """Record a scalar load that one or more waves execute at the same offset."""
        self._loads.append((np.full(len(waves), place), size, waves))

    def store(self, place: Array, size: int, owners: Array, values: Array) -> None:
        """Record a store before it is executed; `values` are `uint32[words, lanes]`."""
        self._write(place, size, owners, values.copy())

    def change(self, place: Array, size: int, owners: Array) -> None:
        """Record an atomic access before it is executed."""
        self.load(place, size, owners)
        self._write(place, size, owners, None)

    def _write(self, place: Array, size: int, owners: Array, values: Array | None) -> None:
        if not len(place):
            return
        self._stores.append((place, size, owners))
        self._values.append(values)
        if self._undo is not None:
            self._undo.append((place, size, self._views.load(place, size)))

    def meet(self) -> bool:
        """Return whether the results of the accesses may depend on the order of the waves, and forget the accesses.

        The results may depend on the order if one wave wrote to a unit of two bytes that another wave accessed, unless
        the waves only stored to the unit and memory still holds all stored values.
        """
        stores, values, loads = self._stores, self._values, self._loads
        self._loads, self._stores, self._values = [], [], []
        if not stores:
            return False
        places, owners = _units(stores)
        low, high = int(places.min()), int(places.max()) + 1
        owner_of: Array = np.full(high - low, _NOBODY, np.uint8)
        owner_of[places - low] = owners
        several = owner_of[places - low] != owners
        if np.count_nonzero(several):
            owner_of[places[several] - low] = _SEVERAL
            shared = owner_of == _SEVERAL
            if not all(self._is_there(*each, shared, low) for each in zip(stores, values, strict=True)):
                return True
        loads = [each for each in loads if len(each[0])]
        if not loads:
            return False
        places, owners = _units(loads)
        inside = (places >= low) & (places < high)
        writers = owner_of[places[inside] - low]
        return bool(np.count_nonzero((writers != _NOBODY) & (writers != owners[inside])))

    def _is_there(self, store: Access, values: Array | None, shared: Array, low: int) -> bool:
        """Return whether memory still holds the values that a store wrote in the lanes that touch a shared unit.

        Args:
            values: the stored values; None for an atomic access, for which the result is false if it touches a shared
                unit.
            shared: for each unit from `low` on, whether several waves wrote to it.
        """
        place, size, _ = store
        units, _ = _units([store])
        lanes = shared[units - low].reshape(len(place), -1).any(axis=1)
        if not np.count_nonzero(lanes) or values is None:
            return not np.count_nonzero(lanes)
        kept = np.uint32((1 << 8 * size) - 1 if size < 4 else WORD)
        return np.array_equal(self._views.load(place[lanes], size), values[:, lanes] & kept)

    def restore(self) -> None:
        """Undo all stores and atomic accesses, including those before the last barrier, if `undo` was set."""
        for place, size, old in reversed(self._undo or []):
            self._views.store(place, size, old)


class GroupAccesses:
    """The accesses to global memory and to LDS by a workgroup whose waves run together."""

    def __init__(self, memory: Views, lds: Views) -> None:
        self.memory = Accesses(memory, undo=True)
        self.lds = Accesses(lds, undo=False)


def _units(accesses: Sequence[Access]) -> tuple[Array, Array]:
    """Split accesses into units of two bytes, and return the index of each unit and the wave that accessed it."""
    by_size: dict[int, list[Access]] = {}
    for access in accesses:
        by_size.setdefault(access[1], []).append(access)
    places, owners = [], []
    for size, alike in by_size.items():
        place = np.concatenate([each[0] for each in alike]) if len(alike) > 1 else alike[0][0]
        full = [each[2] if len(each[2]) == len(each[0]) else np.repeat(each[2], len(each[0])) for each in alike]
        count = (size + 1) // 2
        # An access at an odd offset touches one more unit than an access at an even offset. If one of the offsets is
        # odd, all accesses of the same size are assumed to touch that many units.
        if size > 1 and int(np.bitwise_or.reduce(place)) & 1:
            count += 1
        places.append(((place >> 1)[:, None] + _STEPS[:count]).ravel())
        owners.append(np.concatenate(full).repeat(count))
    return (places[0], owners[0]) if len(places) == 1 else (np.concatenate(places), np.concatenate(owners))
