"""Define an attention problem: its tensors in memory, and the expected results for each head."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain_lab.numbers.elements import FP32, XF32, Element, Tensor, rows_tensor, tensor
from toolchain_lab.numbers.philox import random_words
from toolchain_lab.numbers.reference import Inputs, Results, attention, summed_from_xf32, summed_singly, window

Array = NDArray[Any]
_ALL = slice(None)


@dataclass(frozen=True)
class Dropout:
    """The parameters of dropout: its probability, and the seed and the offset of its random numbers."""

    probability: float
    seed: int
    offset: int


@dataclass(frozen=True)
class Shape:
    """The sizes of a problem.

    Args:
        lengths: the numbers of queries and of keys in each sequence. They must be the same in all sequences unless
            `packed` is set.
        packed: whether all sequences are concatenated in one batch, so that their lengths may differ.
        heads, key_heads: the number of heads of the queries, and the number of heads of the keys and values.
        head: the number of columns of a head that hold values.
        pitch: the number of columns that a head takes up in memory.
    """

    lengths: tuple[tuple[int, int], ...]
    heads: int
    key_heads: int
    head: int
    pitch: int
    packed: bool = False

    @property
    def most_queries(self) -> int:
        return max(queries for queries, _ in self.lengths)

    @property
    def most_keys(self) -> int:
        return max(keys for _, keys in self.lengths)


@dataclass(frozen=True)
class Triple:
    """The results for one head: in float64, by a plain implementation in the tensors' type, and by one in float32."""

    exact: Results
    plain: Results
    single: Results


