"""Compute the occupancy of a kernel: how many of its waves fit on a SIMD, as limited by registers and by LDS."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.catalog.limits import Limits, limits_of


@dataclass(frozen=True)
class Occupancy:
    """The numbers of waves that fit on a SIMD as limited by registers and by LDS, each at most the SIMD's own limit."""

    registers: int
    lds: int

    @property
    def waves(self) -> int:
        return min(self.registers, self.lds)


def allocated(gpu: str, rsrc1: int, wave: int) -> int:
    """Return the number of vector registers that a kernel's descriptor reserves; 0 for an unknown GPU.

    This may be more than the kernel uses.

    Args:
        rsrc1: the field `compute_pgm_rsrc1` of the kernel descriptor.
        wave: the number of lanes in a wave, 32 or 64.
    """
    row = limits_of(gpu)
    return 0 if row is None else ((rsrc1 & 0x3F) + 1) * row.counted // _half(row, wave)


def _half(row: Limits, wave: int) -> int:
    """Return 2 if a wave has twice as many lanes as the limits are stated for, and otherwise 1."""
    return 2 if row.sgprs == 0 and wave == 64 else 1


def occupancy(
    gpu: str, *, vgpr: int, sgpr: int, lds: int, wave: int, threads: int, two_units: bool = False
) -> Occupancy | None:
    """Return the occupancy of a kernel; None if the GPU is unknown.

    Args:
        vgpr: the number of vector registers that a wave uses or reserves, including AGPRs.
        sgpr: the number of scalar registers that a wave uses.
        lds: the size of a workgroup's LDS in bytes.
        wave: the number of lanes in a wave, 32 or 64.
        threads: the number of threads in a workgroup.
        two_units: whether the kernel runs in workgroup processor mode.
    """
    row = limits_of(gpu)
    if row is None:
        return None
    half = _half(row, wave)
    granule = row.granule // half
    taken = max(-(-vgpr // granule), 1) * granule
    waves = max(min(row.vgprs // half // taken, row.waves), 1)
    if row.sgprs and sgpr:
        waves = min(waves, row.sgprs // sgpr)
    by_lds = row.waves
    if lds:
        units = 2 if two_units else 1
        groups = max(row.lds * units // (-(-lds // row.lds_granule) * row.lds_granule), 1)
        by_lds = min(-(-groups * -(-threads // wave) // (row.simds * units)), row.waves)
    return Occupancy(waves, by_lds)
