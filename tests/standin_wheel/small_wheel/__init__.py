"""A wheel as calls.py expects: its function launches Triton kernels, and uses only the PyTorch of torch.py."""

# ruff: noqa: ANN001, ANN201, N803 - Triton kernels have no annotations and use capitals for constants

from __future__ import annotations

import importlib

import torch
import triton
import triton.language as tl

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def power(x):
    return tl.exp2(x * LOG2_E)


@triton.jit
def sigmoid(x, y):
    tl.store(y, 1 / (1 + power(-tl.load(x).to(tl.float32))))


@triton.jit
def tanh(x, y):
    tl.store(y, 1 - 2 / (1 + power(2 * tl.load(x).to(tl.float32))))


@triton.jit
def scale(x, y, SEQ: tl.constexpr):
    at = tl.arange(0, SEQ)
    tl.store(y + at, tl.load(x + at) * 2)


@triton.jit
def delta(x, y, count):
    at = tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)


@triton.jit
def wide(x, y, SIZE: tl.constexpr):
    a = tl.arange(0, SIZE)
    left = tl.load(x + a[:, None] * SIZE + a[None, :])
    tl.store(y + a[:, None] * SIZE + a[None, :], tl.dot(left, left).to(tl.float16))


@triton.jit
def broken(x, y):
    tl.store(y, tl.load(x) + "text")


def attend(kind: str, dtype: str, seq: int) -> None:
    """Launch the kernel that `kind` names, or `scale`, followed by `delta` for `backward`."""
    if dtype == "fp8":
        raise RuntimeError("this device does not support fp8")
    if kind == "absent":
        importlib.import_module("nowhere_at_all")
    x = torch.Tensor(_TYPES[dtype])
    if kind == "wide":
        wide[(1,)](x, x, seq)
    elif kind in ("broken", "sigmoid", "tanh"):
        {"broken": broken, "sigmoid": sigmoid, "tanh": tanh}[kind][(1,)](x, x)
    else:
        scale[(1,)](x, x, seq)
        if kind == "backward":
            delta[(1,)](x, x, 48)
