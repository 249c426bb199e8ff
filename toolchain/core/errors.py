"""The errors that users see: what happened and, if known, the cause and a remedy. Each class has an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean WORD?` for the known word most similar to `word`; an empty string if none is similar.

    Args:
        cutoff: the minimum similarity, from 0 to 1.
    """
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


class ToolchainError(Exception):
    """An expected failure. Its class determines the exit code and the title that users see.

    Args:
        id: an identifier of this kind of failure, for programs; docs/exit-codes.md lists the ids of each exit code.
        what: what happened, in one sentence.
        why: the cause; empty if it is unknown or obvious.
        fix: what the user can do; if it is empty, the class's `advice` is used.

    Attributes:
        further: lines that are printed after the fix, such as the path of a log.
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
        """Return the fix, followed by the lines in `further`."""
        return "\n".join(filter(None, (self.fix, *self.further)))

    def as_json(self) -> dict[str, object]:
        named = {"error": self.title, "id": self.id, "exit_code": self.code}
        return {**named, "what": self.what, "why": self.why, "fix": self.to_do}


class ConfigError(ToolchainError, code=3, title="Configuration"):
    """An option, argument, environment variable or configuration file is invalid, or a part of the tool is missing."""


class PinError(ToolchainError, code=4, title="Pin"):
    """A pin is missing, malformed, contradictory or unknown, or does not match what is built."""


class SourceError(ToolchainError, code=5, title="Source"):
    """A source or package is not available, not complete, damaged, or not what was requested."""


class DigestError(ToolchainError, code=6, title="Digest"):
    """Bytes do not match their digest or size, or a digest or an image layout is malformed or ambiguous."""


class UnsupportedError(ToolchainError, code=7, title="Unsupported"):
    """A GPU, architecture, base, stage, image, release or version is unknown, unsupported or ambiguous."""


class EngineError(ToolchainError, code=8, title="Engine"):
    """An engine or another program is missing, fails, or is unsafe for builds, or an input of a build is missing."""


class ResourceError(ToolchainError, code=9, title="Resources"):
    """There is too little disk space or memory, a file cannot be written, or workers were lost."""


class BuildError(ToolchainError, code=10, title="Build"):
    """The build of a stage failed, or did not produce the expected files."""


class ContractError(ToolchainError, code=11, title="Contract"):
    """A layer, library, wheel, cache or set of kernels failed a check, or lacks something that its users need."""


class KernelError(ToolchainError, code=12, title="Kernels"):
    """Kernels could not be compiled, or a kernel, code object or description of kernels is missing or faulty."""


class RegistryError(ToolchainError, code=13, title="Registry"):
    """A registry, layout or credential helper refused a request, or returned missing, malformed or ambiguous data."""


class LockHeldError(ToolchainError, code=14, title="Lock"):
    """Another invocation is doing the same work or using the cache."""


class PolicyError(ToolchainError, code=15, title="Policy"):
    """A build has prebuilt inputs that are not allowed, or that cannot be left out or replaced."""


class PatchError(ToolchainError, code=16, title="Patch"):
    """A patch or an edit is unreadable, does not apply, or changes files outside its tree."""


class UntrustedError(
    ToolchainError,
    code=17,
    title="Untrusted",
    advice="do not use it; check that the key is the publisher's, then ask the publisher",
):
    """The bytes, signature, provenance or SBOM of an image are invalid, or a policy forbids the image."""


class UnreachableError(ToolchainError, code=18, title="Unreachable"):
    """A server such as a registry does not respond, fails or is too slow, or `--offline` forbids using the network."""


class HostileInputError(
    ToolchainError, code=19, title="Hostile input", advice="do not use it; download it again from its author"
):
    """An untrusted archive, tree or file is contradictory, cannot be read safely, or could write outside its folder."""


class NotReproducedError(ToolchainError, code=20, title="Not reproduced"):
    """Two builds of the same inputs produced different bytes."""


class LockedError(ToolchainError, code=21, title="Not locked"):
    """An input is missing from toolchain.lock, or differs from its entry there, or the tag of a source moved."""


class DocumentError(ToolchainError, ValueError, code=22, title="Document", advice="do not use it; ask its author"):
    """A JSON document is ambiguous, too large or nested too deeply."""


class EmulationError(ToolchainError, code=23, title="Emulation"):
    """The emulator cannot run a kernel, for example because it does not support an instruction or the GPU."""


class NumbersError(
    ToolchainError,
    code=24,
    title="Numbers",
    advice="do not use it; report it to the project that compiled it, and compile it with another Triton or LLVM",
):
    """A kernel computes wrong results or does something invalid, such as accessing memory outside its buffers."""


class RegressionError(ToolchainError, code=25, title="Regression"):
    """Kernels are worse than the ones they were compared with, by the criteria of `--fail-on`."""


class LimitError(ToolchainError, code=26, title="Limit"):
    """A build, check, worker or other program reached its limit on processes, disk space, output or time.

    Attributes:
        discards: whether the engine has removed the cached build tree to free disk space.
    """

    discards: bool = False


class LaunchError(
    ToolchainError,
    code=27,
    title="Launch",
    advice="compare the grid and the sizes of the buffers with the kernel; if they are right, the kernel is wrong",
):
    """A kernel that the user launched with `emulate` accesses memory outside its buffers."""


class NotCheckedError(ToolchainError, code=28, title="Not checked"):
    """A check skipped kernels, for example because it has no test case for them."""
