"""Checks of attention kernels, which are emulated, and whose results are compared with float64 references."""
