"""Triton, as a request names it: from source, for every later distribution or one base, or a wheel of the index."""

from __future__ import annotations

from toolchain.core.errors import UnsupportedError
from toolchain.request.model import Request
from toolchain.stages.codegen_llvm import refuse_unused, rules_of
from toolchain.stages.stage import Stage
from toolchain.stages.triton_origin import from_source
from toolchain.stages.triton_portable import TritonPortableStage
from toolchain.stages.triton_source import TritonSourceStage
from toolchain.stages.triton_wheel import TritonWheelStage

# The machines whose wheels have been cross-compiled and tried.
_CROSS = ("arm64",)


def of_request(request: Request) -> Stage:
    """Which of the three stages the request means."""
    if not from_source(request):
        return TritonWheelStage()
    return TritonPortableStage() if request.glibc else TritonSourceStage()


def stands_on(request: Request) -> tuple[str, ...]:
    """From source it stands on the LLVM layer, and on a portable one on what that stands on; a wheel does not.

    A Triton with LLVMs for GPUs stands on the libraries made with them too.

    Raises:
        UnsupportedError: such a Triton is requested for a base; or no rule knows one of those LLVMs.
        ConfigError: a source names such an LLVM for a Triton that takes none.
    """
    if not from_source(request):
        return ("base",)
    rules = rules_of(request)
    refuse_unused(request, rules)
    if rules and not request.glibc:
        raise UnsupportedError(
            f"a Triton with a separate LLVM for {', '.join(rule.target for rule in rules)} is not built for a base",
            why="its libraries are compiled against an old system, on a portable LLVM",
            fix="leave --base out",
        )
    further = (*(rule.llvm for rule in rules), *(rule.stage for rule in rules))
    return ("base", "sysroot", "python", "llvm", *further) if request.glibc else ("base", "llvm")


def cross_machines(request: Request) -> tuple[str, ...]:
    """The machines that it is built for on one of another kind: on a portable LLVM alone, whose system is unpacked."""
    return _CROSS if request.glibc and from_source(request) else ()
