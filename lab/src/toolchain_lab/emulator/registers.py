"""The registers that operands name, and the numbers that represent them in sets of registers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from toolchain_lab.emulator.wave import EXEC, NULL, TTMP, VCC

# In sets of registers, a scalar register is represented by the number that encodes it, vector register n by VECTOR + n,
# and SCC by a number that stands for no other register.
Registers = frozenset[int]
VECTOR = 1000
SCC = 999
_SINGLE = re.compile(r"([vas]|ttmp)(\d+)(\.[lh])?$")
_RANGE = re.compile(r"([vas]|ttmp)\[(\d+):(\d+)\]$")
_NEGATED_NUMBER = re.compile(r"-[\d.]")
_SPECIAL = {"vcc_lo": VCC, "vcc_hi": VCC + 1, "vcc": VCC, "exec_lo": EXEC, "exec_hi": EXEC + 1, "exec": EXEC}
_PAIRS = frozenset({"vcc", "exec"})
EXECS: Registers = frozenset({EXEC, EXEC + 1})


@dataclass(frozen=True, slots=True)
class Register:
    """A register, or a range of consecutive registers.

    Args:
        vector: whether these are vector registers. AGPRs are the vector registers from number 256.
        index: the number of the first register.
        half: 0 or 1 if the operand is only the lower or only the upper half of a register, as in `v1.h`; otherwise
            None.
    """

    vector: bool
    index: int
    count: int
    half: int | None = None

    @property
    def names(self) -> range:
        """The numbers that represent the registers in sets of registers."""
        start = self.index + (VECTOR if self.vector else 0)
        return range(start, start + self.count)


@dataclass(frozen=True, slots=True)
class Signed:
    """The text of an operand without the modifiers `neg` and `abs`, and whether the operand has each of them."""

    text: str
    negate: bool
    absolute: bool


@lru_cache(maxsize=4096)
def register_of(text: str, generation: int) -> Register | None:
    """Return the register that an operand names; None for other operands, such as constants and `scc`."""
    if match := _SINGLE.match(text):
        kind, index, count, half = match[1], int(match[2]), 1, match[3]
    elif match := _RANGE.match(text):
        kind, index, half = match[1], int(match[2]), None
        count = int(match[3]) - index + 1
    elif text in _SPECIAL:
        return Register(vector=False, index=_SPECIAL[text], count=2 if text in _PAIRS else 1)
    elif text == "m0":
        return Register(vector=False, index=124 if generation == 9 else 125, count=1)
    elif text == "null" and generation > 9:
        return Register(vector=False, index=NULL, count=1)
    else:
        return None
    if kind == "ttmp":
        index += TTMP
    if kind == "a":
        index += 256
    return Register(kind in "va", index, count, None if half is None else int(half == ".h"))


@lru_cache(maxsize=4096)
def signs_of(text: str) -> Signed:
    """Split the text of an operand into the operand and its modifiers `neg` and `abs`."""
    negate = absolute = False
    if text.startswith("-") and not _NEGATED_NUMBER.match(text):
        negate, text = True, text[1:]
    if text.startswith("|") and text.endswith("|"):
        absolute, text = True, text[1:-1]
    for name in ("neg", "abs"):
        if text.startswith(f"{name}(") and text.endswith(")"):
            negate, absolute, text = negate or name == "neg", absolute or name == "abs", text[4:-1]
    return Signed(text, negate, absolute)
