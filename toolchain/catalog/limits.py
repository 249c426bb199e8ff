"""Limits of the waves of a SIMD, by GPU: data/occupancy.toml."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.data import load


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A row of data/occupancy.toml; that file says what each field is."""

    vgprs: int
    granule: int
    counted: int
    waves: int
    sgprs: int
    simds: int
    lds: int
    lds_granule: int


_KINDS = {
    gpu: Limits(lds_granule=row["lds-granule"], **{k: v for k, v in row.items() if k not in {"gpus", "lds-granule"}})
    for row in load("occupancy")["kind"]
    for gpu in row["gpus"]
}


def limits_of(gpu: str) -> Limits | None:
    """The row of a GPU; None if there is none."""
    return _KINDS.get(gpu)
