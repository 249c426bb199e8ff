"""Cases for the AMD kernels in the sdist of flash-attn, with the sizes for which the kernels are compiled.

In backward passes, lengths are multiples of 16, as the kernels assume, but not always multiples of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain_lab.emulator.metadata import Metadata
from toolchain_lab.numbers.case import Arguments, Case, Expected, NoCaseError
from toolchain_lab.numbers.elements import ELEMENTS, FP32, Element, rows_tensor, tensor
from toolchain_lab.numbers.problem import Problem, Shape
from toolchain_lab.numbers.reference import exactly

Array = NDArray[Any]
_LOG2E = 1.44269504
# These are the arguments of disabled features, such as the strides of tensors that are not passed.
_UNUSED = ("stride_b*", "stride_a*", "stride_s*", "stride_dropout*", "dropout_p", "philox_*")
_ROWS = 144  # rows in a backward pass; not a multiple of 32, 64 or 128, the possible sizes of a block


def element_of(metadata: Metadata, *names: str) -> Element:
    """Return the element type of the first of the named tensors that the kernel takes.

    NoCaseError is raised if the kernel takes none of the tensors, or if the element type is unknown.
    """
    types = {parameter.name: parameter.type.removeprefix("*") for parameter in metadata.parameters}
    for name in names:
        if name in types:
            if types[name] not in ELEMENTS:
                raise NoCaseError(f"{name} has elements of type {types[name]}")
            return ELEMENTS[types[name]]
    raise NoCaseError(f"the kernel takes none of {', '.join(names)}")


def refuse_forms(arguments: Arguments, **off: Any) -> None:
    """Raise NoCaseError if a compile-time argument enables a feature for which there is no test case.

    Args:
        off: for each such argument, the value that disables the feature.
    """
    for name, value in off.items():
        if arguments.constant(name, value) != value:
            raise NoCaseError(f"there is no test case for {name} = {arguments.constant(name)}")


def forward(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for attn_fwd, in which one block of queries runs, or two blocks if the mask is causal."""
    arguments = Arguments(metadata)
    refuse_forms(
        arguments, USE_BIAS=False, ENABLE_DROPOUT=False, RETURN_SCORES=False, USE_ALIBI=False, IS_VARLEN=False,
        IS_INFERENCE=False, IS_FP8=False, FP8_OUTPUT=False,
    )  # fmt: skip
    element, head = element_of(metadata, "Q"), int(arguments.constant("ACTUAL_BLOCK_DMODEL"))
    queries, keys = int(arguments.constant("MAX_SEQLENS_Q")), int(arguments.constant("MAX_SEQLENS_K"))
    block, causal = int(arguments.constant("BLOCK_M")), bool(arguments.constant("IS_CAUSAL"))
    # `second` is the first head in the second group of heads, which reads the second head of keys.
    second = int(arguments.constant("HQ", 1)) // int(arguments.constant("HK", 1))
    heads = 2 * second
    problem = Problem(
        element,
        Shape(((queries, keys),), heads=heads, key_heads=2, head=head, pitch=head),
        float(arguments.constant("SM_SCALE")),
        seed,
        window=(None, None) if causal else None,
    )
    out, lse = problem.empty("o", keys=False, heads=heads), rows_tensor(1, heads, queries)
    arguments.tensors(Q=problem.q, K=problem.k, V=problem.v, Out=out, LSE=lse)
    arguments.strides(q=problem.q.strides, k=problem.k.strides, v=problem.v.strides, o=out.strides, lse=lse.strides[:3])
    arguments.zero(*_UNUSED)
    only = [(0, 0, 0), (2, second, 0)] if causal else [(1, second, 0)]
    expected = []
    for place, at, _ in only:
        rows = slice(place * block, (place + 1) * block)
        results = problem.results(0, at, rows)
        expected += [
            Expected("Out", "O", element, out.places[0, at, rows], results.exact.o, results.plain.o),
            Expected("LSE", "LSE", FP32, lse.places[0, at, rows, 0], results.exact.lse, results.single.lse),
        ]
    label = f"{queries} queries, {keys} keys{', causal' if causal else ''}"
    yield Case(label, arguments.done(), (-(-queries // block), heads, 1), only, expected)


def preprocess(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for _bwd_preprocess, which computes the scalar product of each output row and its gradient."""
    arguments = Arguments(metadata)
    refuse_forms(arguments, IS_VARLEN=False, IS_FP8=False)
    element = element_of(metadata, "Out", "O")
    head = int(arguments.constant("ACTUAL_BLOCK_DMODEL") or arguments.constant("ACTUAL_HEAD_DIM"))
    block, rows, at = int(arguments.constant("BLOCK_M") or arguments.constant("PRE_BLOCK")), 112, 3
    shape = Shape(((rows, rows),), heads=4, key_heads=4, head=head, pitch=head)
    problem = Problem(element, shape, head**-0.5, seed)
    o, delta = problem.make("o", keys=False, heads=4), rows_tensor(1, 4, rows)
    arguments.tensors(Out=o, O=o, DO=problem.do, Delta=delta)
    arguments.strides(o=o.strides, do=problem.do.strides, delta=delta.strides[:3])
    arguments.numbers(max_seqlen_q=rows, max_seqlen_k=rows)
    arguments.zero(*_UNUSED)
    blocks = -(-rows // block)
    # Some kernels with this name have heads along the grid's x axis, and others along z.
    along_x = "N_CTX_Q" in metadata.constants
    only = [(at, k, 0) if along_x else (k, 0, at) for k in range(blocks)]
    products = o.read()[0, at] * problem.do.read()[0, at]
    exact = products.sum(1)
    expected = [
        Expected("Delta", "Delta", FP32, delta.places[0, at, :, 0], exact, FP32.rounded(np.cumsum(products, 1)[:, -1]))
    ]
    grid = (4, blocks, 1) if along_x else (blocks, 1, 4)
    yield Case(f"{rows} rows", arguments.done(), grid, only, expected)


def backward(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for a kernel that computes the gradients of queries, of keys and values, or of all three."""
    arguments, name = Arguments(metadata), metadata.kernel
    refuse_forms(
        arguments, ENABLE_DROPOUT=False, DROPOUT=False, IS_VARLEN=False, USE_ALIBI=False, IS_FP8=False,
        FP8_OUTPUT=False, GROUP_SIZE=1,
    )  # fmt: skip
    element = element_of(metadata, "Q")
    head = int(arguments.constant("ACTUAL_BLOCK_DMODEL") or arguments.constant("ACTUAL_HEAD_DIM"))
    causal = bool(arguments.constant("CAUSAL", default="noncausal" not in name))
    # The kernel assumes that the number of heads is a multiple of 16. Only the workgroups of one head run.
    heads, at = 16, 2
    shape = Shape(((_ROWS, _ROWS),), heads=3, key_heads=3, head=head, pitch=head)
    problem = Problem(element, shape, head**-0.5, seed, window=(None, None) if causal else None)
    in_parts = arguments.has("stride_dq_all")
    block = int(arguments.constant("BLOCK_N") if in_parts or "dkdv" in name else _other_block(arguments))
    blocks = -(-_ROWS // block)
    dq, dk, dv = (problem.empty(n, keys=n != "dq", heads=3) for n in ("dq", "dk", "dv"))
    part, parts = len(dq.data), blocks if in_parts else 1
    lse, delta = problem.row_numbers("lse"), problem.row_numbers("delta")
    arguments.tensors(
        Q=problem.q, K=problem.k, V=problem.v, DO=problem.do, DK=dk, DV=dv, L=lse, M=lse, Delta=delta,
        # With `in_parts`, DQ contains zeros, because the kernel adds its results to it.
        DQ=np.zeros(part * parts, dq.data.dtype) if in_parts else dq, Out=problem.output(),
    )  # fmt: skip
    arguments.strides(
        q=problem.q.strides, k=problem.k.strides, v=problem.v.strides, do=problem.do.strides, dq=dq.strides,
        dk=dk.strides, dv=dv.strides, delta=delta.strides[:3],
    )  # fmt: skip
    arguments.numbers(
        sm_scale=problem.scale, HQ=heads, HK=heads, Z=1, max_seqlen_q=_ROWS, max_seqlen_k=_ROWS, num_block_m=blocks,
        num_block_n=blocks, stride_dq_all=part,
    )  # fmt: skip
    arguments.zero(*_UNUSED)
    results = problem.results(0, at)
    expected = []
    if arguments.has("DQ"):
        places = dq.places[0, at] if not in_parts else np.stack([dq.places[0, at] + k * part for k in range(parts)])
        expected.append(Expected("DQ", "dQ", element, places, results.exact.dq, results.plain.dq, summed=in_parts))
    if arguments.has("DK"):
        expected += [
            Expected("DK", "dK", element, dk.places[0, at], results.exact.dk, results.plain.dk),
            Expected("DV", "dV", element, dv.places[0, at], results.exact.dv, results.plain.dv),
        ]
    only = [(at, k, 0) if in_parts else (k, 0, at) for k in range(blocks)]
    grid = (heads, blocks, 1) if in_parts else (blocks, 1, heads)
    yield Case(f"{_ROWS} rows{', causal' if causal else ''}", arguments.done(), grid, only, expected)


def _other_block(arguments: Arguments) -> int:
    """Return how many rows a workgroup computes in a kernel for the gradients of queries, or for all gradients."""
    return int(arguments.constant("BLOCK_M") or max(arguments.constant("BLOCK_N1"), arguments.constant("BLOCK_M2")))


def split_forward(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for _fwd_kernel_splitK, with few queries and with two parts of a cache that is only partly used."""
    arguments = Arguments(metadata)
    refuse_forms(arguments, G_q=1, NEW_KV=False, USE_ALIBI=False, PADDED_HEAD=False, USE_CACHE_BATCH_IDX=False)
    element, head = element_of(metadata, "Q"), int(arguments.constant("ACTUAL_BLOCK_DMODEL"))
    heads, key_heads = int(arguments.constant("H_q")), int(arguments.constant("H_kv"))
    queries, cached, used, each, at = 4, 256, 200, 128, 6
    block, causal = int(arguments.constant("BLOCK_M")), bool(arguments.constant("IS_CAUSAL"))
    random = np.random.default_rng(seed)
    normal = random.standard_normal
    q = tensor(element, (1, heads, queries, head), normal, guard=0)
    k, v = (tensor(element, (1, key_heads, cached, head), normal, guard=0) for _ in range(2))
    parts = 2
    out = np.full((heads, parts, block, head), np.nan, np.float32)
    numbers = np.full((heads, 2, parts, block), np.nan, np.float32)
    # The stride from one group to the next is arbitrary, because there is only one group.
    q_strides, k_strides, v_strides = (_in_order(t.strides) for t in (q, k, v))
    arguments.tensors(
        Q=q, K=k, V=v, Out_splitK=out.reshape(-1), Metadata=numbers.reshape(-1),
        Cache_seqlens=np.array([used], np.int32),
    )  # fmt: skip
    arguments.numbers(
        **_named("q", "zmghd", q_strides), **_named("k", "znghd", k_strides), **_named("v", "znghd", v_strides),
        stride_osk_zhg=parts * block * head, stride_osk_s=block * head, stride_osk_m=head, stride_osk_d=1,
        stride_mzhg=2 * parts * block, stride_m2=parts * block, stride_ms=block, stride_mm=1, Z=1, N_CTX_Q=queries,
        N_CTX_K=cached, BLOCK_N_PER_SPLIT=each, sm_scale=head**-0.5,
    )  # fmt: skip
    arguments.zero(*_UNUSED)
    row = np.arange(queries)
    expected = []
    for part in range(parts):
        columns = np.arange(part * each, min((part + 1) * each, used))
        keys, values = (t.read()[0, at * key_heads // heads][columns] for t in (k, v))
        visible = row[:, None] >= queries - used + columns[None] if causal else np.ones((queries, len(columns)), bool)
        sums = {}
        for name, rounded in (("exact", exactly), ("plain", element.rounded)):
            scaled = element.rounded(q.read()[0, at] * np.float32(np.float32(head**-0.5) * np.float32(_LOG2E)))
            scores = np.where(visible, rounded(scaled @ keys.T), -np.inf)
            top = scores.max(1)
            weights = rounded(2 ** (scores - top[:, None]))
            sums[name] = (weights @ values, top, weights.sum(1))
        start = out[0].size * at + part * block * head
        places = start + np.arange(queries * head).reshape(queries, head)
        of_part = numbers[0].size * at + part * block + row
        rounded32 = [FP32.rounded(sums["exact"][k]) for k in (1, 2)]
        expected += [
            Expected(
                "Out_splitK", f"O of part {part}", element, places, sums["exact"][0], sums["plain"][0], stored=FP32
            ),
            Expected("Metadata", f"maximum of part {part}", FP32, of_part, sums["exact"][1], rounded32[0]),
            Expected("Metadata", f"sum of part {part}", FP32, of_part + parts * block, sums["exact"][2], rounded32[1]),
        ]
    # The kernel also writes the maximum and the sum for the unused rows of the block.
    rows = np.arange(queries, block) + np.arange(parts)[:, None] * block
    free = numbers[0].size * at + np.ravel([rows, rows + parts * block])
    label = f"{queries} queries, {used} of {cached} keys{', causal' if causal else ''}"
    yield Case(
        label, arguments.done(), (1, heads, parts), [(0, at, k) for k in range(parts)], expected, {"Metadata": free}
    )


def _in_order(strides: tuple[int, int, int, int]) -> tuple[int, int, int, int, int]:
    """Return the strides in the order batch, row, group, head, column; the stride of a group is that of a row."""
    return strides[0], strides[2], strides[2], strides[1], strides[3]


def _named(tensor_name: str, letters: str, strides: tuple[int, ...]) -> dict[str, int]:
    return {f"stride_{tensor_name}{letter}": stride for letter, stride in zip(letters, strides, strict=True)}


def split_reduce(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for _splitK_reduce, which joins the parts of a split forward pass."""
    arguments = Arguments(metadata)
    refuse_forms(arguments, G=1, PADDED_HEAD=False, MASK_SPLITK=False)
    element, head = element_of(metadata, "Out"), int(arguments.constant("ACTUAL_BLOCK_DMODEL"))
    heads, parts, queries, block = int(arguments.constant("H")), int(arguments.constant("split_k")), 4, 16
    random = np.random.default_rng(seed)
    given = random.standard_normal((heads, parts, queries, head)).astype(np.float32)
    numbers = np.empty((heads, 2, parts, block), np.float32)
    numbers[:, 0] = random.standard_normal((heads, parts, block)) * 3
    numbers[:, 1] = random.random((heads, parts, block)) * 5 + 1
    out = tensor(element, (1, heads, queries, head), random.standard_normal, guard=0)
    lse = np.full((heads, block), np.nan, np.float32)
    batch, of_head, of_row, _ = out.strides
    arguments.tensors(Out_splitK=given.reshape(-1), Metadata=numbers.reshape(-1), Out=out, LSE=lse.reshape(-1))
    arguments.numbers(
        stride_osk_zhg=parts * queries * head, stride_osk_s=queries * head, stride_osk_m=head, stride_osk_k=1,
        stride_mzhg=2 * parts * block, stride_m2=parts * block, stride_ms=block, stride_mm=1, stride_oz=batch,
        stride_oh=of_head, stride_og=of_row, stride_om=of_row, stride_ok=1, stride_lse_zhg=block, stride_lse_m=1,
    )  # fmt: skip
    expected = []
    only = [(9, 2, 0), (3, 1, 0)]
    for at, row, _ in only:
        top, total = (numbers[at, k, :, row].astype(np.float64) for k in (0, 1))
        weight = 2 ** (top - top.max())
        joined = (total * weight).sum()
        o = (given[at, :, row].astype(np.float64) * weight[:, None]).sum(0) / joined
        whole = np.array([(top.max() + np.log2(joined)) / _LOG2E])
        expected += [
            Expected("Out", "O", element, out.places[0, at, row], o, element.rounded(o)),
            Expected("LSE", "LSE", FP32, np.array([at * block + row]), whole, FP32.rounded(whole)),
        ]
    yield Case(f"{parts} parts", arguments.done(), (heads, queries, 1), only, expected)


_FOLDER = "flash_attn_triton_amd"
CASES: Mapping[tuple[str, str], Callable[[Metadata, int], Iterator[Case]]] = {
    (f"{_FOLDER}/fwd_prefill.py", "attn_fwd"): forward,
    (f"{_FOLDER}/fwd_decode.py", "_fwd_kernel_splitK"): split_forward,
    (f"{_FOLDER}/fwd_decode.py", "_splitK_reduce"): split_reduce,
    (f"{_FOLDER}/bwd_prefill.py", "_bwd_preprocess"): preprocess,
    (f"{_FOLDER}/bwd_prefill_onekernel.py", "_bwd_preprocess"): preprocess,
    (f"{_FOLDER}/bwd_prefill_split.py", "_bwd_preprocess"): preprocess,
    (f"{_FOLDER}/bwd_prefill.py", "_bwd_kernel"): backward,
    **{
        (f"{_FOLDER}/bwd_prefill_split.py", f"_bwd_kernel_{part}_{mask}"): backward
        for part in ("dkdv", "dq")
        for mask in ("causal", "noncausal")
    },
    **{(f"{_FOLDER}/bwd_prefill_onekernel.py", f"bwd_kernel_{mask}"): backward for mask in ("causal", "noncausal")},
}
