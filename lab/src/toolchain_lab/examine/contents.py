"""Find the compiled kernels in code objects, bundles, PTX files, packs and kernel stores, and find their JSON files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias

from toolchain.catalog.aotriton_generations import pack
from toolchain.catalog.gpus import known_gpus
from toolchain.core import strict_json
from toolchain.core.errors import DocumentError, HostileInputError, KernelError, SourceError, ToolchainError
from toolchain.core.stored_file import StoredFile, on_disk
from toolchain.core.unpack_budget import UnpackBudget
from toolchain.core.zips import entry, open_zip
from toolchain.kernels.aks2 import MAGIC, open_aks2
from toolchain.kernels.launches import NAME
from toolchain.kernels.result_store import LARGEST_OBJECT, DamagedError, read_record
from toolchain_lab.examine.launch_values import Launches
from toolchain_lab.examine.offload import MAGIC_BYTES, Part, is_bundle, parts

IMAGES = "aotriton.images/"
_GPU = re.compile(rf"(?:amd-)?(?:{'|'.join(sorted({*known_gpus(), *map(pack, known_gpus())}))})|sm_\d+\w?")
_RESULT = re.compile(r"(?:.*/)?results/(?:[0-9a-f]{2}/[0-9a-f]{62}|[0-9a-f]{64})")
_OBJECTS = (".hsaco", ".co")
_LARGEST_PTX = 16 << 20  # bytes; the limit for a PTX file
_LARGEST_BESIDE = 1 << 20  # bytes; the limit for the JSON file next to a code object
_AGAIN = "get it again, or build it again"
# This function is called with the error for a damaged file. If it returns, the rest of the file is skipped.
OnFault: TypeAlias = Callable[[ToolchainError], None]
FAULTS = (KernelError, SourceError, HostileInputError)


@dataclass(frozen=True, kw_only=True)
class Code:
    """A code object or a PTX file in a place.

    Args:
        name: the path in the place. For a code object in a bundle, `#` and the GPU with its features follow the path of
            the bundle. For a kernel in a pack, the kernel's name follows the path of its .aks2 file without the suffix.
        file: the path of the file that contains the code, followed by the name of the entry if that file is a .zip.
        read: a function that returns the content; it must be called before the iteration goes on to the next code
            object.
        shared: for a kernel in a pack, the number of bytes of LDS that a launch adds; otherwise None.
        gpu: the GPU that a bundle names for a code object; empty for other code objects.
        stem: the path of the JSON file for the code, without the suffix; empty if there cannot be such a file.
        launch: for a result in a kernel store, the launch data; otherwise None.
        inputs: for a result in a kernel store, the compilation inputs; otherwise empty.
    """

    name: str
    file: str
    size: int
    read: Callable[[], bytes] = field(repr=False)
    shared: int | None = None
    gpu: str = ""
    stem: str = ""
    launch: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ptx(self) -> bool:
        return self.file.endswith(".ptx")


class SealedError(KernelError):
    """A compressed bundle cannot be unpacked without the package for zstd, so its GPUs are unknown."""


@dataclass(frozen=True)
class Beside:
    """A JSON file that may belong to the code object next to it."""

    stem: str
    raw: bytes = field(repr=False)
    content: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class LaunchList:
    """The launch data for the kernels in the packs of a folder."""

    folder: str
    launches: Launches = field(repr=False)


@dataclass(frozen=True)
class Pack:
    """An .aks2 file, or a .zip that may contain .aks2 files. The method `codes` opens the file."""

    path: str
    _file: StoredFile = field(repr=False)
    _budget: UnpackBudget = field(repr=False)

    def codes(self, on_fault: OnFault) -> Iterator[Code]:
        """Return an iterator over the code objects.

        If the pack or an .aks2 file in it is damaged, `on_fault` is called, and the rest of the damaged file is
        skipped.
        """
        self._budget.add(self._file.size)
        is_zip = self.path.endswith(".zip")
        codes = _zipped(self._file, self._budget, on_fault) if is_zip else _packed(self._file, self._budget)
        return _guarded(codes, on_fault)


def contents(files: Iterable[StoredFile], on_fault: OnFault) -> Iterator[Code | Beside | LaunchList | Pack]:
    """Yield the compiled code, the packs, the JSON files and the launch lists of a place, in the order of its files."""
    budget = UnpackBudget()
    for file in files:
        try:
            yield from _items(file, budget)
        except FAULTS as error:
            on_fault(error)


def _items(file: StoredFile, budget: UnpackBudget) -> Iterator[Code | Beside | LaunchList | Pack]:
    path = file.path
    stem, _, suffix = path.rpartition(".")
    if path.endswith(_OBJECTS):
        yield from _objects(file, stem, budget)
    elif suffix == "ptx":
        yield Code(name=path, file=path, size=file.size, read=lambda: file.read(_LARGEST_PTX), stem=stem)
    elif suffix in {"aks2", "zip"}:
        yield Pack(path, file, budget)
    elif suffix == "json":
        if (beside := _beside(file, stem)) is not None:
            yield beside
    elif PurePosixPath(path).name == NAME:
        yield LaunchList(str(PurePosixPath(path).parent), _launches(file))
    elif _RESULT.fullmatch(path):
        yield _result(file)


def bundled(path: Path) -> Iterator[Code]:
    """Yield the code objects in a file if it is a bundle; for any other file, yield nothing.

    KernelError is raised if the file cannot be read, or if it is a bundle that is damaged, cannot be unpacked here, or
    contains no code for an AMD GPU; see `parts` for more errors.
    """
    try:
        file = on_disk(path, path.name, Path(os.path.realpath(path)).parent)
        with file.open() as stream:
            if is_bundle(stream.read(MAGIC_BYTES)):
                yield from _of_bundle(file, stream, "", UnpackBudget())
    except OSError as error:
        raise KernelError(
            "object-unreadable", f"cannot read {path}", why=str(error.strerror), fix="check the path"
        ) from error


def _objects(file: StoredFile, stem: str, budget: UnpackBudget) -> Iterator[Code]:
    with file.open() as stream:
        if is_bundle(stream.read(MAGIC_BYTES)):
            yield from _of_bundle(file, stream, stem, budget)
        else:
            yield Code(name=file.path, file=file.path, size=file.size, read=lambda: _rest(file, stream), stem=stem)


def _of_bundle(file: StoredFile, stream: BinaryIO, stem: str, budget: UnpackBudget) -> Iterator[Code]:
    found = False
    budget.add(file.size)
    for part in parts(stream, file.size, file.path, budget=budget):
        if not isinstance(part, Part):
            raise SealedError(
                "offload-bundle-sealed",
                f"{file.path} is a compressed bundle, and its GPUs are unknown",
                why=part.why,
                fix="pip install backports.zstd, or unpack the file: clang-offload-bundler --unbundle",
            )
        if part.size and part.gpu:
            found = True
            yield Code(
                name=f"{file.path}#{part.processor}",
                file=file.path,
                size=part.size,
                read=part.read,
                gpu=part.gpu,
                stem=stem,
            )
    if not found:
        raise KernelError("offload-bundle-empty", f"{file.path} is a bundle without code for an AMD GPU", fix=_AGAIN)


def _rest(file: StoredFile, stream: BinaryIO) -> bytes:
    if file.size > LARGEST_OBJECT:
        return file.read(LARGEST_OBJECT)  # this raises an error, because the file is too large
    stream.seek(0)
    return stream.read(file.size)


def _zipped(file: StoredFile, budget: UnpackBudget, on_fault: OnFault) -> Iterator[Code]:
    with file.open() as stream:
        if stream.read(2) != b"PK":
            return
        with open_zip(stream, file.path) as archive:
            for row in archive.infolist():
                packed = entry(archive, row)
                known = row.filename.endswith(".aks2") or IMAGES in f"/{file.path}"
                if row.is_dir() or not (known or packed.head(len(MAGIC)) == MAGIC):
                    continue
                inside = replace(packed, path=_inside(file.path, row.filename))
                for code in _guarded(_packed(inside, budget), on_fault):
                    yield replace(code, file=f"{file.path}: {row.filename}")


def _inside(path: str, name: str) -> str:
    own = any(_GPU.fullmatch(part) for part in name.split("/"))
    return name if own else f"{path.removesuffix('.zip')}/{name}"


def _packed(file: StoredFile, budget: UnpackBudget) -> Iterator[Code]:
    try:
        with file.start() as stream, open_aks2(stream, file.size, budget) as kernels:
            for kernel in kernels:
                name = f"{file.path.removesuffix('.aks2')}/{kernel.name}"
                yield Code(name=name, file=file.path, size=kernel.size, read=kernel.read, shared=kernel.shared)
    except (KernelError, HostileInputError) as error:
        raise type(error)(error.id, f"{file.path}: {error.what}", why=error.why, fix=_AGAIN) from error


def _guarded(codes: Iterator[Code], on_fault: OnFault) -> Iterator[Code]:
    try:
        yield from codes
    except FAULTS as error:
        on_fault(error)


def _beside(file: StoredFile, stem: str) -> Beside | None:
    if file.size > _LARGEST_BESIDE:
        return None
    raw = file.read(_LARGEST_BESIDE)
    try:
        content = strict_json.read(raw, file.path)
    except (DocumentError, ValueError):  # a file that is not JSON belongs to no code object
        return None
    return Beside(stem, raw, content) if isinstance(content, dict) else None


def _launches(file: StoredFile) -> Launches:
    try:
        return Launches(strict_json.read(file.read(strict_json.LIMIT)))
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise KernelError(
            "launches-malformed",
            f"{file.path} is not a valid list of launches",
            why=error.what if isinstance(error, DocumentError) else "its format is unknown",
            fix="build the image again with this version of the tool",
        ) from error


def _result(file: StoredFile) -> Code:
    try:
        with file.start() as stream:
            result = read_record(stream.read(LARGEST_OBJECT), None)
        launch = strict_json.read(result.metadata)
        if not isinstance(launch, dict) or not isinstance(result.inputs.get("rule", {}), dict):
            raise DamagedError("its JSON is not an object")
    except (DamagedError, ValueError) as error:
        why = error.what if isinstance(error, DocumentError) else "a part of it is missing or damaged"
        raise KernelError(
            "stored-result-damaged", f"{file.path} is not a complete result of a kernel store", why=why, fix=_AGAIN
        ) from error
    code = result.code
    return Code(
        name=file.path, file=file.path, size=len(code), read=lambda: code, launch=launch, inputs=result.inputs
    )  # fmt: skip


def key_of(path: str) -> str:
    """Return a path without the folders before its first GPU or pack, the prefix `amd-` and the suffix `.hsaco`.

    If the path contains neither a GPU nor a pack, its folders are kept.
    """
    parts_ = path.split("/")
    start = next((at for at, part in enumerate(parts_) if _GPU.fullmatch(part)), 0)
    return "/".join(parts_[start:]).removeprefix("amd-").removesuffix(".hsaco")


def gpu_in(path: str) -> str:
    """Return the first GPU or pack that a path contains, or an empty string if it contains neither."""
    return next((part.removeprefix("amd-") for part in path.split("/") if _GPU.fullmatch(part)), "")
