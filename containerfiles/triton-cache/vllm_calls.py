"""Call vLLM's attention functions that use Triton, with tensors in host memory. calls.py imports this module.

This module imports only a few modules of vLLM, because some others import packages that the image lacks.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

PACKAGE = "vllm"
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SEGMENTS = 16  # the value of vLLM's NUM_PAR_SOFTMAX_SEGMENTS
_SEQUENCES = 4


def prepare() -> None:
    """Make vLLM detect the GPU of Triton's current target and accept tensors in host memory."""
    from triton.backends import backends  # noqa: PLC0415 - calls.py sets the driver first
    from triton.runtime.driver import driver  # noqa: PLC0415

    gpu = driver.active.get_current_target().arch
    library = ModuleType("amdsmi")
    for name in ("amdsmi_init", "amdsmi_shut_down"):
        setattr(library, name, lambda: None)
    for name in ("topo_get_link_type", "topo_get_numa_node_number", "get_gpu_device_uuid", "get_gpu_memory_total"):
        setattr(library, f"amdsmi_{name}", lambda *_: 0)
    library.__dict__.update(
        AmdSmiException=RuntimeError,
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        amdsmi_get_processor_handles=lambda: [0],
        amdsmi_get_gpu_asic_info=lambda _: {"target_graphics_version": gpu, "device_id": "0x0", "market_name": gpu},
    )
    sys.modules["amdsmi"] = library
    # The modules that this file imports use no feature of `regex` that `re` lacks.
    if importlib.util.find_spec("regex") is None:
        sys.modules["regex"] = re
    for name, backend in backends.items():
        active = name == "amd"
        backend.driver.is_active = staticmethod(lambda active=active: active)
    torch.cuda.current_device = lambda: 0
    importlib.import_module("vllm.triton_utils")


def call(row: dict[str, Any]) -> None:
    """Call the vLLM function that a row describes.

    Args:
        row: `function` (a key of `_FUNCTIONS`), `dtype` (`bf16` or `fp16`), `heads` (the numbers of query heads and of
            key heads) and `head` (the size of a head). All functions except `merge_attn_states` also need `block` (the
            number of keys in a block of the cache) and `seq` (the number of keys of each sequence).
            `unified_attention` and `context_attention_fwd` also need `queries` (the number of new queries of each
            sequence).
    """
    _FUNCTIONS[row["function"]](row, _TYPES[row["dtype"]], *row["heads"], row["head"])


def _unified(row: dict[str, Any], kind: torch.dtype, heads: int, of_keys: int, head: int) -> None:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention  # noqa: PLC0415 - `prepare` runs first

    queries, length = row["queries"], row["seq"]
    query = torch.zeros(_SEQUENCES * queries, heads, head, dtype=kind)
    # vLLM's cache is one tensor: keys and values are the halves of its last dimension.
    blocks = -(-length // row["block"])
    keys, values = torch.zeros(blocks, row["block"], of_keys, 2 * head, dtype=kind).split(head, dim=-1)
    scale = torch.ones(1).expand(_SEQUENCES, of_keys)
    parts = (_SEQUENCES, heads, _SEGMENTS)
    unified_attention(
        q=query, k=keys, v=values, out=torch.empty_like(query),
        cu_seqlens_q=torch.arange(_SEQUENCES + 1, dtype=torch.int32) * queries, max_seqlen_q=queries,
        seqused_k=torch.full((_SEQUENCES,), length, dtype=torch.int32), max_seqlen_k=length,
        softmax_scale=head**-0.5, causal=True, window_size=(-1, -1),
        block_table=torch.zeros(_SEQUENCES, blocks, dtype=torch.int32), softcap=0,
        q_descale=None, k_descale=scale, v_descale=scale,
        seq_threshold_3D=128 // of_keys, num_par_softmax_segments=_SEGMENTS,
        softmax_segm_output=torch.empty(*parts, 1 << (head - 1).bit_length()),
        softmax_segm_max=torch.empty(parts), softmax_segm_expsum=torch.empty(parts),
    )  # fmt: skip


def _prefix(row: dict[str, Any], kind: torch.dtype, heads: int, of_keys: int, head: int) -> None:
    from vllm.v1.attention.ops.prefix_prefill import context_attention_fwd  # noqa: PLC0415 - `prepare` runs first

    queries, length, block = row["queries"], row["seq"], row["block"]
    blocks, new = -(-length // block), _SEQUENCES * queries
    query, keys, values = (torch.zeros(new, many, head, dtype=kind) for many in (heads, of_keys, of_keys))
    packed = 16 // query.element_size()
    context_attention_fwd(
        query, keys, values, torch.empty_like(query), "auto",
        torch.zeros(blocks, of_keys, head // packed, block, packed, dtype=kind),
        torch.zeros(blocks, of_keys, head, block, dtype=kind),
        torch.zeros(_SEQUENCES, blocks, dtype=torch.int32),
        torch.arange(_SEQUENCES + 1, dtype=torch.int32) * queries,
        torch.full((_SEQUENCES,), length, dtype=torch.int32), length, queries, torch.ones(1), torch.ones(1),
    )  # fmt: skip


def _decode(row: dict[str, Any], kind: torch.dtype, heads: int, of_keys: int, head: int) -> None:
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd  # noqa: PLC0415 - `prepare` runs first

    length, block, splits = row["seq"], row["block"], 8
    blocks = -(-length // block)
    query = torch.zeros(_SEQUENCES, heads, head, dtype=kind)
    keys, values = (torch.zeros(blocks, block, of_keys, head, dtype=kind) for _ in range(2))
    decode_attention_fwd(
        query, keys, values, torch.empty_like(query), torch.empty(_SEQUENCES, heads),
        torch.zeros(_SEQUENCES, blocks, dtype=torch.int32), torch.full((_SEQUENCES,), length, dtype=torch.int32),
        torch.empty(_SEQUENCES, heads, splits, head + 1), splits, head**-0.5, block,
    )  # fmt: skip


def _merge(_: dict[str, Any], kind: torch.dtype, heads: int, __: int, head: int) -> None:
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states  # noqa: PLC0415 - `prepare` runs first

    out, first, second = (torch.zeros(_SEQUENCES, heads, head, dtype=kind) for _ in range(3))
    sums = torch.zeros(3, heads, _SEQUENCES)
    merge_attn_states(out, first, sums[0], second, sums[1], sums[2])


_FUNCTIONS = {
    "unified_attention": _unified,
    "context_attention_fwd": _prefix,
    "decode_attention_fwd": _decode,
    "merge_attn_states": _merge,
}
