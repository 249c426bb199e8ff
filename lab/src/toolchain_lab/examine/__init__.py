"""Analysis of compiled kernels: code objects in files, archives and images; comparison, audit of a release, report."""
