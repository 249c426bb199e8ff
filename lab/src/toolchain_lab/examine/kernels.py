"""Compiled kernels in files: code objects, packs of AOTriton, PTX, results of kernel stores."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolchain.catalog.gpus import known_gpus, pack
from toolchain.core import strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, HostileInputError, KernelError
from toolchain.kernels.aks2 import MAGIC, read_aks2
from toolchain.kernels.store import LARGEST_METADATA, LARGEST_OBJECT, DamagedError, stored_record
from toolchain_lab.examine.facts import Facts, read_object, read_ptx
from toolchain_lab.examine.places import File, opened

_LAUNCH = ("name", "arch", "source", "signature", "constexprs", "num_warps", "num_stages", "waves_per_eu", "num_ctas")
_CACHED = ("num_warps", "num_stages", "num_ctas", "waves_per_eu")
_GPU = re.compile(rf"(?:amd-)?(?:{'|'.join(sorted({*known_gpus(), *map(pack, known_gpus())}))})|sm_\d+\w?")
_CACHE_FOLDER = re.compile(r"[A-Z2-7]{40,64}|[0-9a-f]{64}")
_RESULT = re.compile(r"(?:.*/)?results/(?:[0-9a-f]{2}/[0-9a-f]{62}|[0-9a-f]{64})")
_IMAGES = "aotriton.images/"
_AGAIN = "get it again from whoever made it"
# Called with the error of a damaged file, which is then skipped.
_OnFault = Callable[[KernelError], None]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A compiled kernel in a place.

    Args:
        key: names it among those of its place, the same way in another place with the same kernels.
        path: where it is.
        sha256: hex, of its file.
        facts: None for an empty one, which AOTriton's loader treats as known bad.
        launch: a digest of what it was compiled from, as the JSON beside it says; empty without one.
        content: of the object, if requested.
    """

    key: str
    path: str
    sha256: str
    facts: Facts | None
    launch: str = ""
    content: bytes = field(default=b"", repr=False, compare=False)

    @property
    def gpu(self) -> str:
        """LLVM's name; of an empty kernel by its path, which names at least the pack."""
        if self.facts is not None:
            return self.facts.gpu
        return next((part.removeprefix("amd-") for part in self.key.split("/") if _GPU.fullmatch(part)), "")

    @property
    def family(self) -> str:
        """The function's name; of an empty kernel the folder's."""
        return self.facts.name if self.facts is not None else (self.key.split("/")[-3:-2] or [""])[0]


def kernels_in(what: str, cache: Cache, *, keep: Collection[str] = ()) -> list[Kernel]:
    """The kernels of a place, sorted by key.

    Args:
        what: see `places.opened`.
        keep: digests of the objects whose content is wanted.

    Raises:
        ConfigError: there is nothing of that name, or nothing compiled in it.
        KernelError: a code object or a pack is damaged.
    """
    with opened(what, cache) as files:
        kernels = list(kernels_of(files, _refuse, keep=keep))
    if not kernels:
        raise ConfigError(
            f"{what} holds no compiled kernels",
            why="nothing in it is a code object, a pack of AOTriton, a result of a kernel store or PTX",
            fix="name a folder, pack, prefix, store, archive, wheel or image with kernels",
        )
    return sorted(_numbered(kernels), key=lambda kernel: kernel.key)


def _refuse(error: KernelError) -> None:
    raise error


def kernels_of(files: Iterable[File], on_fault: _OnFault, *, keep: Collection[str] = ()) -> Iterator[Kernel]:
    """The kernels among files.

    Args:
        on_fault: called with the error of a damaged file, which is then skipped.
    """
    waiting: dict[str, list[Kernel]] = {}
    beside: dict[str, Mapping[str, Any]] = {}
    for path, content in files:
        stem, dot, suffix = path.rpartition(".")
        if dot and suffix == "json":
            if (launch := _launch_json(content)) is not None:
                beside[stem] = launch
            continue
        for kernel in _sound(_kernels(path, content, on_fault), on_fault):
            if kernel.sha256 not in keep:  # thousands of them take as much memory as the place has bytes
                kernel = replace(kernel, content=b"")  # noqa: PLW2901
            if suffix in {"hsaco", "ptx"}:
                waiting.setdefault(stem, []).append(kernel)  # the JSON may come later
            else:
                yield kernel
    for stem, kernels in waiting.items():
        for kernel in kernels:
            yield _with_launch(kernel, beside.get(stem))


def _sound(kernels: Iterator[Kernel], on_fault: _OnFault) -> Iterator[Kernel]:
    try:
        yield from kernels
    except KernelError as error:
        on_fault(error)


def _kernels(path: str, content: Callable[[], bytes], on_fault: _OnFault) -> Iterator[Kernel]:
    if path.endswith((".hsaco", ".co")):
        yield from _of_object(path, path, content(), path)
    elif path.endswith(".ptx"):
        data = content()
        for facts in read_ptx(data.decode("utf-8", "replace"), path):
            yield _kernel(path, path, data, facts)
    elif path.endswith(".aks2"):
        yield from _of_pack(path, content(), on_fault)
    elif path.endswith(".zip") and (data := content())[:2] == b"PK":
        yield from _of_archive(path, data, on_fault)
    elif _RESULT.fullmatch(path):
        yield from _of_record(path, content())


def _kernel(key: str, path: str, content: bytes, facts: Facts | None, launch: str = "") -> Kernel:
    digest = hashlib.sha256(content).hexdigest()
    return Kernel(key=key_of(key), path=path, sha256=digest, facts=facts, launch=launch, content=content)


