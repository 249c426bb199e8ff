"""Errors: one class and one exit code for each kind, each message with what, why and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the end of a sentence that names the known word nearest to a misspelt one; empty if none is near.

    Args:
        cutoff: from 0 to 1, how much alike they must be.
    """
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


class ToolchainError(Exception):
    """An expected failure.

    Args:
        what: what happened, one sentence.
        why: the cause as far as it is known.
        fix: what the user can do; where it is not given, `advice` of the class.

    Attributes:
        further: lines behind the fix that help with any failure at that place: a log, commands.
    """

    code: ClassVar[int] = 1
    title: ClassVar[str] = "Error"
    advice: ClassVar[str] = ""  # what to do about any error of a class, where that is always the same

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix or self.advice
        self.further: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"why: {self.why}")
        if self.to_do:
            lines.append(f"do:  {self.to_do}")
        return "\n".join(lines)

    @property
    def to_do(self) -> str:
        """The fix and what is further, a line each."""
        return "\n".join(filter(None, (self.fix, *self.further)))

    def as_json(self) -> dict[str, object]:
        """The error as `--json` prints it."""
        return {"error": self.title, "exit_code": self.code, "what": self.what, "why": self.why, "fix": self.to_do}


class ConfigError(ToolchainError):
    """A configuration file or option value that cannot be used."""

    code = 3
    title = "Configuration"


class PinError(ToolchainError):
    """A pin that is missing, malformed, contradictory or unknown."""

    code = 4
    title = "Pin"


class SourceError(ToolchainError):
    """A source that is not available, or lacks required files."""

    code = 5
    title = "Source"


class DigestError(ToolchainError):
    """Bytes that do not match their digest."""

    code = 6
    title = "Digest"


class UnsupportedError(ToolchainError):
    """An unknown or unsupported GPU, architecture, base, release or version."""

    code = 7
    title = "Unsupported"


class EngineError(ToolchainError):
    """No usable container engine."""

    code = 8
    title = "Engine"


class ResourceError(ToolchainError):
    """Too little disk or memory."""

    code = 9
    title = "Resources"


class BuildError(ToolchainError):
    """A stage that failed while building."""

    code = 10
    title = "Build"


class ContractError(ToolchainError):
    """A layer that lacks something its users need."""

    code = 11
    title = "Contract"


class KernelError(ToolchainError):
    """Kernels that failed, timed out or came out empty."""

    code = 12
    title = "Kernels"


class RegistryError(ToolchainError):
    """A registry or layout that refused, or sent an invalid answer."""

    code = 13
    title = "Registry"


class LockHeldError(ToolchainError):
    """Another invocation is doing the same work."""

    code = 14
    title = "Lock"


class PolicyError(ToolchainError):
    """Prebuilt code that was not allowed by name."""

    code = 15
    title = "Policy"


class PatchError(ToolchainError):
    """A patch that does not apply, or changes files outside of its tree."""

    code = 16
    title = "Patch"


class UntrustedError(ToolchainError):
    """An image with invalid bytes, signature, provenance or SBOM, or that a policy forbids."""

    code = 17
    title = "Untrusted"
    advice = "do not use it; check that the key is the publisher's, then ask the publisher"


class UnreachableError(ToolchainError):
    """A registry, mirror or repository that does not answer."""

    code = 18
    title = "Unreachable"


class HostileInputError(ToolchainError):
    """An archive or tree whose content would escape or harm."""

    code = 19
    title = "Hostile input"
    advice = "do not use it; get it again from its maker"


class NotReproducedError(ToolchainError):
    """A second build of the same inputs with different bytes."""

    code = 20
    title = "Not reproduced"


class LockedError(ToolchainError):
    """An input that is not in toolchain.lock, or differs from it."""

    code = 21
    title = "Not locked"


class DocumentError(ToolchainError, ValueError):
    """A JSON document that programs could read differently, or that is too large or nested too deeply."""

    code = 22
    title = "Document"
    advice = "do not use it; ask its author"


class EmulationError(ToolchainError):
    """A code object that the emulator does not support: an instruction, modifier, float mode, register or GPU."""

    code = 23
    title = "Emulation"


class NumbersError(ToolchainError):
    """A kernel with wrong results, or that accesses memory that is not its own."""

    code = 24
    title = "Numbers"
    advice = "do not use it; compile it with another Triton or LLVM, and report it there"


class RegressionError(ToolchainError):
    """Kernels that are worse than those they were compared with, as defined by `--fail-on`."""

    code = 25
    title = "Regression"


class LimitError(ToolchainError):
    """A build, check or worker that reached a limit of processes, disk, log or time."""

    code = 26
    title = "Limit"


class LaunchError(ToolchainError):
    """A kernel that was launched by hand and accesses memory outside of its buffers."""

    code = 27
    title = "Launch"
    advice = "compare the grid and the sizes of the buffers with the kernel; if they are right, the kernel is wrong"


class NotCheckedError(ToolchainError):
    """Kernels that a check has no case for."""

    code = 28
    title = "Not checked"
