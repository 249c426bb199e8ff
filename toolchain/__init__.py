"""Rebuild LLVM, Triton and AOTriton from source, as layers of OCI images."""

__version__ = "0.1.0"
