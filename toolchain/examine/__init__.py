"""What compiled kernels hold: code objects wherever they lie, two collections compared, a release audited, a report."""
