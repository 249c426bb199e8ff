"""A plugin for `toolchain` that emulates, checks, compares and audits compiled kernels, and writes reports on them."""
