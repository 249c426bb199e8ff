"""Analysis of the compiled kernels in files, archives and images: listing, comparison, audit and recompilation."""
