"""A kernel with the name and arguments of flash-attn's `_bwd_preprocess`; tests plant a fault with `FAULT`."""

import triton
import triton.language as tl


@triton.jit
def _bwd_preprocess(
    O, DO, Delta, stride_ob, stride_oh, stride_om, stride_ok, stride_dob, stride_doh, stride_dom, stride_dok,
    stride_deltab, stride_deltah, stride_deltam, max_seqlen_q,
    PRE_BLOCK: tl.constexpr, ACTUAL_HEAD_DIM: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * PRE_BLOCK + tl.arange(0, PRE_BLOCK)
    batch, head = tl.program_id(1), tl.program_id(2)
    columns = tl.arange(0, ACTUAL_HEAD_DIM)
    inside = rows < max_seqlen_q
    o = O + batch * stride_ob + head * stride_oh + rows[:, None] * stride_om + columns[None, :] * stride_ok
    do = DO + batch * stride_dob + head * stride_doh + rows[:, None] * stride_dom + columns[None, :] * stride_dok
    left = tl.load(o, mask=inside[:, None], other=0.0).to(tl.float32)
    right = tl.load(do, mask=inside[:, None], other=0.0).to(tl.float32)
    delta = tl.sum(left * right, 1)
    if FAULT == "scale":
        delta = delta * 1.001
    if FAULT == "mask":
        inside = rows < max_seqlen_q + 4
    if FAULT == "bounds":
        rows = rows + 1000000
    tl.store(Delta + batch * stride_deltab + head * stride_deltah + rows * stride_deltam, delta, mask=inside)
