"""A plugin for `toolchain` that analyses compiled kernels by emulation, checks, comparisons, audits and reports."""
