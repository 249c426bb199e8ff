"""The products of a rule: a code object, or the cache entries of a call."""

from __future__ import annotations

from pathlib import Path

from toolchain.kernels.codeobject import check_object
from toolchain.kernels.triton_cache import check_packed

PACKED = ".tar"
"""Of what a call leaves."""


def check_made(path: Path, gpu: str, kernel: str) -> None:
    """Check that a file is what a rule for `gpu` leaves.

    Raises:
        KernelError: it is not, and why.
        UnsupportedError: an unknown GPU.
    """
    if path.suffix == PACKED:
        check_packed(path, gpu)
    else:
        check_object(path, gpu, kernel)
