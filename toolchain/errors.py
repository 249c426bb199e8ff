"""What can go wrong: one class and one exit code for each kind, each message with what, why and what to do."""

from __future__ import annotations

from typing import ClassVar


class ToolchainError(Exception):
    """An expected failure.

    Args:
        what: what happened, one sentence.
        why: the cause as far as it is known.
        fix: what the user can do; where it is not given, `advice` of the class.
    """

    code: ClassVar[int] = 1
    title: ClassVar[str] = "Error"
    remedy: ClassVar[str] = ""  # what usually helps; docs/exit-codes.md shows it
    advice: ClassVar[str] = ""  # what to do about any error of a class, where that is always the same

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix or self.advice

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
    remedy = (
        "Correct the option or the key that the message names. docs/options.md lists them, "
        "`toolchain VERB --help` shows those of one verb."
    )


class PinError(ToolchainError):
    """A pin that is missing, malformed, contradictory or unknown."""

    code = 4
    title = "Pin"
    remedy = (
        "`toolchain pins` shows what is on record. Name an LLVM yourself: `--source "
        "llvm=URL@COMMIT`, or a checkout: `--triton FOLDER`."
    )


class SourceError(ToolchainError):
    """A source that is not available or does not hold what it must."""

    code = 5
    title = "Source"
    remedy = "Check the path, the commit or the network. `toolchain fetch STAGE` tries the sources alone."


class DigestError(ToolchainError):
    """Bytes that do not have the digest they were promised to have."""

    code = 6
    title = "Digest"
    remedy = (
        "Try again: a mirror or a proxy gave other bytes. If it stays, do not use them, and tell the server's operator."
    )


class UnsupportedError(ToolchainError):
    """A GPU, architecture, base, release or version this tool does not know or refuses."""

    code = 7
    title = "Unsupported"
    remedy = "The message names what is known. docs/compatibility.md says what is tested, refused and untried."


class EngineError(ToolchainError):
    """No container engine, or none that works here."""

    code = 8
    title = "Engine"
    remedy = "`toolchain doctor` says what is missing, with the command that installs it."


class ResourceError(ToolchainError):
    """Too little disk or memory."""

    code = 9
    title = "Resources"
    remedy = (
        "Free disk (`toolchain cache prune`, with `--unfinished` for work that need not go on), name another "
        "folder (`--cache`), or give fewer `--jobs`. Then run it again: it goes on."
    )


class BuildError(ToolchainError):
    """A stage that failed while building."""

    code = 10
    title = "Build"
    remedy = (
        "Read the end of the log that the message names; it lies in `logs/` of the cache. Then run "
        "it again: it goes on."
    )


class ContractError(ToolchainError):
    """A layer that does not hold what its consumer needs."""

    code = 11
    title = "Contract"
    remedy = (
        "The message names the library, tool or symbol that is missing. Report it for a release "
        "that is tested; for your own tree mend the tree."
    )


class KernelError(ToolchainError):
    """Kernels that failed, timed out or came out empty."""

    code = 12
    title = "Kernels"
    remedy = (
        "The message lists the kernels. `kernels run --keep-going` goes on without them, "
        "`--kernel-timeout SECONDS` gives them longer."
    )


class RegistryError(ToolchainError):
    """A registry or layout that refused, or that answered wrongly."""

    code = 13
    title = "Registry"
    remedy = (
        "docs/registries.md lists what each answer means. Most often it is a login: `skopeo login "
        "--authfile ~/.docker/config.json HOST`."
    )


class LockHeldError(ToolchainError):
    """Another invocation is at the same work."""

    code = 14
    title = "Lock"
    remedy = (
        "Wait for the process that the message names. `TOOLCHAIN_LOCK_TIMEOUT` says for how many "
        "seconds: a day by default, 0 for not at all."
    )


class PolicyError(ToolchainError):
    """Prebuilt code that was not allowed by name."""

    code = 15
    title = "Policy"
    remedy = "Decide on each name: `--allow-binary NAME` allows it, `--drop-binary NAME` leaves it out."


class PatchError(ToolchainError):
    """A patch that does not apply or leaves its tree."""

    code = 16
    title = "Patch"
    remedy = "Make the patch anew against the very source that the plan names."


class UntrustedError(ToolchainError):
    """An image whose bytes, signature, provenance or SBOM are not what they must be, or that a policy forbids."""

    code = 17
    title = "Untrusted"
    advice = "do not use it; check that the key is the publisher's, then ask the publisher"
    remedy = (
        "Do not use the image. Check that the key is the publisher's; ask the publisher. "
        "docs/trust.md lists the checks in their order."
    )


class UnreachableError(ToolchainError):
    """A registry, mirror or repository that does not answer."""

    code = 18
    title = "Unreachable"
    remedy = (
        "Check the network, or name a mirror (`TOOLCHAIN_MIRROR`), or use a bundle and `--offline`. "
        "It says nothing about an image."
    )


class HostileInputError(ToolchainError):
    """An archive or tree whose content would escape or harm."""

    code = 19
    title = "Hostile input"
    advice = "do not use it; get it again from its maker"
    remedy = "Do not use that file. Get it from another place, by its digest."


class NotReproducedError(ToolchainError):
    """A second build of the same inputs whose bytes are not those of the first."""

    code = 20
    title = "Not reproduced"
    remedy = (
        "The message names the files that differ. Build with the options of the first build; if it "
        "stays, report it with both files."
    )


class LockedError(ToolchainError):
    """Something that toolchain.lock does not hold, or holds otherwise."""

    code = 21
    title = "Not locked"
    remedy = (
        "Compare with `toolchain lock STAGE --check`. What changed on purpose is locked anew: `toolchain lock STAGE`."
    )


class DocumentError(ToolchainError, ValueError):
    """A JSON document that programs could read differently, or that is too large or nested too deep to be read."""

    code = 22
    title = "Document"
    advice = "do not use it; ask its author"
    remedy = "Do not use what the document describes. Ask its author: JSON libraries write no such documents."


class EmulationError(ToolchainError):
    """A code object that the emulator refuses: an unknown instruction, modifier, float mode, register or GPU."""

    code = 23
    title = "Emulation"
    remedy = "Nothing was guessed. Report the instruction that the message names, with the code object."


class NumbersError(ToolchainError):
    """A kernel that computes wrong numbers, or that accesses what is not its own."""

    code = 24
    title = "Numbers"
    advice = "do not use it; compile it with another Triton or LLVM, and report it there"
    remedy = "Do not use the kernel. Compile it with another Triton or LLVM, and report it there with the object."


class RegressionError(ToolchainError):
    """Kernels that are worse than those they were compared with, by what `--fail-on` names."""

    code = 25
    title = "Regression"
    remedy = (
        "The message names the kernels. `toolchain kernels diff` shows their registers, spills and waves on both sides."
    )