@dataclass(frozen=True)
class Problem:
    """An attention problem with random inputs.

    Args:
        scale: the factor by which scores are multiplied.
        window: the numbers of visible keys before and after the position of a query; None if all keys are visible. If
            the first number is None, all earlier keys are visible. If the second is None, the window ends at the
            diagonal through the last query and the last key.
    """

    element: Element
    shape: Shape
    scale: float
    seed: int
    window: tuple[int | None, int | None] | None = None
    with_bias: bool = False
    dropout: Dropout | None = None
    _done: dict[tuple[int, int, int | None, int | None], Triple] = field(
        default_factory=dict, repr=False, compare=False
    )

    def _random(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *name.encode()])

    def make(self, name: str, *, keys: bool, heads: int) -> Tensor:
        """Return a tensor of normally distributed random numbers, with rows for queries or for keys."""
        shape = self.shape
        if shape.packed:
            batch, rows = 1, sum(pair[keys] for pair in shape.lengths)
        else:
            batch, rows = len(shape.lengths), shape.most_keys if keys else shape.most_queries
        return tensor(
            self.element, (batch, heads, rows, shape.head), self._random(name).standard_normal, pitch=shape.pitch
        )

    def empty(self, name: str, *, keys: bool, heads: int) -> Tensor:
        """Return a tensor for a result. It contains random numbers, so that a missing write is noticed."""
        made = self.make(f"old {name}", keys=keys, heads=heads)
        return replace(made, data=made.data.copy())

    @cached_property
    def q(self) -> Tensor:
        return self.make("q", keys=False, heads=self.shape.heads)

    @cached_property
    def k(self) -> Tensor:
        return self.make("k", keys=True, heads=self.shape.key_heads)

    @cached_property
    def v(self) -> Tensor:
        return self.make("v", keys=True, heads=self.shape.key_heads)

    @cached_property
    def do(self) -> Tensor:
        return self.make("do", keys=False, heads=self.shape.heads)

    @cached_property
    def bias(self) -> Tensor:
        """The bias, a tensor [batch, head, query, key] in which the stride between keys is 1."""
        shape = self.shape
        size = (len(shape.lengths), shape.heads, shape.most_queries, shape.most_keys)
        return tensor(self.element, size, self._random("bias").standard_normal, pitch=-(-shape.most_keys // 16) * 16)

    def starts(self, *, keys: bool) -> list[int]:
        """Return the first row of each sequence, and the end of the last one; zeros if sequences are not packed."""
        if not self.shape.packed:
            return [0] * (len(self.shape.lengths) + 1)
        return [0, *np.cumsum([pair[keys] for pair in self.shape.lengths]).tolist()]

    def rows(self, sequence: int, *, keys: bool) -> slice:
        """Return the rows that a sequence takes up in tensors, as a slice."""
        start = self.starts(keys=keys)[sequence]
        return slice(start, start + self.shape.lengths[sequence][keys])

    def batch(self, sequence: int) -> int:
        """Return the index of the batch that contains a sequence."""
        return 0 if self.shape.packed else sequence

    def part(self, values: Array, sequence: int, head: int, *, keys: bool) -> Array:
        """Return the rows of one head of a sequence from an array `[batch, head, row, …]`."""
        rows: Array = values[self.batch(sequence), head, self.rows(sequence, keys=keys)]
        return rows

    def visible(self, sequence: int, rows: slice = _ALL) -> Array:
        """Return which keys the queries in `rows` of a sequence may see, as `bool[queries, keys]`."""
        queries, keys = self.shape.lengths[sequence]
        chosen = np.arange(queries)[rows]
        if self.window is None:
            return np.ones((len(chosen), keys), np.bool_)
        left, right = self.window
        return window(chosen, keys, queries if left is None else left, keys - queries if right is None else right)

    def kept(self, sequence: int, head: int) -> Array | None:
        """Return which elements dropout keeps, as `bool[queries, keys]`; None if there is no dropout.

        In AOTriton, four consecutive keys use the four random words for one offset, in the order 0 2 1 3.
        """
        if self.dropout is None:
            return None
        shape = self.shape
        queries, keys = shape.lengths[sequence]
        stride = -(-shape.most_keys // 4)
        base = self.dropout.offset + (sequence * shape.heads + head) * shape.most_queries * stride
        offsets = base + np.arange(queries)[:, None] * stride + np.arange(-(-keys // 4))[None]
        words = random_words(self.dropout.seed, offsets.astype(np.uint64))
        drawn = np.stack([words[k] for k in (0, 2, 1, 3)], axis=-1).reshape(queries, -1)[:, :keys].view(np.int32)
        edge = np.int32((np.float32(self.dropout.probability) - np.float32(0.5)) * np.float32(0xFFFFFFFF))
        return drawn > edge

    def inputs(self, sequence: int, head: int, rows: slice = _ALL) -> Inputs:
        """Return the inputs to attention for one head of a sequence.

        Args:
            rows: the queries to include. `do`, the gradient of the output, is None unless all queries are included.
        """
        shared = head // (self.shape.heads // self.shape.key_heads)
        bias = None
        if self.with_bias:
            queries, keys = self.shape.lengths[sequence]
            bias = self.bias.read()[sequence, head, :queries, :keys][rows]
        kept = self.kept(sequence, head)
        return Inputs(
            q=self.part(self.q.read(), sequence, head, keys=False)[rows],
            k=self.part(self.k.read(), sequence, shared, keys=True),
            v=self.part(self.v.read(), sequence, shared, keys=True),
            do=self.part(self.do.read(), sequence, head, keys=False) if rows == _ALL else None,
            scale=self.scale,
            visible=self.visible(sequence, rows),
            bias=bias,
            keep=None if kept is None else kept[rows],
            drop=self.dropout.probability if self.dropout else 0.0,
        )

    def results(self, sequence: int, head: int, rows: slice = _ALL) -> Triple:
        """Return the expected results for one head of a sequence; they are cached."""
        key = (sequence, head, rows.start, rows.stop)
        if key not in self._done:
            given = self.inputs(sequence, head, rows)
            single = attention(given, FP32.rounded, summed_singly)
            product = summed_from_xf32 if self.element is XF32 else np.matmul
            plain = single if self.element is FP32 else attention(given, self.element.rounded, product)
            self._done[key] = Triple(attention(given), plain, single)
        return self._done[key]

    def row_numbers(self, name: str) -> Tensor:
        """Return the values of all rows as a float32 tensor for a backward pass.

        Args:
            name: the values to return, `lse` or `delta`.
        """
        shape = self.shape
        if shape.packed:
            batch, rows = 1, sum(queries for queries, _ in shape.lengths)
        else:
            batch, rows = len(shape.lengths), shape.most_queries
        values = np.full((batch, shape.heads, rows), np.nan)
        for sequence in range(len(shape.lengths)):
            for head in range(shape.heads):
                place = (self.batch(sequence), head, self.rows(sequence, keys=False))
                results = self.results(sequence, head)
                # For xf32, the plain results are used, because a backward pass computes the scores again, and the error
                # of the LSE must match theirs.
                values[place] = getattr(results.plain if self.element is XF32 else results.exact, name)
        return rows_tensor(batch, shape.heads, rows, values)

    def output(self) -> Tensor:
        """Return the output of the forward pass for all rows, as an input to a backward pass."""
        made = self.empty("o", keys=False, heads=self.shape.heads)
        for sequence in range(len(self.shape.lengths)):
            for head in range(self.shape.heads):
                places = self.part(made.places, sequence, head, keys=False)
                made.data[places] = self.element.encode(self.results(sequence, head).exact.o)
        return made
