"""Errors: one class and one exit code for each kind, each message with what, why and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean WORD?` for the known word nearest to a misspelt one, or an empty text if none is near.

    Args:
        cutoff: how similar the words must be, from 0 to 1.
    """
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


class ToolchainError(Exception):
    """An expected failure. Its class decides the exit code and the title that users see.

    Args:
        id: names the situation for programs; docs/exit-codes.md lists the ids of each exit code.
        what: what happened, in one sentence.
        why: the cause, as far as it is known.
        fix: what the user can do; `advice` of the class if it is empty.

    Attributes:
        further: lines after the fix that help with any failure at that place, such as the path of a log.
    """

    code: ClassVar[int] = 1
    title: ClassVar[str] = "Error"
    advice: ClassVar[str] = ""

    def __init_subclass__(cls, *, code: int = 0, title: str = "", advice: str = "") -> None:
        super().__init_subclass__()
        cls.code, cls.title, cls.advice = code or cls.code, title or cls.title, advice or cls.advice

    def __init__(self, id: str, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(id, what)
        self.id = id
        self.what = what
        self.why = why
        self.fix = fix or self.advice
        self.further: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = (f"why: {self.why}" if self.why else "", f"do:  {self.to_do}" if self.to_do else "")
        return "\n".join(filter(None, (self.what, *named)))

    @property
    def to_do(self) -> str:
        """The fix and the further lines."""
        return "\n".join(filter(None, (self.fix, *self.further)))

    def as_json(self) -> dict[str, object]:
        """Return the error as `--json` prints it."""
        named = {"error": self.title, "id": self.id, "exit_code": self.code}
        return {**named, "what": self.what, "why": self.why, "fix": self.to_do}


class ConfigError(ToolchainError, code=3, title="Configuration"):
    """A configuration file or option value that cannot be used."""


class PinError(ToolchainError, code=4, title="Pin"):
    """A pin that is missing, malformed, contradictory or unknown."""


class SourceError(ToolchainError, code=5, title="Source"):
    """A source that is not available, or lacks required files."""


class DigestError(ToolchainError, code=6, title="Digest"):
    """Bytes that do not match their digest."""


class UnsupportedError(ToolchainError, code=7, title="Unsupported"):
    """An unknown or unsupported GPU, architecture, base, release or version."""


class EngineError(ToolchainError, code=8, title="Engine"):
    """No usable container engine."""


class ResourceError(ToolchainError, code=9, title="Resources"):
    """Too little disk or memory."""


class BuildError(ToolchainError, code=10, title="Build"):
    """A stage that failed while building."""


class ContractError(ToolchainError, code=11, title="Contract"):
    """A layer that lacks something its users need."""


class KernelError(ToolchainError, code=12, title="Kernels"):
    """Kernels that failed, timed out or came out empty."""


class RegistryError(ToolchainError, code=13, title="Registry"):
    """A registry or layout that refused, or sent an invalid answer."""


class LockHeldError(ToolchainError, code=14, title="Lock"):
    """Another invocation is doing the same work."""


class PolicyError(ToolchainError, code=15, title="Policy"):
    """Prebuilt code that was not allowed by name."""


class PatchError(ToolchainError, code=16, title="Patch"):
    """A patch that does not apply, or changes files outside of its tree."""


class UntrustedError(
    ToolchainError,
    code=17,
    title="Untrusted",
    advice="do not use it; check that the key is the publisher's, then ask the publisher",
):
    """An image with invalid bytes, signature, provenance or SBOM, or that a policy forbids."""


class UnreachableError(ToolchainError, code=18, title="Unreachable"):
    """A registry, mirror or repository that does not answer."""


class HostileInputError(
    ToolchainError, code=19, title="Hostile input", advice="do not use it; get it again from its maker"
):
    """An archive or tree whose content would escape or harm."""


class NotReproducedError(ToolchainError, code=20, title="Not reproduced"):
    """A second build of the same inputs with different bytes."""


class LockedError(ToolchainError, code=21, title="Not locked"):
    """An input that is not in toolchain.lock, or differs from it."""


class DocumentError(ToolchainError, ValueError, code=22, title="Document", advice="do not use it; ask its author"):
    """A JSON document that programs could read differently, or that is too large or nested too deeply."""


class EmulationError(ToolchainError, code=23, title="Emulation"):
    """A code object that the emulator does not support: an instruction, modifier, float mode, register or GPU."""


class NumbersError(
    ToolchainError,
    code=24,
    title="Numbers",
    advice="do not use it; compile it with another Triton or LLVM, and report it there",
):
    """A kernel that computes wrong results or accesses memory outside of its buffers."""


class RegressionError(ToolchainError, code=25, title="Regression"):
    """Kernels that are worse than those they were compared with, as defined by `--fail-on`."""


class LimitError(ToolchainError, code=26, title="Limit"):
    """A build, check or worker that reached a limit of processes, disk, log or time."""


class LaunchError(
    ToolchainError,
    code=27,
    title="Launch",
    advice="compare the grid and the sizes of the buffers with the kernel; if they are right, the kernel is wrong",
):
    """A kernel that was launched by hand and accesses memory outside of its buffers."""


class NotCheckedError(ToolchainError, code=28, title="Not checked"):
    """Kernels that a check has no case for."""
