"""What the emulator gets from the tool, because it imports nothing of it: programs, GPUs, JSON; and its errors as those
of the tool."""

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

_LARGEST_IR = 64 << 20  # bytes
CLASSES: dict[type[EmulatorError], type[errors.ToolchainError]] = {
    CodeObjectError: errors.KernelError,
    DisassemblerError: errors.EngineError,
    FaultyKernelError: errors.NumbersError,
    LaunchError: errors.ConfigError,
    NotEmulatedError: errors.EmulationError,
    OutsideError: errors.LaunchError,
}


def translated(error: EmulatorError) -> errors.ToolchainError:
    """Return the tool's error for one of the emulator, which has an exit code."""
    return CLASSES[type(error)](error.id, error.what, why=error.why, fix=error.fix)


@contextlib.contextmanager
def translation() -> Iterator[None]:
    """Raise errors of the emulator as those of the tool; a decorator too."""
    try:
        yield
    except EmulatorError as error:
        raise translated(error) from error


def run_program(command: Sequence[str | Path], timeout: float) -> str:
    """Run a program for the emulator and return its output.

    Args:
        timeout: in seconds.

    Raises:
        ProgramError: it failed.
        EngineError: it is not installed.
    """
    try:
        return process.run(command, capture=True, timeout=timeout).stdout
    except process.CommandError as error:
        raise ProgramError(error.why) from error


@translation()
def disassembler(given: Path | None = None) -> Disassembler:
    """Return the disassembler to use, see `find_disassembler`.

    Raises:
        EngineError: there is none, or it is too old or another program.
    """
    return find_disassembler(run_program, given)


def load(path: Path, kernel: str | None = None) -> CodeObject:
    """Load a code object of a GPU that the tool knows, see `codeobject.load`."""
    return codeobject.load(path, gpu_of_flag, kernel, opened=_opened)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a code object, which may be hostile; a link to it may lead anywhere, as the user named it."""
    real = Path(os.path.realpath(path))
    with filesystem.open_regular(real) as stream:
        yield metered(stream)


def read_metadata(path: Path) -> Metadata:
    """Read the JSON beside a code object, see `metadata.read_metadata`."""
    from toolchain_lab.emulator import metadata  # noqa: PLC0415 - numpy

    return metadata.read_metadata(path, _json)


def described(path: Path, code: CodeObject, signature: str = "") -> Metadata:
    """Return the metadata of any code object, see `metadata.described`.

    Args:
        path: the file that the user named, which may be a bundle; other files are looked for beside it.
    """
    from toolchain_lab.emulator import metadata  # noqa: PLC0415 - numpy

    ir = ""
    with contextlib.suppress(OSError):
        ir = _read(path.with_suffix(".ttir"), _LARGEST_IR).decode("utf-8", "replace")
    return metadata.described(code, metadata.read_beside(path, _json), ir, signature)


def _read(path: Path, limit: int) -> bytes:
    return filesystem.read_regular(Path(os.path.realpath(path)), limit)


def _json(path: Path) -> Any:
    return strict_json.read(_read(path, LARGEST_METADATA), path.name)


def require_numpy(user: str = "the emulator") -> Path:
    """Return the folder that numpy is imported from; the modules of the emulator import it.

    Args:
        user: what needs it, for display.

    Raises:
        ConfigError: numpy is not installed.
    """
    spec = find_spec("numpy")
    if spec is None or spec.origin is None:
        # By a path: the Python index does not have the lab, and another project may take the name there.
        raise errors.ConfigError(
            "numpy-missing", f"{user} needs numpy", fix="pip install './lab[emulator]' in a checkout of the tool"
        )
    return Path(spec.origin).resolve().parents[1]
