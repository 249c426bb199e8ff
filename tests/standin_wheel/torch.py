"""What Triton asks PyTorch for when it looks at an argument."""

from __future__ import annotations


class dtype:  # noqa: N801 - as in PyTorch
    """`torch.float16` and the like."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"torch.{self._name}"


float16, bfloat16 = dtype("float16"), dtype("bfloat16")


class Tensor:
    """An argument that is a pointer."""

    def __init__(self, kind: dtype) -> None:
        self.dtype = kind

    def data_ptr(self) -> int:
        """Aligned, as those of a GPU are."""
        return 256

    def untyped_storage(self) -> Tensor:
        """Itself."""
        return self

    def size(self) -> int:
        """Bytes."""
        return 1 << 20
