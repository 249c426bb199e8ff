"""Check attention kernels by emulating them and comparing their results with float64 references."""
