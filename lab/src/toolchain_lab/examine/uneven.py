"""Find kernels that one GPU of a place has and another GPU lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from toolchain.catalog.aotriton_generations import pack
from toolchain.catalog.gpus import known_gpus
from toolchain_lab.examine.kernels import Kernel

_GPU = re.compile("|".join(sorted({*known_gpus(), *map(pack, known_gpus())}, key=len, reverse=True)))


@dataclass
class Uneven:
    """The kernels and functions that GPUs lack.

    Args:
        missing: kernels and functions that the same campaign made for another GPU, which is a fault.
        differing: kernels and functions that may differ by GPU on purpose, such as hand-written kernels, and functions
            that no required GPU lacks.
    """

    missing: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def uneven(kernels: Iterable[Kernel], required: Collection[str]) -> Uneven:
    """Compare the GPUs of a place with each other.

    A missing kernel is a fault if the other kernels of its function are the same for both GPUs, and have JSON files
    with their source. A missing function is a fault if its GPU is required, and the function has a source or is in a
    pack. Other differences may be intended, because kernels are written or tuned for each GPU.

    Args:
        required: the requested GPUs; if there are none, all GPUs are compared.
    """
    by_gpu: dict[str, dict[str, dict[str, Kernel]]] = {gpu: {} for gpu in required}
    for kernel in kernels:
        if kernel.facts is not None:
            functions = by_gpu.setdefault(kernel.gpu, {})
            functions.setdefault(kernel.family, {})[_variant(kernel)] = kernel
    result = Uneven()
    for gpu, own in by_gpu.items():
        if required and gpu not in required:
            continue
        for family in sorted({name for functions in by_gpu.values() for name in functions}):
            others = [functions[family] for other, functions in by_gpu.items() if other != gpu and family in functions]
            if family not in own:
                made = any(kernel.launch or kernel.packed for other in others for kernel in other.values())
                (result.missing if made and required else result.differing).append(f"{gpu} lacks {family}")
                continue
            for variant, made in _lacking(own[family], others):
                (result.missing if made else result.differing).append(f"{gpu} lacks {family}: {variant}")
    return result


def _lacking(own: dict[str, Kernel], others: Iterable[dict[str, Kernel]]) -> Iterator[tuple[str, bool]]:
    """Yield the kernels of one function that other GPUs have, each with whether its absence is a fault."""
    lacking: dict[str, bool] = {}
    for other in others:
        if own.keys().isdisjoint(other):
            continue  # without a common name the kernels cannot be compared
        same = own.keys() < other.keys() and all(kernel.launch for kernel in own.values())
        for variant in other.keys() - own.keys():
            lacking[variant] = lacking.get(variant, False) or (same and bool(other[variant].launch))
    yield from sorted(lacking.items())


def _variant(kernel: Kernel) -> str:
    """Return a kernel's key without its GPU."""
    return _GPU.sub("*", kernel.key)
