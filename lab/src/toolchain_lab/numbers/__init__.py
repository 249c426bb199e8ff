"""Checks the numbers of attention kernels: inputs, emulated workgroups, and references in float64."""
