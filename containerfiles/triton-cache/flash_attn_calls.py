"""Call public functions of flash-attn with tensors in host memory. calls.py imports this module."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch

PACKAGE = "flash_attn"
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare() -> None:
    """Make flash-attn accept tensors in host memory."""
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 4)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1, major=9, minor=4)
    import flash_attn.flash_attn_interface as interface  # noqa: PLC0415 - the import reads the device properties

    for name in ("torch._dynamo", "torch.distributed.fsdp"):
        importlib.import_module(name)  # otherwise each forked process would spend seconds on the import

    # flash-attn registers these operators only for "cuda".
    for operator in (interface._flash_attn_forward, interface._flash_attn_backward):
        operator.register_kernel("cpu")(operator._init_fn)


def call(row: dict[str, Any]) -> None:
    """Call the attention function that a row describes.

    Args:
        row: `direction` (`forward`, `backward` or `decode`), `dtype` (`bf16` or `fp16`), `batch` (the number of
            sequences), `heads` (the numbers of query heads and of key heads), `head` (the size of a head), `seq` (the
            number of keys of a sequence), and `causal` (whether a query attends to no later keys).
    """
    from flash_attn import flash_attn_func, flash_attn_with_kvcache  # noqa: PLC0415 - `prepare` runs first

    batch, (heads, of_keys), head, length = row["batch"], row["heads"], row["head"], row["seq"]
    kind, backward = _TYPES[row["dtype"]], row["direction"] == "backward"

    def tensor(count: int, many: int) -> torch.Tensor:
        return torch.zeros(batch, count, many, head, dtype=kind, requires_grad=backward)

    keys, values = tensor(length, of_keys), tensor(length, of_keys)
    if row["direction"] == "decode":
        lengths = torch.full((batch,), length, dtype=torch.int32)
        flash_attn_with_kvcache(tensor(1, heads), keys, values, cache_seqlens=lengths, causal=row["causal"])
        return
    out = flash_attn_func(tensor(length, heads), keys, values, causal=row["causal"])
    if backward:
        out.backward(torch.zeros_like(out))
