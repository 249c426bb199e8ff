"""Reads the JSON beside a code object: what a launch needs to know beyond the object itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain_lab.emulator.codeobject import CodeObject
from toolchain_lab.emulator.errors import NotEmulatedError
from toolchain_lab.emulator.launch import Parameter, check_parameters

_LARGEST = 1 << 20  # bytes of LDS, and of a lane's scratch memory
_AGAIN = "compile the kernel again with this version of the tool, which writes all of it"


@dataclass(frozen=True)
class Metadata:
    """The JSON that the worker wrote beside an object.

    Args:
        source: the kernel's file below its root.
        names: all arguments of the function, in order.
        parameters: those of a launch.
        constants: the other arguments of the function, by name.
        waves: of a workgroup.
        lds: bytes of LDS.
        scratch: bytes of memory that Triton wants for each workgroup.
    """

    kernel: str
    gpu: str
    source: str
    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]
    waves: int
    lds: int
    scratch: int


def read_metadata(path: Path, read: Callable[[Path], Any]) -> Metadata:
    """The JSON beside an object.

    Args:
        path: the object's.
        read: reads a file of JSON. Raises ValueError for what is not JSON, and OSError for what cannot be read.

    Raises:
        NotEmulatedError: there is none, or it lacks what a launch needs.
    """
    beside = path.parent / f"{path.stem}.json"
    try:
        content = read(beside)
    except OSError as error:
        raise NotEmulatedError(
            f"{path.name} has no JSON beside it", why=f"{beside}: {error.strerror}", fix="keep both files together"
        ) from error
    except ValueError as error:
        raise NotEmulatedError(f"{beside} is not JSON", why=str(error), fix=_AGAIN) from error
    return metadata_of(content, str(beside))


def metadata_of(content: Any, where: str) -> Metadata:
    """The same from what was read.

    Raises:
        NotEmulatedError: it lacks what a launch needs.
    """
    try:
        if content.get("compile_status", "Complete") != "Complete":
            raise NotEmulatedError(
                f"{where} marks its kernel as known bad", why=str(content["compile_status"]), fix="check another kernel"
            )
        return Metadata(
            kernel=str(content["name"]),
            gpu=str(content["arch"]),
            source=str(content["source"]),
            names=tuple(str(name) for name, _ in content["signature"]),
            parameters=tuple(
                Parameter(str(name), str(kind).partition(":")[0])
                for name, kind in content["signature"]
                if kind != "constexpr"
            ),
            constants=dict(content["constexprs"]),
            waves=int(content["num_warps"]),
            lds=int(content["shared"]),
            scratch=int(content.get("global_scratch_size", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotEmulatedError(
            f"{where} lacks what a launch needs", why=f"{type(error).__name__}: {error}", fix=_AGAIN
        ) from error


def check_metadata(code: CodeObject, metadata: Metadata) -> None:
    """Check that a JSON belongs to an object.

    Raises:
        NotEmulatedError: it does not, or asks for what is not emulated.
    """
    threads = metadata.waves * (32 if code.descriptor.wave32 else 64)
    for name, ours, theirs in (
        ("the kernel", metadata.kernel, code.kernel),
        ("the GPU", metadata.gpu, code.gpu),
        ("the threads of a workgroup", threads, code.workgroup_size),
    ):
        if ours != theirs:
            raise NotEmulatedError(
                f"the JSON beside {code.path.name} belongs to another object",
                why=f"{name}: {ours} in the JSON, {theirs} in the object",
                fix="keep the two files of a kernel together",
            )
    lds, lane = max(metadata.lds, code.descriptor.lds), code.descriptor.scratch
    if metadata.lds < 0 or max(lds, lane) > _LARGEST:
        raise NotEmulatedError(
            f"{code.path.name} asks for more memory than any GPU has",
            why=f"{lds} bytes of LDS, {lane} bytes of scratch memory for each lane",
            fix=_AGAIN,
        )
    if metadata.scratch:
        raise NotEmulatedError(
            f"the emulator refuses {code.kernel}",
            why=f"it wants {metadata.scratch} bytes of Triton's own scratch memory",
            fix="report it with the code object",
        )
    check_parameters(code, metadata.parameters)
