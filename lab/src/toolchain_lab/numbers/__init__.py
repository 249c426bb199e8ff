"""Check the results of attention kernels: inputs, emulated workgroups, and references in float64."""
