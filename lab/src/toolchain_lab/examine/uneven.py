"""Find kernels that a folder, an archive or an image contains for one GPU but not for another."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from toolchain.catalog.aotriton_generations import pack
from toolchain.catalog.gpus import known_gpus
from toolchain_lab.examine.kernels import Kernel

_GPU = re.compile("|".join(sorted({*known_gpus(), *map(pack, known_gpus())}, key=len, reverse=True)))
_MOST_DIFFERING = 10_000  # lines; in hipBLASLt nearly each of some 100,000 kernels is for one GPU


@dataclass
class Uneven:
    """Lines about the kernels and functions that a GPU lacks and another GPU has.

    Args:
        missing: the lines about faults; see `uneven` for the conditions.
        differing: the lines about kernels and functions whose absence may be intended, at most `_MOST_DIFFERING`.
        more: the number of further such lines.
    """

    missing: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, line: str, *, fault: bool) -> None:
        if fault:
            self.missing.append(line)
        elif len(self.differing) < _MOST_DIFFERING:
            self.differing.append(line)
        else:
            self.more += 1


def uneven(kernels: Iterable[Kernel], required: Collection[str]) -> Uneven:
    """Compare the kernels for each GPU with those for the other GPUs.

    A missing kernel is a fault if all kernels of the function that the GPU has also exist for another GPU, and the
    compilation inputs of these kernels and of the missing one are known. A missing function is a fault if the GPU is in
    `required`, and a kernel of the function for another GPU has known compilation inputs or is in a pack. Other
    differences may be intended, because kernels may be written or tuned for each GPU.

    Args:
        required: the GPUs for which kernels are required; if empty, all GPUs are compared.
    """
    by_gpu: dict[str, dict[str, dict[str, Kernel]]] = {gpu: {} for gpu in required}
    for kernel in kernels:
        if kernel.facts is not None:
            functions = by_gpu.setdefault(kernel.gpu, {})
            functions.setdefault(kernel.family, {})[_GPU.sub("*", kernel.key)] = kernel
    result = Uneven()
    for gpu, own in by_gpu.items():
        if required and gpu not in required:
            continue
        for family in sorted({name for functions in by_gpu.values() for name in functions}):
            others = [functions[family] for other, functions in by_gpu.items() if other != gpu and family in functions]
            if family not in own:
                made = any(kernel.launch or kernel.packed for other in others for kernel in other.values())
                result.add(f"{gpu} lacks {family}", fault=made and bool(required))
                continue
            for variant, made in _lacking(own[family], others):
                result.add(f"{gpu} lacks {family}: {variant}", fault=made)
    return result


def _lacking(own: dict[str, Kernel], others: Iterable[dict[str, Kernel]]) -> Iterator[tuple[str, bool]]:
    """Yield the kernels of a function that exist only for other GPUs, each with whether its absence is a fault."""
    lacking: dict[str, bool] = {}
    for other in others:
        if own.keys().isdisjoint(other):
            continue  # if no kernel is common to both GPUs, they cannot be compared
        same = own.keys() < other.keys() and all(kernel.launch for kernel in own.values())
        for variant in other.keys() - own.keys():
            lacking[variant] = lacking.get(variant, False) or (same and bool(other[variant].launch))
    yield from sorted(lacking.items())
