"""Checks of the results of attention kernels, which are emulated and compared with references in float64."""
