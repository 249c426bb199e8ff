"""Code objects out of files of any place, with their launch data: a sample of them is written to a folder.

A file is a path and a function that reads it. They are read twice: to list them, and to take the
chosen ones. So only these are written, even of a whole set of AOTriton's kernels.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from toolchain.core import strict_json
from toolchain.core.check_result import Object
from toolchain.core.errors import ConfigError, DocumentError, KernelError
from toolchain.kernels.aks2 import MAGIC, Kernel, read_aks2
from toolchain.kernels.launches import NAME, Launches
from toolchain.kernels.store import LARGEST_METADATA, DamagedError, stored_record
from toolchain_lab.emulator.errors import NotEmulatedError
from toolchain_lab.emulator.metadata import Metadata, metadata_of
from toolchain_lab.numbers.objects import SUFFIX, sample

File = tuple[str, Callable[[], bytes]]
# The launch of a pack's kernel by its path and its bytes of LDS, for packs without launch data.
Planned = Callable[[str, int], Mapping[str, Any] | None]
_IMAGES = "aotriton.images/"
_LAUNCH = ".launch"  # of a Triton cache, where the JSON beside an object is Triton's own
_RESULTS = "results/"
_AGAIN = "get it again from whoever made it"


@dataclass(kw_only=True)
class Collected:
    """The content of a place.

    Args:
        objects: the chosen ones.
        available: how many there are.
        unknown: packs of AOTriton without launch data.
    """

    objects: list[Object]
    available: int
    unknown: list[str] = field(default_factory=list)


def collect(
    files: Iterable[File],
    folder: Path,
    *,
    gpus: Sequence[str] = (),
    count: int | None = None,
    seed: int = 0,
    label: str = "",
    planned: Planned | None = None,
) -> Collected:
    """Choose code objects of a place, and write them to a folder, each with its JSON.

    Empty ones, which mark kernels as known bad, are left out.

    Args:
        files: can be gone through more than once.
        gpus: only those for these; all by default.
        count: how many, see `objects.sample`; None for all.
        label: what messages call the place.
        planned: see there.

    Raises:
        ConfigError: there is none, or two have one name.
        KernelError: a pack or a result of a kernel store is damaged.
    """
    known = _Known(planned)
    objects: dict[str, Object] = {}
    there: set[str] = set()
    for name, about in known.list(files):
        gpu, kernel = (about.gpu, f"{about.source}:{about.kernel}") if about is not None else ("", "")
        if name in objects:
            raise ConfigError(
                f"{label} holds {name} more than once", why="there are several images in it", fix="name one of them"
            )
        there.add(gpu)
        if not gpus or gpu in gpus:
            objects[name] = Object(folder / f"{len(objects)}{SUFFIX}", name, gpu, kernel)
    if not objects:
        raise _nothing(known, label, gpus, there - {""})
    chosen = {each.name: each for each in sample(sorted(objects.values(), key=lambda each: each.name), count, seed)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, code, beside in known.take(files, chosen):
        chosen[name].path.write_bytes(code)
        if beside is not None:
            chosen[name].path.with_suffix(".json").write_bytes(beside)
    return Collected(objects=list(chosen.values()), available=len(objects), unknown=known.unknown)


def _nothing(known: _Known, label: str, gpus: Sequence[str], there: Collection[str]) -> ConfigError:
    wanted = f" for {', '.join(gpus)}" if gpus else ""
    if known.unknown:
        return ConfigError(
            f"{label} does not say how its kernels are launched{wanted}",
            why=f"{known.unknown[0]} is a pack of AOTriton, and no {NAME} is beside it",
            fix="--plan DIR and --source DIR: the folder of AOTriton's generator, and its source",
        )
    if there:
        fix = "name one of these, or leave --gpu out"
        return ConfigError(f"{label} holds no code objects{wanted}", why=f"it has {', '.join(sorted(there))}", fix=fix)
    return ConfigError(
        f"{label} holds no code objects{wanted}",
        why=f"there is no file {SUFFIX}, no pack of AOTriton and no result of a kernel store",
        fix="name a folder, image, pack or kernel store that has some",
    )


class _Known:
    """The metadata of the code objects of a place."""

    def __init__(self, planned: Planned | None) -> None:
        self._planned = planned
        self._launches: dict[str, Launches] = {}
        self.unknown: list[str] = []

    def list(self, files: Iterable[File]) -> Iterator[tuple[str, Metadata | None]]:
        """The objects: a name, and its metadata."""
        codes, beside, packs = [], {}, []
        for path, content in files:
            stem, _, suffix = path.rpartition(".")
            if path.endswith(SUFFIX):
                if content():
                    codes.append(stem)
            elif suffix == "json":
                if (metadata := _metadata_in(content())) is not None:
                    beside[stem.removesuffix(_LAUNCH)] = metadata
            elif _is_result(path):
                yield path, _metadata(_record(path, content)[1])
            elif PurePosixPath(path).name == NAME:
                self._launches[str(PurePosixPath(path).parent)] = _launches(path, content)
            elif _may_be_pack(path):
                # Its launches may come later.
                packs.append((path, [] if self._planned is None else list(_keys(path, content))))
        for stem in codes:
            yield f"{stem}{SUFFIX}", beside.get(stem)
        for path, keys in packs:
            yield from self._of_pack(path, keys)

    def _of_pack(self, path: str, keys: Sequence[tuple[str, int]]) -> Iterator[tuple[str, Metadata | None]]:
        if (named := self._beside(path)) is not None:
            folder, launches = named
            stem = path.removeprefix(f"{folder}/" if folder != "." else "").rpartition(".")[0]
            for key in launches.kernels:
                if key.startswith(f"{stem}/"):
                    yield f"{folder}/{key}", _metadata(launches.metadata(key, 0))
            return
        planned = [(key, self._planned(key, shared)) for key, shared in keys] if self._planned is not None else []
        there = [(key, about) for key, about in planned if about is not None]
        if not there and _IMAGES in f"/{path}":
            self.unknown.append(path)
        for key, about in there:
            yield key, _metadata(about)

    def _beside(self, path: str) -> tuple[str, Launches] | None:
        """The launches of the pack that a file is of, and the pack's folder."""
        for folder in map(str, PurePosixPath(path).parents):
            if folder in self._launches:
                return folder, self._launches[folder]
        return None

    def take(self, files: Iterable[File], wanted: Container[str]) -> Iterator[tuple[str, bytes, bytes | None]]:
        """The content of objects, and that of the JSON beside them."""
        codes: dict[str, bytes] = {}
        beside: dict[str, bytes] = {}
        for path, content in files:
            stem, _, suffix = path.rpartition(".")
            if path in wanted and path.endswith(SUFFIX):
                codes[stem] = content()
            elif suffix == "json" and f"{stem}{SUFFIX}" in wanted:
                beside.setdefault(stem, content())
            elif suffix == "json" and f"{stem.removesuffix(_LAUNCH)}{SUFFIX}" in wanted:
                beside[stem.removesuffix(_LAUNCH)] = content()
            elif path in wanted:
                code, about = _record(path, content)
                yield path, code, json.dumps(about).encode()
            elif _may_be_pack(path) and (self._beside(path) is not None or self._planned is not None):
                yield from self._take_pack(path, content, wanted)
        for stem, code in codes.items():
            yield f"{stem}{SUFFIX}", code, beside.get(stem)

    def _take_pack(
        self, path: str, content: Callable[[], bytes], wanted: Container[str]
    ) -> Iterator[tuple[str, bytes, bytes]]:
        folder, launches = self._beside(path) or ("", None)
        for key, entry in _entries(path, content):
            if key in wanted:
                if launches is not None:
                    about: Any = launches.metadata(key.removeprefix(f"{folder}/"), entry.shared)
                else:
                    about = self._planned(key, entry.shared) if self._planned is not None else None
                yield key, entry.content, json.dumps(about).encode()


