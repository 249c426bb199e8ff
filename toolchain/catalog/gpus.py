"""AMD's GPUs: market names, LLVM's names, and the flags of their code objects."""

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
    """A row of data/gpus.toml, which describes the fields."""

    name: str
    mach: int
    market: tuple[str, ...]


_GPUS = {row["name"]: Gpu(**{**row, "market": tuple(row["market"])}) for row in load("gpus")["gpu"]}


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


_BY_KEY = {_key(name): gpu.name for gpu in _GPUS.values() for name in (gpu.name, *gpu.market)}
_LONGEST = max(len(name.split()) for gpu in _GPUS.values() for name in gpu.market) + 2  # `RX 7900 XTX` has three words


def known_gpus() -> tuple[str, ...]:
    """Return all GPUs by LLVM's names, sorted as text."""
    return tuple(sorted(_GPUS))


def parse_gpus(text: str) -> tuple[str, ...]:
    """Return LLVM names from a list of LLVM or market names, such as `gfx942,MI250;RX 7900 XTX`, sorted.

    Names are separated by `;`, `,` or spaces; case, spaces, `-` and `_` inside a name are ignored.
    """
    gpus: set[str] = set()
    for part in re.split(r"[;,]", text):
        words = part.split()
        while words:
            # The longest run of words that is a name, so that `Strix Halo` and `gfx942 MI250` both read.
            for count in range(min(_LONGEST, len(words)), 0, -1):
                if gpu := _BY_KEY.get(_key("".join(words[:count]))):
                    gpus.add(gpu)
                    del words[:count]
                    break
            else:
                raise _unknown(words[0], " ".join(words))
    return tuple(sorted(gpus))


def machine_flag(gpu: str) -> int:
    """Return EF_AMDGPU_MACH, the low byte of the ELF flags of a GPU's code objects."""
    return _GPUS[check_gpu(gpu)].mach


def gpu_of_flag(mach: int) -> str | None:
    """Return the GPU whose code objects have this flag; None if there is none."""
    return next((gpu.name for gpu in _GPUS.values() if gpu.mach == mach), None)


def short_list(gpus: Sequence[str]) -> str:
    """Return the part of image and file names that depends on the GPUs.

    Up to three are named, as in `gfx1100-gfx942`; more are `5gpus` and 6 digits of their digest. The result depends
    only on `gpus`, so that a new row in the table of GPUs changes no name.
    """
    names = sorted(set(gpus))
    return "-".join(names) if len(names) <= 3 else f"{len(names)}gpus{sha256_json(names).removeprefix('sha256:')[:6]}"


def check_gpu(gpu: str) -> str:
    """Return a GPU by LLVM's name, or refuse an unknown one."""
    if gpu not in _GPUS:
        raise _unknown(gpu, gpu)
    return gpu


def _unknown(word: str, rest: str) -> UnsupportedError:
    if ":" in word and word.split(":", 1)[0].lower() in _GPUS:
        return UnsupportedError(
            "gpu-features",
            f"the GPU {word} names features",
            why="kernels are compiled for a GPU with its default features",
            fix=f"give {word.split(':', 1)[0].lower()}",
        )
    if _key(word) in load("gpus")["unsupported"]:
        return UnsupportedError(
            "gpu-without-kernels",
            f"no kernels are built for {word}",
            why=f"AOTriton and flash-attn have none for it; they have for {', '.join(known_gpus())}",
            fix="leave it out of --gpu; LLVM and Triton are built without naming a GPU",
        )
    close: dict[str, None] = {}
    for wanted in (_key(word), _key(rest)):
        close.update(dict.fromkeys(difflib.get_close_matches(wanted, _BY_KEY, n=3, cutoff=0.6)))
    written = {_key(name): name for gpu in _GPUS.values() for name in (gpu.name, *gpu.market)}
    hint = f"did you mean {' or '.join(written[key] for key in list(close)[:3])}? " if close else ""
    return UnsupportedError(
        "unknown-gpu",
        f"unknown GPU {word!r}",
        why=f"known: {', '.join(known_gpus())}, and market names such as MI300X or Strix Halo",
        fix=f"{hint}names are separated by `,` or `;`",
    )
