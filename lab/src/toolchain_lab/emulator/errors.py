"""The errors that the emulator raises."""

from __future__ import annotations


class EmulatorError(Exception):
    """The base class of the errors that the emulator reports to users.

    Args:
        id: a stable identifier for the situation, for use by programs.
        what: a description of the problem, as one sentence without a full stop.
        why: the cause; may be empty.
        fix: what the user can do; may be empty.
    """

    def __init__(self, id: str, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(f"{what}: {why}" if why else what)
        self.id = id
        self.what = what
        self.why = why
        self.fix = fix


class NotEmulatedError(EmulatorError):
    """The emulator cannot run the kernel, for example because an instruction is unsupported or a file is missing."""


class FaultyKernelError(EmulatorError):
    """The kernel has a fault, such as an access out of bounds, a data race or a missing wait, or it exceeds a limit."""


class OutsideError(FaultyKernelError):
    """An access of the kernel is not completely inside a buffer."""


class CodeObjectError(EmulatorError):
    """A file cannot be read, is not a complete code object, or does not contain the requested kernel."""


class LaunchError(EmulatorError):
    """An input of a launch is invalid, such as an argument, the grid or a file of expected values."""


class DisassemblerError(EmulatorError):
    """There is no usable disassembler."""


class ProgramError(Exception):
    """An external program, such as llvm-objdump, failed or exceeded its time limit; the message gives the reason."""
