"""Compute attention and its gradients in float64, with or without roundings to a narrower type.

The roundings are made where PyTorch's `math` backend stores intermediate results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Round = Callable[[Array], Array]
Product = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Inputs:
    """The inputs to attention for one head.

    Args:
        q, k, v, do: the queries, keys, values and the gradient of the output, `float64[rows, columns]`. If `do` is
            None, no gradients are computed.
        scale: the factor by which scores are multiplied.
        visible: which keys each query may attend to, `bool[queries, keys]`.
        bias: the numbers that are added to the scores, `float64[queries, keys]`; None if there is no bias.
        keep: which elements dropout keeps, `bool[queries, keys]`; None if there is no dropout.
        drop: the probability with which dropout drops an element.
    """

    q: Array
    k: Array
    v: Array
    do: Array | None
    scale: float
    visible: Array
    bias: Array | None = None
    keep: Array | None = None
    drop: float = 0.0


@dataclass(frozen=True)
class Results:
    """The results of attention for one head.

    Args:
        lse: the log-sum-exp of each query's scores; infinity if the query may attend to no key.
        delta: for each row, the scalar product of the output and its gradient; empty if no gradients are computed.
        dq, dk, dv, db: the gradients of q, k, v and the bias; empty if no gradients are computed.
    """

    o: Array
    lse: Array
    delta: Array
    dq: Array
    dk: Array
    dv: Array
    db: Array


def exactly(values: Array) -> Array:
    """Return `values` unchanged."""
    return values


def summed_singly(a: Array, b: Array) -> Array:
    """Return the product of two matrices, computed in float32 by a loop that rounds each product and each sum."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for k in range(left.shape[1]):
        total += left[:, k, None] * right[k]
    return total.astype(np.float64)


def summed_from_xf32(a: Array, b: Array) -> Array:
    """Truncate two matrices to 10 mantissa bits, as gfx942 does for xf32, and return `summed_singly` of them."""
    kept = np.uint32(0xFFFFE000)
    left, right = ((np.ascontiguousarray(each, np.float32).view(np.uint32) & kept).view(np.float32) for each in (a, b))
    return summed_singly(left, right)


def attention(given: Inputs, rounded: Round = exactly, product: Product = np.matmul) -> Results:
    """Compute attention and its gradients for one head.

    Args:
        rounded: a function that rounds each result that PyTorch's `math` backend would store.
        product: a function that multiplies matrices.
    """
    root = np.sqrt(given.scale)
    q, k = rounded(given.q * root), rounded(given.k * root)
    s = rounded(product(q, k.T))
    if given.bias is not None:
        s = rounded(s + given.bias)
    s = np.where(given.visible, s, -np.inf)
    top = s.max(1, keepdims=True, initial=-np.inf)
    empty = ~given.visible.any(1)
    weights = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = weights.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(empty, np.inf, (top + np.log(total))[:, 0])
    p = rounded(weights / np.where(total == 0, 1, total))
    factor = 1.0 if given.keep is None else given.keep / (1 - given.drop)
    dropped = rounded(p * factor)
    o = rounded(product(dropped, given.v))
    if given.do is None:
        none = np.empty(0)
        return Results(o, lse, none, none, none, none, none)
    dv = rounded(product(dropped.T, given.do))
    dp = rounded(rounded(product(given.do, given.v.T)) * factor)
    delta = (o * given.do).sum(1)
    # The gradient of softmax is a single operation in PyTorch, so it is rounded only once.
    ds = rounded(p * (dp - (p * dp).sum(1, keepdims=True)))
    dq, dk = rounded(rounded(product(ds, k)) * root), rounded(rounded(product(ds.T, q)) * root)
    return Results(o, lse, delta, dq, dk, dv, ds)


def window(queries: Array, keys: int, left: int, right: int) -> Array:
    """Return which keys are at most `left` before or `right` after each query's position, `bool[queries, keys]`."""
    row, column = queries[:, None], np.arange(keys)[None]
    return (column <= row + right) & (column >= row - left)
