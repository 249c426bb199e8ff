"""What can go wrong: one class and one exit code for each kind, each message with what, why and what to do."""

from __future__ import annotations

from typing import ClassVar


class ToolchainError(Exception):
    """An expected failure.

    Args:
        what: what happened, one sentence.
        why: the cause as far as it is known.
        fix: what the user can do.
    """

    code: ClassVar[int] = 1
    title: ClassVar[str] = "Error"

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"why: {self.why}")
        if self.fix:
            lines.append(f"do:  {self.fix}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """The error as `--json` prints it."""
        return {"error": self.title, "exit_code": self.code, "what": self.what, "why": self.why, "fix": self.fix}


class ConfigError(ToolchainError):
    """A configuration file or option value that cannot be used."""

    code = 3
    title = "Configuration"


class PinError(ToolchainError):
    """A pin that is missing, malformed, contradictory or unknown."""

    code = 4
    title = "Pin"


class SourceError(ToolchainError):
    """A source that cannot be had or does not hold what it must."""

    code = 5
    title = "Source"


class DigestError(ToolchainError):
    """Bytes that do not have the digest they were promised to have."""

    code = 6
    title = "Digest"


class UnsupportedError(ToolchainError):
    """A GPU, architecture, base, release or version this tool does not know or refuses."""

    code = 7
    title = "Unsupported"


class EngineError(ToolchainError):
    """No container engine, or none that works here."""

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
    """A layer that does not hold what its consumer needs."""

    code = 11
    title = "Contract"


class KernelError(ToolchainError):
    """Kernels that failed, timed out or came out empty."""

    code = 12
    title = "Kernels"


class RegistryError(ToolchainError):
    """A registry or layout that refused, or that answered wrongly."""

    code = 13
    title = "Registry"


class LockHeldError(ToolchainError):
    """Another invocation is at the same work."""

    code = 14
    title = "Lock"


class PolicyError(ToolchainError):
    """Prebuilt code that nobody allowed by name."""

    code = 15
    title = "Policy"


class PatchError(ToolchainError):
    """A patch that does not apply or leaves its tree."""

    code = 16
    title = "Patch"


class UntrustedError(ToolchainError):
    """An image whose bytes, signature, provenance or SBOM are not what they must be, or that a policy forbids."""

    code = 17
    title = "Untrusted"


class UnreachableError(ToolchainError):
    """A registry, mirror or repository that does not answer."""

    code = 18
    title = "Unreachable"


class HostileInputError(ToolchainError):
    """An archive or tree whose content would escape or harm."""

    code = 19
    title = "Hostile input"


class NotReproducedError(ToolchainError):
    """A second build of the same inputs whose bytes are not those of the first."""

    code = 20
    title = "Not reproduced"


class LockedError(ToolchainError):
    """Something that toolchain.lock does not hold, or holds otherwise."""

    code = 21
    title = "Not locked"