def _keys(path: str, content: Callable[[], bytes]) -> Iterator[tuple[str, int]]:
    for key, entry in _entries(path, content):
        if entry.content:
            yield key, entry.shared


def _entries(path: str, content: Callable[[], bytes]) -> Iterator[tuple[str, Kernel]]:
    """The kernels of a .zip of .aks2, or of one of these, by their path."""
    stem = path.rpartition(".")[0]
    data = content()
    if data[: len(MAGIC)] == MAGIC:
        yield from ((f"{stem}/{entry.name}", entry) for entry in _read(path, data))
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for row in archive.infolist():
                packed = archive.read(row)
                if packed[: len(MAGIC)] == MAGIC:
                    inside = f"{stem}/{row.filename.removesuffix('.aks2')}"
                    yield from ((f"{inside}/{entry.name}", entry) for entry in _read(path, packed))
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise KernelError(f"{path} is not a complete .zip", why=str(error), fix=_AGAIN) from error


def _read(path: str, data: bytes) -> Sequence[Kernel]:
    try:
        return read_aks2(data)
    except KernelError as error:
        raise KernelError(f"{path}: {error.what}", why=error.why, fix=_AGAIN) from error


def _may_be_pack(path: str) -> bool:
    return path.endswith((".zip", ".aks2"))


def _is_result(path: str) -> bool:
    """Whether a file is a result of a kernel store, by its path."""
    _, mark, name = f"/{path}".rpartition(f"/{_RESULTS}")
    digits = name.replace("/", "", 1)
    return bool(mark) and len(digits) == 64 and set(digits) <= set("0123456789abcdef")


def _record(path: str, content: Callable[[], bytes]) -> tuple[bytes, Any]:
    try:
        result = stored_record(content())
        return result.code, strict_json.read(result.metadata)
    except (DamagedError, ValueError) as error:
        raise KernelError(f"{path} is not a complete result of a kernel store", why=str(error), fix=_AGAIN) from error


def _launches(path: str, content: Callable[[], bytes]) -> Launches:
    try:
        return Launches(strict_json.read(content()))
    except (ValueError, KeyError, AttributeError) as error:
        raise KernelError(
            f"{path} does not say how the kernels of its pack are launched",
            why=str(error),
            fix="build the image again with this version of the tool",
        ) from error


def _metadata_in(data: bytes) -> Metadata | None:
    if len(data) > LARGEST_METADATA:
        return None
    try:
        return metadata_of(strict_json.read(data), "the JSON")
    except (NotEmulatedError, DocumentError, ValueError):
        return None  # the check reports what is wrong with it


def _metadata(about: Any) -> Metadata | None:
    try:
        return metadata_of(about, "the launch")
    except NotEmulatedError:
        return None
