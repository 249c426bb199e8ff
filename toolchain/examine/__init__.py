"""What compiled kernels hold: code objects in files, archives and images; comparison, audit of a release, report."""
