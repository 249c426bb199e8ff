"""Call functions of AITER (`aiter.ops.triton`) with tensors in host memory. calls.py imports this module."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

import torch

PACKAGE = "aiter"
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SEQUENCES = 4


def prepare() -> None:
    """Make AITER accept tensors in host memory."""
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=int(os.environ["CU_NUM"]))
    importlib.import_module("aiter.ops.triton")


def call(row: dict[str, Any]) -> None:
    """Call the AITER function that a row describes.

    Args:
        row: `function` (a key of `_FUNCTIONS`), `dtype` (`bf16` or `fp16`) and `units` (the number of compute units of
            the GPU, which is a constant in some kernels). The two attention functions need `heads` (the numbers of
            query heads and of key heads), `head` (the size of a head) and `seq` (the number of keys of a sequence);
            `flash_attn_func` also needs `batch` (the number of sequences) and `causal` (whether a query attends to no
            later keys), and `unified_attention` needs `block` (the number of keys in a block of the cache) and
            `queries` (the number of new queries of each sequence). The other functions need `rows` and `columns`, and
            `gemm_a16w16` also needs `inner`, the dimension that is summed over.
    """
    os.environ["CU_NUM"] = str(row["units"])
    _FUNCTIONS[row["function"]](row, _TYPES[row["dtype"]])


def _layer_norm(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.normalization.norm import layer_norm  # noqa: PLC0415 - `prepare` runs first

    weight, bias = torch.zeros(2, row["columns"], dtype=kind)
    layer_norm(_matrix(row, kind), weight, bias)


def _rms_norm(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.normalization.rmsnorm import rms_norm  # noqa: PLC0415 - `prepare` runs first

    rms_norm(_matrix(row, kind), torch.zeros(row["columns"], dtype=kind), 1e-6)


def _rms_norm_add(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.normalization.rmsnorm import rmsnorm2d_fwd_with_add  # noqa: PLC0415 - `prepare` runs first

    weight = torch.zeros(row["columns"], dtype=kind)
    rmsnorm2d_fwd_with_add(*(_matrix(row, kind) for _ in range(4)), weight, 1e-6)


def _softmax(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.softmax import softmax  # noqa: PLC0415 - `prepare` runs first

    softmax(_matrix(row, kind))


def _gemm(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.gemm.basic.gemm_a16w16 import gemm_a16w16  # noqa: PLC0415 - `prepare` runs first

    inner = row["inner"]
    gemm_a16w16(torch.zeros(row["rows"], inner, dtype=kind), torch.zeros(row["columns"], inner, dtype=kind), dtype=kind)


def _attention(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.attention.mha import flash_attn_func  # noqa: PLC0415 - `prepare` runs first

    heads, of_keys = row["heads"]
    query, keys, values = (
        torch.zeros(row["batch"], row["seq"], many, row["head"], dtype=kind) for many in (heads, of_keys, of_keys)
    )
    flash_attn_func(query, keys, values, causal=row["causal"])


def _unified(row: dict[str, Any], kind: torch.dtype) -> None:
    from aiter.ops.triton.attention.unified_attention import unified_attention  # noqa: PLC0415 - `prepare` runs first

    (heads, of_keys), head, queries, length = row["heads"], row["head"], row["queries"], row["seq"]
    blocks = -(-length // row["block"])
    query = torch.zeros(_SEQUENCES * queries, heads, head, dtype=kind)
    keys, values = (torch.zeros(blocks, row["block"], of_keys, head, dtype=kind) for _ in range(2))
    unified_attention(
        query, keys, values, torch.empty_like(query),
        torch.arange(_SEQUENCES + 1, dtype=torch.int32) * queries, queries,
        torch.full((_SEQUENCES,), length, dtype=torch.int32), length, head**-0.5, True, (-1, -1),
        torch.zeros(_SEQUENCES, blocks, dtype=torch.int32), 0, None, None, None,
    )  # fmt: skip


def _matrix(row: dict[str, Any], kind: torch.dtype) -> torch.Tensor:
    return torch.zeros(row["rows"], row["columns"], dtype=kind)


_FUNCTIONS = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "rmsnorm2d_fwd_with_add": _rms_norm_add,
    "softmax": _softmax,
    "gemm_a16w16": _gemm,
    "flash_attn_func": _attention,
    "unified_attention": _unified,
}
