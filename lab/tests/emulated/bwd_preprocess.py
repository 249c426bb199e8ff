"""A kernel with the name and arguments of AOTriton's `bwd_preprocess_varlen`; the grid has the number of sequences."""

import triton
import triton.language as tl


@triton.jit
def bwd_preprocess_varlen(
    Out, DO, Delta, stride_oz, stride_oh, stride_om, stride_on, stride_doz, stride_doh, stride_dom, stride_don,
    cu_seqlens_q, max_seqlen_q, seq_strides_q, hdim_vo,
    BLOCK_M: tl.constexpr, D_HEAD: tl.constexpr, PADDED_HEAD: tl.constexpr,
):  # fmt: skip
    sequence, head, heads = tl.program_id(2), tl.program_id(1), tl.num_programs(1)
    start, end = tl.load(cu_seqlens_q + sequence), tl.load(cu_seqlens_q + sequence + 1)
    total = tl.load(cu_seqlens_q + tl.num_programs(2))
    rows = start + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, D_HEAD)
    inside = rows < end
    there = inside[:, None] & (columns[None, :] < (hdim_vo if PADDED_HEAD else D_HEAD))
    left = tl.load(Out + head * stride_oh + rows[:, None] * stride_om + columns[None, :], mask=there, other=0.0)
    right = tl.load(DO + head * stride_doh + rows[:, None] * stride_dom + columns[None, :], mask=there, other=0.0)
    delta = tl.sum(left.to(tl.float32) * right.to(tl.float32), 1)
    tl.store(Delta + (head % heads) * total + rows, delta, mask=inside)
