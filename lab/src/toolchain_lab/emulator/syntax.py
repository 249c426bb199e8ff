"""Parsing of a disassembled instruction into its mnemonic, operands and modifiers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from toolchain_lab.emulator.disassembly import Line
from toolchain_lab.emulator.errors import NotEmulatedError

_SUFFIX = re.compile(r"_(e32|e64|e64_dpp|dpp|dpp8|sdwa)$")
_VECTORS = "op_sel|op_sel_hi|neg_lo|neg_hi|quad_perm|dpp8|matrix_a_fmt|matrix_b_fmt"
_VALUES = (
    "offset|offset0|offset1|row_shl|row_shr|row_ror|row_bcast|row_newbcast|row_share|row_xmask|row_mask|bank_mask"
    "|bound_ctrl|fi|dst_sel|dst_unused|src0_sel|src1_sel|mul|div|th|scope|cbsz|abid|blgp|wave_shl|wave_shr|wave_ror"
    "|wave_rol|bitop3|byte_sel|format|index_key"
)
_FLAGS = "clamp|glc|slc|dlc|nt|sc0|sc1|offen|idxen|lds|gds|tfe|row_mirror|row_half_mirror"
_MODIFIER = re.compile(rf"(?:^|\s)((?:{_VECTORS}):\[[^\]]*\]|offset:swizzle\([^)]*\)|(?:{_VALUES}):\S+|(?:{_FLAGS}))$")
_COMMA = re.compile(r",(?![^\[(]*[\])])")
# These modifiers can be ignored, because they select cache policies. For atomic instructions, some of them also
# determine whether the old value is returned; the module `atomics` queries those.
_POLICY = frozenset({"glc", "slc", "dlc", "nt", "sc0", "sc1", "th", "scope"})


class Modifiers:
    """The modifiers of an instruction, with a record of the queried ones, so that unknown ones can be refused."""

    __slots__ = ("_asked", "_values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __len__(self) -> int:
        return len(self._values)

    def flag(self, name: str) -> bool:
        """Return whether the instruction has the modifier `name`, which takes no value, such as `clamp`."""
        self._asked.add(name)
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        self._asked.add(name)
        return self._values.get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        """Return the number of a modifier such as `offset:16`; `default` if the instruction lacks the modifier."""
        text = self.text(name)
        return int(text, 0) if text else default

    def vector(self, name: str, default: Sequence[int]) -> list[int]:
        """Return the numbers of a modifier such as `op_sel:[0,1]`; `default` if the instruction lacks the modifier."""
        text = self.text(name)
        return [int(part) for part in text.strip("[]").split(",")] if text else list(default)

    def names(self) -> frozenset[str]:
        return frozenset(self._values)

    def left(self) -> list[str]:
        """Return the modifiers that were not queried, except cache policies."""
        return sorted(self._values.keys() - self._asked - _POLICY) if self._values else []


@dataclass(slots=True, eq=False)
class Instruction:
    """A parsed instruction.

    Args:
        name: the mnemonic without the suffix for its encoding.
        suffix: the suffix for the encoding: `e32`, `e64`, `dpp`, `e64_dpp`, `dpp8`, `sdwa`, or empty.
        operands: the operands, with destinations first.
    """

    line: Line
    name: str
    suffix: str
    operands: tuple[str, ...]
    modifiers: Modifiers

    @property
    def address(self) -> int:
        return self.line.address

    def unknown(self, why: str = "") -> NotEmulatedError:
        """Return the error for an instruction that is not emulated.

        Args:
            why: the unsupported part of the instruction; empty if the whole instruction is unknown.
        """
        return NotEmulatedError(
            "instruction-not-emulated",
            f"the emulator does not support {self.name}" + (f": {why}" if why else ""),
            why=f"at {self.address:#x}: {self.line.text}",
            fix="report it with the code object",
        )


def parse(line: Line, text: str | None = None) -> Instruction:
    """Parse a line of the disassembly, or only `text`, which is one part of a line with a dual-issue instruction."""
    name, suffix, operands, values = _parts(line.text if text is None else text)
    return Instruction(line, name, suffix, operands, Modifiers(values))


# The result is cached, because similar kernels have most of their instructions in common.
@lru_cache(maxsize=65536)
def _parts(text: str) -> tuple[str, str, tuple[str, ...], Mapping[str, str]]:
    rest = text.strip()
    values: dict[str, str] = {}
    while match := _MODIFIER.search(rest):
        name, _, value = match[1].partition(":")
        values[name] = value
        rest = rest[: match.start()].rstrip()
    mnemonic, _, listed = rest.partition(" ")
    suffix = _SUFFIX.search(mnemonic)
    operands = tuple(part.strip() for part in _COMMA.split(listed)) if listed.strip() else ()
    name, ending = (mnemonic[: suffix.start()], suffix[1]) if suffix else (mnemonic, "")
    return name, ending, operands, values
