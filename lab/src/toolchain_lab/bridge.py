"""Connect the emulator, which does not import the tool, to the tool.

The functions here run programs and read files for the emulator, and convert the emulator's errors to the tool's errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from toolchain.catalog.gpus import gpu_of_flag
from toolchain.core import errors, filesystem, process, strict_json
from toolchain.kernels.result_store import LARGEST_METADATA
from toolchain_lab.emulator import codeobject
from toolchain_lab.emulator.codeobject import CodeObject
from toolchain_lab.emulator.disassembly import Disassembler, find_disassembler
from toolchain_lab.emulator.errors import (
    CodeObjectError,
    DisassemblerError,
    EmulatorError,
    FaultyKernelError,
    LaunchError,
    NotEmulatedError,
    OutsideError,
    ProgramError,
)
from toolchain_lab.metered import metered

if TYPE_CHECKING:
    from toolchain_lab.emulator.metadata import Metadata

_LARGEST_IR = 64 << 20  # bytes; the limit for a .ttir file
CLASSES: dict[type[EmulatorError], type[errors.ToolchainError]] = {
    CodeObjectError: errors.KernelError,
    DisassemblerError: errors.EngineError,
    FaultyKernelError: errors.NumbersError,
    LaunchError: errors.ConfigError,
    NotEmulatedError: errors.EmulationError,
    OutsideError: errors.LaunchError,
}


def translated(error: EmulatorError) -> errors.ToolchainError:
    """Convert an emulator error to a tool error."""
    return CLASSES[type(error)](error.id, error.what, why=error.why, fix=error.fix)


@contextlib.contextmanager
def translation() -> Iterator[None]:
    """Convert emulator errors to tool errors, as a context manager or as a decorator."""
    try:
        yield
    except EmulatorError as error:
        raise translated(error) from error


def run_program(command: Sequence[str | Path], timeout: float) -> str:
    """Run a program, with a time limit in seconds, and return its output; raise ProgramError if it fails."""
    try:
        return process.run(command, capture=True, timeout=timeout).stdout
    except process.CommandError as error:
        raise ProgramError(error.why) from error


@translation()
def disassembler(given: Path | None = None) -> Disassembler:
    """Find llvm-objdump; see `find_disassembler`."""
    return find_disassembler(run_program, given)


def load(path: Path, kernel: str | None = None, *, first: bool = False) -> CodeObject:
    """Read a code object for any GPU in the tool's catalog; see `codeobject.load`."""
    return codeobject.load(path, gpu_of_flag, kernel, first=first, opened=_opened)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a code object. Links are followed, because the user gave the path."""
    real = Path(os.path.realpath(path))
    with filesystem.open_regular(real) as stream:
        yield metered(stream)


def read_metadata(path: Path) -> Metadata:
    """Read the JSON file next to a code object; see `metadata.read_metadata`."""
    from toolchain_lab.emulator import metadata  # noqa: PLC0415 - it imports numpy

    return metadata.read_metadata(path, _json)


def described(path: Path, code: CodeObject, signature: str = "") -> Metadata:
    """Return the metadata of any code object; see `metadata.described`.

    Args:
        path: the file that the user gave, which may be a bundle. The JSON file and Triton's IR are read from files next
            to it, if they exist.
    """
    from toolchain_lab.emulator import metadata  # noqa: PLC0415 - it imports numpy

    ir = ""
    with contextlib.suppress(OSError):
        ir = _read(path.with_suffix(".ttir"), _LARGEST_IR).decode("utf-8", "replace")
    return metadata.described(code, metadata.read_beside(path, _json), ir, signature)


def _read(path: Path, limit: int) -> bytes:
    return filesystem.read_regular(Path(os.path.realpath(path)), limit)


def _json(path: Path) -> Any:
    return strict_json.read(_read(path, LARGEST_METADATA), path.name)


def require_numpy(user: str = "the emulator") -> Path:
    """Return the folder from which numpy is imported; raise ConfigError if numpy is not installed.

    Args:
        user: the feature that needs numpy, for the error message.
    """
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        # The fix gives a path, because the lab is not on PyPI, where another project could take its name.
        raise errors.ConfigError(
            "numpy-missing", f"{user} needs numpy", fix="pip install './lab[emulator]' in a checkout of the tool"
        )
    return Path(spec.origin).resolve().parents[1]
