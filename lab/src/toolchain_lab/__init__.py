"""A plugin of `toolchain` that analyses compiled kernels: emulation, checks, comparison, audits and reports."""
