"""AMD GPUs: their market names, LLVM's names for them, and the ELF flags of their code objects."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.core.digest import sha256_json
from toolchain.core.errors import UnsupportedError
from toolchain.data import load


@dataclass(frozen=True)
class Gpu:
    """A row of data/gpus.toml, which documents the fields."""

    name: str
    mach: int
    market: tuple[str, ...]


_GPUS = {row["name"]: Gpu(**{**row, "market": tuple(row["market"])}) for row in load("gpus")["gpu"]}
_UNSUPPORTED: dict[str, int] = load("gpus")["unsupported"]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


_BY_KEY = {_key(name): gpu.name for gpu in _GPUS.values() for name in (gpu.name, *gpu.market)}
# This is the maximum number of words in a GPU's name: two more than in the longest market name, because users often add
# spaces, as in `MI 300 X`.
_LONGEST = max(len(name.split()) for gpu in _GPUS.values() for name in gpu.market) + 2


def known_gpus() -> tuple[str, ...]:
    """Return LLVM's names for all known GPUs, sorted as text."""
    return tuple(sorted(_GPUS))


def parse_gpus(text: str) -> tuple[str, ...]:
    """Parse a list of LLVM or market names, such as `gfx942,MI250;RX 7900 XTX`, into sorted LLVM names.

    Names are separated by `;`, `,` or spaces. Case, spaces, `-` and `_` inside a name are ignored. Raise an
    UnsupportedError if a name is unknown or not supported.
    """
    gpus: set[str] = set()
    for part in re.split(r"[;,]", text):
        words = part.split()
        while words:
            # Take the largest number of words that form a name, so that `Strix Halo` is read as one GPU and `gfx942
            # MI250` as two.
            for count in range(min(_LONGEST, len(words)), 0, -1):
                if gpu := _BY_KEY.get(_key("".join(words[:count]))):
                    gpus.add(gpu)
                    del words[:count]
                    break
            else:
                raise _unknown(words[0], " ".join(words), market=True)
    return tuple(sorted(gpus))


def machine_flag(gpu: str) -> int:
    """Return EF_AMDGPU_MACH, the low byte of the ELF flags of a GPU's code objects.

    Raise an UnsupportedError if `gpu` is not LLVM's name for a known GPU.
    """
    return _GPUS[check_gpu(gpu)].mach


def gpu_of_flag(mach: int) -> str | None:
    """Return LLVM's name for the known GPU whose code objects have this machine flag; None for any other flag."""
    return next((gpu.name for gpu in _GPUS.values() if gpu.mach == mach), None)


def any_gpu_of_flag(mach: int) -> str | None:
    """Return the name that `gpu_of_flag` returns, or the name of an unsupported GPU with this machine flag, or None."""
    return gpu_of_flag(mach) or next((name for name, flag in _UNSUPPORTED.items() if flag == mach), None)


def short_list(gpus: Sequence[str]) -> str:
    """Return a short text that stands for a set of GPUs in image and file names.

    Up to three GPUs are listed, as in `gfx1100-gfx942`. More than three are replaced by their number and 6 hex digits
    of a digest, as in `5gpus0a1b2c`.
    """
    names = sorted(set(gpus))
    return "-".join(names) if len(names) <= 3 else f"{len(names)}gpus{sha256_json(names).removeprefix('sha256:')[:6]}"


def check_gpu(gpu: str) -> str:
    """Return `gpu`, LLVM's name for a GPU; raise an UnsupportedError if it is unknown."""
    if gpu not in _GPUS:
        raise _unknown(gpu, gpu, market=False)
    return gpu


def _unknown(word: str, rest: str, *, market: bool) -> UnsupportedError:
    """Return an error for an unknown GPU; `market` is whether market names are accepted and may be suggested."""
    if ":" in word and word.split(":", 1)[0].lower() in _GPUS:
        return UnsupportedError(
            "gpu-features",
            f"the GPU {word} has feature flags",
            why="kernels are always compiled for the default features of a GPU",
            fix=f"use {word.split(':', 1)[0].lower()}",
        )
    if _key(word) in map(_key, _UNSUPPORTED):
        return UnsupportedError(
            "gpu-without-kernels",
            f"no kernels are built for {word}",
            why=f"AOTriton and flash-attn support only {', '.join(known_gpus())}",
            fix="remove it from --gpu; LLVM and Triton are built for all GPUs",
        )
    close: dict[str, None] = {}
    for wanted in (_key(word), _key(rest)):
        close.update(dict.fromkeys(difflib.get_close_matches(wanted, _BY_KEY, n=3, cutoff=0.6)))
    written = {_key(name): name for gpu in _GPUS.values() for name in (gpu.name, *gpu.market)} if market else _BY_KEY
    near = dict.fromkeys(written[key] for key in list(close)[:3])
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UnsupportedError(
        "unknown-gpu",
        f"unknown GPU {word!r}",
        why=f"known: {', '.join(known_gpus())}{', and market names such as MI300X or Strix Halo' if market else ''}",
        fix=f"{hint}{'separate names with `,` or `;`' if market else 'write the name that LLVM has for the GPU'}",
    )
