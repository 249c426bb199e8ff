"""Errors of the emulator: what happened, why, and what to do."""

from __future__ import annotations


class EmulatorError(Exception):
    """An expected failure.

    Args:
        id: names the situation for programs.
        what: what happened, one sentence.
        why: the cause as far as it is known.
        fix: what the user can do; empty where any error of the class has the same remedy.
    """

    def __init__(self, id: str, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(f"{what}: {why}" if why else what)
        self.id = id
        self.what = what
        self.why = why
        self.fix = fix


class NotEmulatedError(EmulatorError):
    """A code object that the emulator does not support: an instruction, modifier, float mode, register or GPU."""


class FaultyKernelError(EmulatorError):
    """A kernel that accesses memory that is not its own, or reads what it did not wait for."""


class OutsideError(FaultyKernelError):
    """An access outside of every buffer: the launch's sizes or grid are wrong, or the kernel is."""


class CodeObjectError(EmulatorError):
    """A file that is not a whole code object, or that lacks the kernel."""


class LaunchError(EmulatorError):
    """An argument or a grid that cannot be used."""


class DisassemblerError(EmulatorError):
    """No usable disassembler."""


class ProgramError(Exception):
    """A program that failed; its text says why."""
