"""The rows of data/occupancy.toml: the hardware limits of GPUs that decide how many waves a SIMD can hold."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.data import FOLDER, load, typed_row


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A row of data/occupancy.toml, which documents the fields."""

    gpus: tuple[str, ...]
    vgprs: int
    granule: int
    counted: int
    waves: int
    sgprs: int
    simds: int
    lds: int
    lds_granule: int


_ROWS = [typed_row(Limits, row, "kind", FOLDER / "occupancy.toml") for row in load("occupancy")["kind"]]
_BY_GPU = {gpu: row for row in _ROWS for gpu in row.gpus}


def limits_of(gpu: str) -> Limits | None:
    """Return the limits of a GPU; None if they are unknown."""
    return _BY_GPU.get(gpu)