def _of_object(key: str, path: str, content: bytes, where: str, *, shared: int | None = None) -> Iterator[Kernel]:
    if not content:
        yield _kernel(key, path, content, None)
        return
    kernels = read_object(content, where, shared=shared)
    for facts in kernels:
        yield _kernel(key if len(kernels) == 1 else f"{key}#{facts.name}", path, content, facts)


def _of_pack(path: str, content: bytes, on_fault: _OnFault) -> Iterator[Kernel]:
    if content[:4] != MAGIC:
        raise KernelError(
            f"{path} is a pack of an unknown layout", why=f"it begins with {content[:4]!r}, not {MAGIC!r}", fix=_AGAIN
        )
    stem = path.removesuffix(".aks2")
    try:
        entries = read_aks2(content)
    except KernelError as error:
        raise KernelError(f"{path}: {error.what}", why=error.why, fix=_AGAIN) from error
    for entry in entries:
        key, where = f"{stem}/{entry.name}", f"{path}: {entry.name}"
        yield from _sound(_of_object(key, path, entry.content, where, shared=entry.shared), on_fault)


def _of_archive(path: str, content: bytes, on_fault: _OnFault) -> Iterator[Kernel]:
    """A .zip of .aks2, under any name; any other .zip is ignored."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for row in archive.infolist():
                if row.is_dir() or not (row.filename.endswith(".aks2") or _IMAGES in path or _begins(archive, row)):
                    continue
                if row.file_size > LARGEST_OBJECT:
                    raise HostileInputError(f"{path} holds {row.filename} of {row.file_size} bytes", fix=_AGAIN)
                for kernel in _sound(_of_member(path, archive, row, on_fault), on_fault):
                    yield replace(kernel, path=f"{path}: {row.filename}")
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise KernelError(f"{path} is not a complete .zip", why=str(error), fix=_AGAIN) from error


def _of_member(path: str, archive: zipfile.ZipFile, row: zipfile.ZipInfo, on_fault: _OnFault) -> Iterator[Kernel]:
    inside = row.filename if "/" in row.filename else f"{path.removesuffix('.zip')}/{row.filename}"
    try:
        content = archive.read(row)
    except zipfile.BadZipFile as error:
        raise KernelError(f"{path} holds {row.filename} damaged", why=str(error), fix=_AGAIN) from error
    yield from _of_pack(inside, content, on_fault)


def _begins(archive: zipfile.ZipFile, row: zipfile.ZipInfo) -> bool:
    with archive.open(row) as stream:
        return stream.read(len(MAGIC)) == MAGIC


def _of_record(path: str, content: bytes) -> Iterator[Kernel]:
    try:
        result = stored_record(content)
    except DamagedError as error:
        raise KernelError(f"{path} is not a complete result of a kernel store", why=str(error), fix=_AGAIN) from error
    rule = dict(result.inputs.get("rule", {}))
    launch = strict_json.read(result.metadata)
    for facts in read_object(result.code, path, shared=_shared(launch)):
        key = f"{facts.gpu}/{facts.name}/{_digest(rule)[:16]}"
        yield _kernel(key, path, result.code, facts, launch=_launch(launch))


def _launch_json(content: Callable[[], bytes]) -> Mapping[str, Any] | None:
    with contextlib.suppress(ValueError, OSError):
        data = content()
        if len(data) <= LARGEST_METADATA and isinstance(told := strict_json.read(data), dict):
            return told
    return None


def _with_launch(kernel: Kernel, launch: Mapping[str, Any] | None) -> Kernel:
    if launch is None or kernel.facts is None:
        return kernel
    lds = (kernel.facts.lds or 0) + (_shared(launch) or 0)
    return replace(kernel, facts=replace(kernel.facts, lds=lds), launch=_launch(launch), key=_cached(kernel, launch))


def _shared(launch: Mapping[str, Any]) -> int | None:
    shared = launch.get("shared")
    return shared if isinstance(shared, int) and 0 <= shared < 1 << 31 else None


def _launch(launch: Mapping[str, Any]) -> str:
    """The inputs of a kernel's compilation; empty if the JSON does not have all, as in Triton's own caches."""
    return _digest({name: launch.get(name) for name in _LAUNCH}) if {"signature", "constexprs"} <= launch.keys() else ""


def _cached(kernel: Kernel, launch: Mapping[str, Any]) -> str:
    """A key for a kernel of Triton's own cache, whose folder differs with each Triton."""
    folder = kernel.key.rpartition("/")[0].rpartition("/")[2]
    if kernel.facts is None or not _CACHE_FOLDER.fullmatch(folder):
        return kernel.key
    same = {name: launch.get(name) for name in _CACHED}
    return f"{kernel.facts.gpu}/{kernel.facts.name}/{_digest(same)[:8]}"


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def key_of(path: str) -> str:
    """A path from the folder that names the GPU, so that an image, a prefix and a build folder give the same name."""
    parts = path.split("/")
    start = next((at for at, part in enumerate(parts) if _GPU.fullmatch(part)), 0)
    return "/".join(parts[start:]).removeprefix("amd-").removesuffix(".hsaco")


def _numbered(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """Keys that come twice, as those of Triton's caches may, get a number by their content's order."""
    by_key: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_key.setdefault(kernel.key, []).append(kernel)
    for key, alike in by_key.items():
        yield alike[0]
        for number, kernel in enumerate(alike[1:], 2):
            yield replace(kernel, key=f"{key}~{number}")
