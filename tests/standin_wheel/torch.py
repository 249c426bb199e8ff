"""The part of PyTorch that Triton uses when it inspects an argument."""

from __future__ import annotations


class dtype:  # noqa: N801 - as in PyTorch
    """A data type, such as `torch.float16`."""

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
        """Return an address that is aligned, as those of a GPU are."""
        return 256

    def untyped_storage(self) -> Tensor:
        """Return the tensor itself."""
        return self

    def size(self) -> int:
        """Return the size in bytes."""
        return 1 << 20
