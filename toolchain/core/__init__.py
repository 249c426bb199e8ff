"""Modules that the other packages share, and that import none of those packages."""
