"""Cases for AOTriton's attention kernels, with grouped heads, bias, dropout, and lengths that do not fill blocks.

Each forward and backward kernel runs on one sequence and, unless it has a bias, on packed sequences of different
lengths. If the kernel is causal, the packed sequences have a window. If a kernel is compiled for padded heads, the
heads are 8 columns narrower than the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain_lab.emulator.metadata import Metadata
from toolchain_lab.emulator.workgroup import Place
from toolchain_lab.numbers.case import Arguments, Case, Expected
from toolchain_lab.numbers.elements import FP32, XF32, Element, Tensor, rows_tensor
from toolchain_lab.numbers.flash_attn import element_of, refuse_forms
from toolchain_lab.numbers.problem import Dropout, Problem, Shape, Triple

Array = NDArray[Any]
HEADS, KEY_HEADS = 2, 1
# With this value of `Window_left` and `Window_right`, AOTriton uses a causal mask that is aligned to the last query and
# the last key.
_LAST = -2147483646
_DROPOUT = Dropout(probability=0.4, seed=0x1BADF00D12345678, offset=0x123456789)
_UNUSED = ("stride_a*", "stride_b*", "stride_db*", "B", "A", "DB", "philox_*_output", "encoded_softmax")


@dataclass(frozen=True)
class _Form:
    """The properties of a kernel that its compile-time arguments, its types and its GPU determine.

    Args:
        block: the number of columns that the kernel has for a head, which may include padding.
        head: the number of columns of a head that hold values.
        block_m, block_n: the number of queries and of keys in a block.
        swapped: whether heads are along the grid's x axis and blocks along y, instead of the other way round.
    """

    arguments: Arguments
    element: Element
    block: int
    head: int
    block_m: int
    block_n: int
    causal: bool
    bias: bool
    dropout: bool
    swapped: bool

    def place(self, block: int, head: int, sequence: int) -> Place:
        return (head, block, sequence) if self.swapped else (block, head, sequence)


def _form(metadata: Metadata) -> _Form:
    arguments = Arguments(metadata)
    refuse_forms(arguments, USE_ALIBI=False, INT8=False, INT8_KV=False, USE_P_SCALE=False, RETURN_ENCODED_SOFTMAX=False)
    element = element_of(metadata, "Q", "Out")
    block = int(arguments.constant("BLOCK_DMODEL") or arguments.constant("D_HEAD"))
    return _Form(
        arguments=arguments,
        element=XF32 if element is FP32 and metadata.gpu == "gfx942" else element,
        block=block,
        head=block - 8 if arguments.constant("PADDED_HEAD") else block,
        block_m=int(arguments.constant("BLOCK_M")),
        block_n=int(arguments.constant("BLOCK_N", default=1)),
        causal=arguments.constant("CAUSAL_TYPE", default=0) != 0,
        bias=arguments.constant("BIAS_TYPE", default=0) != 0,
        dropout=bool(arguments.constant("ENABLE_DROPOUT")),
        swapped=arguments.constant("NUM_XCDS", default=1) > 1,
    )


def _problem(form: _Form, lengths: Sequence[tuple[int, int]], seed: int, *, packed: bool) -> Problem:
    shape = Shape(
        tuple(lengths), heads=HEADS, key_heads=KEY_HEADS, head=form.head, pitch=-(-form.block // 16) * 16, packed=packed
    )
    window = ((19, 3) if packed else (None, None)) if form.causal else None
    return Problem(
        form.element, shape, form.head**-0.5, seed, window, with_bias=form.bias,
        dropout=_DROPOUT if form.dropout else None,
    )  # fmt: skip


def _common(form: _Form, problem: Problem, arguments: Arguments) -> None:
    """Set the arguments that attention kernels share, if the kernel takes them, and set unused ones to 0 or null."""
    shape = problem.shape
    count = len(shape.lengths) if shape.packed else 0
    starts = [np.array(problem.starts(keys=keys), np.int32) if shape.packed else None for keys in (False, True)]
    given = problem.dropout or Dropout(0.0, 0, 5)
    arguments.tensors(
        Q=problem.q, K=problem.k, V=problem.v, DO=problem.do, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1],
        seq_strides_q=None, seq_strides_k=None, philox_seed_ptr=np.array([given.seed], np.uint64),
        # The kernels add this part of the offset to `philox_offset2`, which is 5.
        philox_offset1=np.array([given.offset - 5], np.uint64),
    )  # fmt: skip
    arguments.strides(q=problem.q.strides, k=problem.k.strides, v=problem.v.strides, do=problem.do.strides)
    if form.bias:
        arguments.tensors(B=problem.bias)
        arguments.strides(b=problem.bias.strides)
    left, right = (19, 3) if shape.packed else (_LAST, _LAST)
    sizes = {"Max_seqlen_q": shape.most_queries, "Max_seqlen_k": shape.most_keys, "Hdim_qk": form.head,
             "Num_head_q": HEADS, "Num_head_k": KEY_HEADS, "Num_seqlens": count, "Hdim_vo": form.head}  # fmt: skip
    for name, value in sizes.items():
        if arguments.has(name):
            arguments.numbers(**{name: value})
        if arguments.has(name.lower()):
            arguments.numbers(**{name.lower(): value})
    for name, number in {"Sm_scale": problem.scale, "sm_scale": problem.scale, "dropout_p": given.probability,
                         "philox_offset2": 5, "Window_left": left, "Window_right": right,
                         "Batch": len(shape.lengths), "Num_CU": 1}.items():  # fmt: skip
        if arguments.has(name):
            arguments.numbers(**{name: number})
    arguments.zero(*_UNUSED)


def _lengths(form: _Form) -> Iterator[tuple[tuple[tuple[int, int], ...], bool]]:
    """Yield the lengths of the sequences in each problem, as (queries, keys), and whether the sequences are packed."""
    long = max(form.block_m, form.block_n)
    yield ((long + 13, long + 21),), False
    # A bias has no layout for packed sequences.
    if not form.bias:
        yield ((form.block_m // 2 + 5, form.block_n + 7), (form.block_m + 3, max(form.block_m, form.block_n) + 9)), True


def _label(form: _Form, problem: Problem, sequence: int) -> str:
    queries, keys = problem.shape.lengths[sequence]
    parts = [f"{queries} queries, {keys} keys"]
    parts += ["packed"] if problem.shape.packed else []
    parts += ["window" if problem.shape.packed else "causal"] if form.causal else []
    parts += [name for name, there in (("bias", form.bias), ("dropout", form.dropout)) if there]
    return ", ".join(parts)


def _lse(problem: Problem) -> Tensor:
    shape = problem.shape
    rows = sum(queries for queries, _ in shape.lengths) if shape.packed else shape.most_queries
    return rows_tensor(1 if shape.packed else len(shape.lengths), HEADS, rows)


def _lse_expected(form: _Form, places: Array, results: Triple) -> Expected:
    if form.bias:
        return Expected("L", "LSE", form.element, places, results.exact.lse, results.plain.lse, stored=FP32)
    element, plain = (XF32, results.plain) if form.element is XF32 else (FP32, results.single)
    return Expected("L", "LSE", element, places, results.exact.lse, plain.lse)


def _blocks(rows: int, block: int) -> list[int]:
    """Return the indices of the first and the last block."""
    return sorted({0, (rows - 1) // block})


def _slice(block: int, size: int, rows: int) -> slice:
    return slice(block * size, min((block + 1) * size, rows))


def forward(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield cases for attn_fwd.

    A kernel with PERSISTENT_TYPE 2 takes its tiles from a counter. For such a kernel, a case without packed sequences
    runs one workgroup, for which the counter starts two tiles before the end.
    """
    form = _form(metadata)
    for lengths, packed in _lengths(form):
        arguments = Arguments(metadata)
        problem = _problem(form, lengths, seed, packed=packed)
        sequence = len(lengths) - 1
        rows = lengths[sequence][0]
        out, lse = problem.empty("o", keys=False, heads=HEADS), _lse(problem)
        arguments.tensors(Out=out, L=lse)
        arguments.strides(o=out.strides)
        tiles = -(-rows // form.block_m)
        counted = arguments.constant("PERSISTENT_TYPE", default=0) == 2 and not packed
        if counted:
            total = tiles * HEADS
            first = max(0, total - 2)
            todo = [(tile % tiles, tile // tiles) for tile in range(first, total)]
            only: list[Place] = [(0, 0, 0)]
            grid: Place = (1, 1, 1)
            arguments.tensors(persistent_atomic_counter=np.array([first], np.int32))
        else:
            todo = [(block, HEADS - 1) for block in _blocks(rows, form.block_m)]
            only = [form.place(block, head, sequence) for block, head in todo]
            grid = form.place(-(-problem.shape.most_queries // form.block_m), HEADS, len(lengths))
            arguments.tensors(persistent_atomic_counter=np.array([0], np.int32))
        _common(form, problem, arguments)
        expected = []
        for block, head in todo:
            part = _slice(block, form.block_m, rows)
            results = problem.results(sequence, head, part)
            places = problem.part(out.places, sequence, head, keys=False)[part]
            row_places = problem.part(lse.places, sequence, head, keys=False)[part, 0]
            expected += [
                Expected("Out", "O", form.element, places, results.exact.o, results.plain.o),
                _lse_expected(form, row_places, results),
            ]
        free = {"persistent_atomic_counter": np.array([0])} if arguments.has("persistent_atomic_counter") else {}
        yield Case(_label(form, problem, sequence), arguments.done(), grid, only, expected, free)


def _of_gradients(
    compute: Callable[[_Form, Arguments, Problem, int], tuple[Place, list[Place], list[Expected]]],
) -> Callable[[Metadata, int], Iterator[Case]]:
    """Return the function that yields cases for a backward kernel.

    Args:
        compute: a function that sets the kernel's own arguments for a sequence, and returns the grid, the workgroups
            that run, and the expected values.
    """

    def cases(metadata: Metadata, seed: int) -> Iterator[Case]:
        form = _form(metadata)
        for lengths, packed in _lengths(form):
            arguments = Arguments(metadata)
            problem = _problem(form, lengths, seed, packed=packed)
            sequence = len(lengths) - 1
            lse, delta = problem.row_numbers("lse"), problem.row_numbers("delta")
            arguments.tensors(L=lse, D=delta)
            grid, only, expected = compute(form, arguments, problem, sequence)
            _common(form, problem, arguments)
            yield Case(_label(form, problem, sequence), arguments.done(), grid, only, expected)

    return cases


def _keys_expected(
    form: _Form, arguments: Arguments, problem: Problem, sequence: int, blocks: Sequence[int]
) -> list[Expected]:
    """Set DK and DV, and return their expected values in the given blocks, summed over the heads that share keys."""
    dk, dv = (problem.empty(name, keys=True, heads=KEY_HEADS) for name in ("dk", "dv"))
    arguments.tensors(DK=dk, DV=dv)
    arguments.strides(dk=dk.strides, dv=dv.strides)
    results = [problem.results(sequence, head) for head in range(HEADS)]
    keys = problem.shape.lengths[sequence][1]
    expected = []
    for block in blocks:
        part = _slice(block, form.block_n, keys)
        for argument, tensor in (("dk", dk), ("dv", dv)):
            exact = sum(getattr(triple.exact, argument)[part] for triple in results)
            plain = form.element.rounded(sum(getattr(triple.plain, argument)[part] for triple in results))
            places = problem.part(tensor.places, sequence, 0, keys=True)[part]
            expected.append(
                Expected(argument.upper(), f"d{argument[1].upper()}", form.element, places, np.asarray(exact), plain)
            )
    return expected


def _queries_expected(
    form: _Form, arguments: Arguments, problem: Problem, sequence: int, *, blocks: Sequence[int], size: int
) -> list[Expected]:
    """Set DQ, and DB if the kernel computes it; return their expected values for the last head in the given blocks."""
    dq = problem.empty("dq", keys=False, heads=HEADS)
    arguments.tensors(DQ=dq)
    arguments.strides(dq=dq.strides)
    at = HEADS - 1
    results = problem.results(sequence, at)
    queries, keys = problem.shape.lengths[sequence]
    db = None
    if form.bias and arguments.has("DB"):
        db = Tensor(form.element, problem.bias.data.copy(), problem.bias.places, problem.bias.strides)
        arguments.tensors(DB=db)
        arguments.strides(db=db.strides)
    expected = []
    for block in blocks:
        part = _slice(block, size, queries)
        places = problem.part(dq.places, sequence, at, keys=False)[part]
        expected.append(Expected("DQ", "dQ", form.element, places, results.exact.dq[part], results.plain.dq[part]))
        if db is not None:
            places = db.places[sequence, at, part, :keys]
            expected.append(Expected("DB", "dB", form.element, places, results.exact.db[part], results.plain.db[part]))
    return expected


@_of_gradients
def keys_backward(
    form: _Form, arguments: Arguments, problem: Problem, sequence: int
) -> tuple[Place, list[Place], list[Expected]]:
    """Prepare bwd_kernel_dk_dv, which computes the gradients of keys and values."""
    blocks = _blocks(problem.shape.lengths[sequence][1], form.block_n)
    expected = _keys_expected(form, arguments, problem, sequence, blocks)
    count = -(-problem.shape.most_keys // form.block_n)
    grid = form.place(count, KEY_HEADS, len(problem.shape.lengths))
    return grid, [form.place(block, 0, sequence) for block in blocks], expected


@_of_gradients
def queries_backward(
    form: _Form, arguments: Arguments, problem: Problem, sequence: int
) -> tuple[Place, list[Place], list[Expected]]:
    """Prepare bwd_kernel_dq, which computes the gradients of queries and bias."""
    blocks = _blocks(problem.shape.lengths[sequence][0], form.block_m)
    expected = _queries_expected(form, arguments, problem, sequence, blocks=blocks, size=form.block_m)
    count = -(-problem.shape.most_queries // form.block_m)
    grid = form.place(count, HEADS, len(problem.shape.lengths))
    return grid, [form.place(block, HEADS - 1, sequence) for block in blocks], expected


@_of_gradients
def fused_backward(
    form: _Form, arguments: Arguments, problem: Problem, sequence: int
) -> tuple[Place, list[Place], list[Expected]]:
    """Prepare bwd_kernel_fuse, which computes the gradients of queries, keys, values and bias.

    Along x, the grid has a workgroup for each block of keys, and then one for each block of queries of each head.
    """
    out = problem.output()
    arguments.tensors(Out=out)
    arguments.strides(o=out.strides)
    size, (queries, keys) = form.block_n, problem.shape.lengths[sequence]
    of_keys, of_queries = _blocks(keys, size), _blocks(queries, size)
    expected = _keys_expected(form, arguments, problem, sequence, of_keys)
    expected += _queries_expected(form, arguments, problem, sequence, blocks=of_queries, size=size)
    before, each = -(-problem.shape.most_keys // size), -(-problem.shape.most_queries // size)
    places = [*of_keys, *(before + (HEADS - 1) * each + block for block in of_queries)]
    grid = (before + HEADS * each, KEY_HEADS, len(problem.shape.lengths))
    return grid, [(place, 0, sequence) for place in places], expected


def preprocess(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for bwd_preprocess, or for bwd_preprocess_varlen, which only takes packed sequences."""
    form = _form(metadata)
    packed = metadata.kernel.endswith("varlen")
    lengths = ((form.block_m + 5, 16), (form.block_m + 13, 16)) if packed else ((form.block_m + 13, 16),)
    arguments = Arguments(metadata)
    problem = _problem(form, lengths, seed, packed=packed)
    sequence, at = len(lengths) - 1, HEADS - 1
    o, delta = problem.make("o", keys=False, heads=HEADS), _lse(problem)
    arguments.tensors(Out=o, Delta=delta)
    arguments.strides(o=o.strides)
    _common(form, problem, arguments)
    rows = lengths[sequence][0]
    expected = []
    for block in _blocks(rows, form.block_m):
        part = _slice(block, form.block_m, rows)
        values = [problem.part(tensor.read(), sequence, at, keys=False)[part] for tensor in (o, problem.do)]
        products = values[0] * values[1]
        places = problem.part(delta.places, sequence, at, keys=False)[part, 0]
        plain = FP32.rounded(np.cumsum(products, 1)[:, -1])
        expected.append(Expected("Delta", "Delta", FP32, places, products.sum(1), plain))
    only = [(block, at, sequence) for block in _blocks(rows, form.block_m)]
    grid = (-(-problem.shape.most_queries // form.block_m), HEADS, len(lengths))
    label = f"{rows} rows{', packed' if packed else ''}"
    yield Case(label, arguments.done(), grid, only, expected)


def random_numbers(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case for debug_simulate_encoded_softmax, whose results are positive where dropout keeps an element."""
    arguments = Arguments(metadata)
    element = element_of(metadata, "R")
    block_m, block_n = int(arguments.constant("BLOCK_M")), int(arguments.constant("BLOCK_N"))
    rows, columns, sequence, at = block_m + 13, 2 * block_n + 5, 1, HEADS - 1
    shape = Shape(((rows, columns),) * 2, heads=HEADS, key_heads=HEADS, head=16, pitch=16)
    problem = Problem(element, shape, 1.0, seed, dropout=_DROPOUT)
    signs = problem.bias
    arguments.tensors(
        R=signs, philox_seed_ptr=np.array([_DROPOUT.seed], np.uint64),
        philox_offset1=np.array([_DROPOUT.offset - 5], np.uint64),
    )  # fmt: skip
    arguments.strides(r=signs.strides)
    arguments.numbers(
        dropout_p=_DROPOUT.probability, Num_head_q=HEADS, Max_seqlen_q=rows, Max_seqlen_k=columns, philox_offset2=5
    )
    exact = np.where(np.asarray(problem.kept(sequence, at)), 0.5, -0.5)
    expected = [Expected("R", "signs", element, signs.places[sequence, at], exact, exact)]
    blocks = -(-rows // block_m)
    only = [(block, at, sequence) for block in range(blocks)]
    yield Case(f"{rows} x {columns}", arguments.done(), (blocks, HEADS, 2), only, expected)


_CASES: Mapping[tuple[str, str], Callable[[Metadata, int], Iterator[Case]]] = {
    ("fwd_kernel.py", "attn_fwd"): forward,
    ("bwd_kernel_dk_dv.py", "bwd_kernel_dk_dv"): keys_backward,
    ("bwd_kernel_dq.py", "bwd_kernel_dq"): queries_backward,
    ("bwd_kernel_fuse.py", "bwd_kernel_fuse"): fused_backward,
    ("bwd_preprocess.py", "bwd_preprocess"): preprocess,
    ("bwd_preprocess.py", "bwd_preprocess_varlen"): preprocess,
    ("dropout_rng.py", "debug_simulate_encoded_softmax"): random_numbers,
}
# AOTriton up to 0.12b compiles all kernels from flash.py, which imports the other files.
CASES = {**_CASES, **{("flash.py", kernel): cases for (_, kernel), cases in _CASES.items()}}
