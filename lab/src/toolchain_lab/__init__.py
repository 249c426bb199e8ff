"""Analysis of compiled kernels for `toolchain`: emulation, checks of results, comparison, audits and reports."""
