"""The metadata for a launch, from the JSON file and Triton's IR next to a code object, or from the object itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain_lab.emulator.codeobject import CodeObject
from toolchain_lab.emulator.errors import LaunchError, NotEmulatedError
from toolchain_lab.emulator.launch import HIDDEN, Parameter, check_parameters

_MOST_THREADS = 1024  # the limit of all GPUs for a workgroup
# bytes; the limit for the LDS of a workgroup, for the scratch memory of a lane, and for the arguments
_LARGEST = 1 << 20
_AGAIN = "compile the kernel again with this version of the tool"
# These are the sizes of the GPUs' LDS in bytes. A kernel is assumed to use all of the LDS unless a JSON file gives the
# size that the kernel uses.
_LDS, _LDS_OF = 65536, {"gfx950": 163840}
_OWN = 2  # the number of pointers that Triton appends for its scratch memory
_ARGUMENT = re.compile(r'%(\w+): (!tt\.ptr<(\w+)(?:, \d+)?>|\w+)(?: \{[^}]*\})?(?: loc\("(\w+)")?')
_IR_TYPES = {
    "f16": "fp16", "f32": "fp32", "f64": "fp64", "bf16": "bf16", "f8E4M3FN": "fp8e4nv", "f8E4M3FNUZ": "fp8e4b8",
    "f8E5M2": "fp8e5", "f8E5M2FNUZ": "fp8e5b16", **{f"i{bits}": f"i{bits}" for bits in (1, 8, 16, 32, 64)},
}  # fmt: skip


@dataclass(frozen=True)
class Metadata:
    """The metadata of a kernel.

    Args:
        parameters: the parameters that get their values at run time, in order.
        waves: the number of waves in a workgroup.
        lds: the size of a workgroup's LDS in bytes.
        lds_known: whether `lds` comes from a JSON file; otherwise it is the size of the GPU's whole LDS.
        scratch: the size of Triton's scratch memory for each workgroup in bytes.
        source: the path of the kernel's source file, relative to the root of the source tree; empty if it is unknown.
        names: the names of all arguments of the kernel's function, in order; empty if they are unknown.
        constants: the values of the function's compile-time arguments, by name; empty if they are unknown.
    """

    kernel: str
    gpu: str
    parameters: tuple[Parameter, ...]
    waves: int
    lds: int
    lds_known: bool = True
    scratch: int = 0
    source: str = ""
    names: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)


def read_metadata(path: Path, read: Callable[[Path], Any]) -> Metadata:
    """Read the JSON file that this tool writes next to a code object.

    Args:
        read: a function that reads a JSON file. It raises ValueError if the file is not JSON, and OSError if the file
            cannot be read.

    Raises:
        NotEmulatedError: the JSON file is missing, unreadable or malformed, or marks its kernel as known bad. The id is
            `metadata-missing` if the file does not exist or if another program, such as Triton, wrote it.
    """
    content = read_beside(path, read)
    if content is None:
        raise NotEmulatedError(
            "metadata-missing", f"there is no JSON file next to {path.name}", fix="keep both files in one folder"
        )
    beside = str(path.with_suffix(".json"))
    if isinstance(content, Mapping) and content.keys().isdisjoint({"signature", "compile_status"}):
        raise NotEmulatedError(
            "metadata-missing",
            f"{beside} does not record how the kernel is launched",
            why="it has no signature, like the JSON files of Triton's cache",
            fix="compile the kernel with this tool",
        )
    return metadata_of(content, beside)


def read_beside(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return the content of the JSON file next to a code object; None if the file does not exist."""
    beside = path.parent / f"{path.stem}.json"
    try:
        return read(beside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotEmulatedError(
            "metadata-unreadable",
            f"{beside} cannot be read",
            why=error.strerror or "it is not a regular file",
            fix="check the file",
        ) from error
    except ValueError as error:
        raise NotEmulatedError(
            "metadata-malformed", f"{beside} is not JSON", why="its text is damaged", fix=_AGAIN
        ) from error


def metadata_of(content: Any, where: str) -> Metadata:
    """Return the metadata in the content of a JSON file that this tool wrote.

    NotEmulatedError is raised if the content is malformed, or marks its kernel as known bad.

    Args:
        where: the path of the file or a description of it, for error messages.
    """
    try:
        if content.get("compile_status", "Complete") != "Complete":
            raise NotEmulatedError(
                "kernel-known-bad",
                f"{where} marks its kernel as known bad",
                why=str(content["compile_status"]),
                fix="choose a kernel whose compile_status is Complete",
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
            scratch=_scratch(content),
        )
    except KeyError as error:
        raise NotEmulatedError(
            "metadata-malformed", f"{where} is incomplete", why=f"it has no key {error}", fix=_AGAIN
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        why = "a value has an unexpected type"
        raise NotEmulatedError("metadata-malformed", f"{where} is malformed", why=why, fix=_AGAIN) from error


def described(code: CodeObject, beside: Any, ir: str = "", signature: str = "") -> Metadata:
    """Return the metadata of a code object that this tool, Triton or another program wrote.

    Args:
        beside: the content of the JSON file next to the object, which this tool or Triton wrote; None if there is no
            such file.
        ir: the text of `NAME.ttir`, Triton's IR, which gives the names and types of arguments; empty if there is no
            such file.
        signature: the signature that the user gave (see `parse_signature`), which takes precedence over those in
            `beside` and `ir`; empty if there is none.
    """
    if isinstance(beside, Mapping) and "signature" in beside and not signature:
        metadata = metadata_of(beside, f"the JSON file next to {code.path.name}")
        check_metadata(code, metadata)
        return metadata
    parameters = parse_signature(signature) if signature else _fitting(code, _of_ir(ir, code.kernel))
    lanes = 32 if code.descriptor.wave32 else 64
    about = beside if isinstance(beside, Mapping) else {}
    try:
        metadata = Metadata(
            kernel=str(about.get("name", code.kernel)),
            gpu=str(about.get("arch", code.gpu)),
            parameters=tuple(parameters),
            waves=int(about.get("num_warps", code.workgroup_size // lanes)),
            lds=int(about.get("shared", _LDS_OF.get(code.gpu, _LDS))),
            lds_known="shared" in about,
            scratch=_scratch(about),
        )
    except (TypeError, ValueError) as error:
        raise NotEmulatedError(
            "metadata-malformed",
            f"the JSON file next to {code.path.name} was not written by Triton",
            why="a value has an unexpected type",
            fix="remove the file",
        ) from error
    try:
        check_metadata(code, metadata)
    except NotEmulatedError as error:
        if error.id != "kernel-signature-mismatch":
            raise
        if signature:
            raise LaunchError(
                "kernel-signature-invalid",
                "--signature does not match the kernel",
                why=error.why,
                fix="correct the signature",
            ) from error
        # The arguments are those of the object itself, so no other JSON file could help.
        error.fix = "report it with the code object"
        raise
    return metadata


def parse_signature(text: str) -> list[Parameter]:
    """Return the parameters in a signature, which consists of entries `[NAME=]TYPE[:HINT]`, separated by commas.

    Empty entries and constants, which are numbers or `constexpr`, are omitted. A parameter without a name is called
    `argN`, where N is its index in the result.
    """
    parameters: list[Parameter] = []
    for part in text.split(","):
        name, _, kind = part.strip().rpartition("=")
        kind = kind.partition(":")[0].strip()
        if kind and not kind.lstrip("-")[:1].isdigit() and kind != "constexpr":
            parameters.append(Parameter(name.strip() or f"arg{len(parameters)}", kind))
    return parameters


def _of_ir(text: str, kernel: str) -> list[Parameter]:
    """Return the parameters of a kernel's function in Triton's IR; an empty list if they cannot be determined."""
    line = next((line for line in text.splitlines() if f"tt.func public @{kernel}(" in line), "")
    found = list(_ARGUMENT.finditer(line))
    kinds = [_IR_TYPES.get(match[3] or match[2], "") for match in found]
    if not all(kinds) or len(found) != len(re.findall(r"%\w+: ", line)):
        return []
    return [
        Parameter(match[4] or match[1], f"*{kind}" if match[3] else kind)
        for match, kind in zip(found, kinds, strict=True)
    ]


def _fitting(code: CodeObject, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return `parameters` if they are not empty and match the object, and otherwise those in the object's metadata."""
    try:
        check_parameters(code, parameters)
    except NotEmulatedError:
        parameters = []
    if parameters:
        return list(parameters)
    arguments = [argument for argument in code.arguments if not argument.kind.startswith(HIDDEN)]
    kinds = ["*" if argument.kind == "global_buffer" else f"b{8 * argument.size}" for argument in arguments]
    own = range(len(kinds) - _OWN, len(kinds))
    return [
        Parameter(
            argument.name or f"arg{number}",
            kind,
            optional=number in own and set(kinds[number:]) == {"*"},
            offset=argument.offset,
        )
        for number, (argument, kind) in enumerate(zip(arguments, kinds, strict=True))
    ]


def _scratch(content: Mapping[str, Any]) -> int:
    return int(content.get("global_scratch_size", 0)) + int(content.get("profile_scratch_size", 0))


def check_metadata(code: CodeObject, metadata: Metadata) -> None:
    """Raise NotEmulatedError if the metadata does not match the object, or requires something that is not emulated."""
    lanes = 32 if code.descriptor.wave32 else 64
    if code.workgroup_size not in range(lanes, _MOST_THREADS + 1, lanes):
        raise code.not_emulated(
            f"a workgroup has {code.workgroup_size} threads instead of whole waves of {lanes} threads"
        )
    threads = metadata.waves * lanes
    for name, ours, theirs in (
        ("the kernel", metadata.kernel, code.kernel),
        ("the GPU", metadata.gpu, code.gpu),
        ("the threads of a workgroup", threads, code.workgroup_size),
    ):
        if ours != theirs:
            raise NotEmulatedError(
                "metadata-other-object",
                f"the JSON file next to {code.path.name} belongs to another object",
                why=f"{name}: {ours} in the JSON file, {theirs} in the object",
                fix="keep the two files of a kernel together",
            )
    lds, lane, block = max(metadata.lds, code.descriptor.lds), code.descriptor.scratch, code.descriptor.kernarg
    if metadata.lds < 0 or max(lds, lane, block) > _LARGEST:
        raise NotEmulatedError(
            "memory-too-large",
            f"{code.path.name} needs more memory than any GPU has",
            why=f"{lds} bytes of LDS, {lane} bytes of scratch memory for each lane, {block} bytes of arguments",
            fix=_AGAIN,
        )
    if any(not 0 <= a.offset <= a.offset + a.size <= block for a in code.arguments):
        raise NotEmulatedError(
            "arguments-unfit",
            f"{code.path.name} has arguments outside of its argument block",
            why=f"the block has {block} bytes",
            fix=_AGAIN,
        )
    if metadata.scratch:
        raise code.not_emulated(f"the kernel needs {metadata.scratch} bytes of Triton's scratch memory")
    check_parameters(code, metadata.parameters)
