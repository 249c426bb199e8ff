"""Write a sample of the code objects in an image, an archive or a folder to a folder, with their launch data.

The files are read twice: first to list the code objects, and then to read the chosen ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from toolchain.catalog.gpus import gpu_of_flag
from toolchain.core.check_result import Object
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.stored_file import StoredFile
from toolchain.kernels.codeobject import ElfTables
from toolchain.kernels.launches import NAME
from toolchain_lab.emulator.errors import NotEmulatedError
from toolchain_lab.emulator.metadata import Metadata, metadata_of
from toolchain_lab.examine.contents import IMAGES, Beside, Code, LaunchList, Pack, contents
from toolchain_lab.examine.launch_values import Launches
from toolchain_lab.examine.places import advice
from toolchain_lab.numbers.objects import SUFFIX, sample

# This function returns the launch data of a kernel, given the kernel's path and its LDS in bytes; it returns None for
# an unknown kernel.
Planned = Callable[[str, int], Mapping[str, Any] | None]
_LAUNCH = ".launch"  # the launch data in a Triton cache is in NAME.launch.json; NAME.json is Triton's


@dataclass(kw_only=True)
class Collected:
    """The code objects that `collect` chose and wrote to a folder.

    Args:
        available: the number of code objects from which `objects` were chosen.
        unknown: the paths of AOTriton packs that lack launch data.
        other: the number of .co files, which are not checked, because nothing records how such a kernel is launched.
    """

    objects: list[Object]
    available: int
    unknown: list[str] = field(default_factory=list)
    other: int = 0


def collect(
    files: Iterable[StoredFile],
    folder: Path,
    *,
    gpus: Sequence[str] = (),
    count: int | None = None,
    seed: int = 0,
    label: str = "",
    planned: Planned | None = None,
) -> Collected:
    """Choose code objects in `files`, and write them to a folder, each with a JSON file if its launch data is known.

    Empty code objects are skipped.

    Args:
        files: the files, which can be iterated several times.
        gpus: the GPUs for which code objects are chosen; by default, all GPUs.
        count: the maximum number of code objects to choose (see `objects.sample`); None to choose all.
        label: the name of the image, archive or folder that contains the files, for error messages.
        planned: a function that returns the launch data of kernels in packs without a launch list; None to skip such
            packs.

    ConfigError is raised if there is no code object for these GPUs outside of packs that lack launch data, or if two
    code objects have the same name.
    """
    known = _Known(planned)
    objects: dict[str, Object] = {}
    there: set[str] = set()
    for name, own, about in known.list(files, gpus=bool(gpus)):
        gpu, kernel = (about.gpu, f"{about.source}:{about.kernel}") if about is not None else (own, "")
        if name in objects:
            raise ConfigError(
                "object-ambiguous",
                f"{label} contains {name} more than once",
                why="it contains several images, or an image with the same file in several layers",
                fix="name a single image or folder",
            )
        there.add(gpu)
        if not gpus or gpu in gpus:
            objects[name] = Object(folder / f"{len(objects)}{SUFFIX}", name, gpu, kernel)
    if not objects:
        raise _nothing(known, label, gpus, there - {""})
    chosen = {each.name: each for each in sample(sorted(objects.values(), key=lambda each: each.name), count, seed)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, code, beside in known.take(files, chosen):
        if code is not None:
            chosen[name].path.write_bytes(code)
        if beside is not None:
            chosen[name].path.with_suffix(".json").write_bytes(beside)
    return Collected(objects=list(chosen.values()), available=len(objects), unknown=known.unknown, other=known.other)


def _nothing(known: _Known, label: str, gpus: Sequence[str], there: Collection[str]) -> ConfigError:
    wanted = f" for {', '.join(gpus)}" if gpus else ""
    if known.unknown:
        return ConfigError(
            "launches-missing",
            f"{label} does not record how its kernels are launched{wanted}",
            why=f"{known.unknown[0]} is a pack of AOTriton without a file {NAME}",
            fix="give the folder of AOTriton's generator and its source: --plan DIR --source DIR",
        )
    why = f"it contains no {SUFFIX} file, no pack of AOTriton and no result of a kernel store"
    fix = advice(label, "a folder, image, pack or kernel store with code objects")
    if there:
        why = f"it contains code objects for {', '.join(sorted(there))}"
        fix = "name one of these, or omit --gpu"
    return ConfigError("no-code-objects", f"{label} contains no code objects{wanted}", why=why, fix=fix)


class _Known:
    """The launch data that is known for the code objects in a collection of files."""

    def __init__(self, planned: Planned | None) -> None:
        self._planned = planned
        self._launches: dict[str, Launches] = {}
        self.unknown: list[str] = []
        self.other = 0

    def list(self, files: Iterable[StoredFile], *, gpus: bool) -> Iterator[tuple[str, str, Metadata | None]]:
        """Yield the name, the GPU and the metadata of each code object; the metadata is None if it is unknown.

        The GPU is empty if only the metadata names it. PTX and .co files, empty code objects, and code objects in packs
        without known launch data are omitted.

        Args:
            gpus: whether to read the GPU from code objects in neither a pack nor a store.
        """
        codes: list[tuple[Code, str]] = []
        beside: dict[str, Metadata] = {}
        packs: list[tuple[str, list[tuple[str, int]]]] = []
        for item in contents(files, _refuse):
            if isinstance(item, Beside):
                if (metadata := _metadata(item.content)) is not None:
                    beside[item.stem.removesuffix(_LAUNCH)] = metadata
            elif isinstance(item, LaunchList):
                self._launches[item.folder] = item.launches
            elif isinstance(item, Pack):
                # The kernels of packs are yielded last, because the launch data of a pack may follow the pack.
                packs.append((item.path, [] if self._planned is None else list(_keys(item))))
            elif item.launch is not None:
                yield item.name, "", _metadata(item.launch)
            elif item.size and item.file.endswith(SUFFIX):
                codes.append((item, item.gpu or (_gpu_of(item.read()) if gpus else "")))
            elif item.size and not item.is_ptx:
                self.other += 1
        for code, gpu in codes:
            metadata = beside.get(code.stem)
            yield code.name, gpu, metadata if metadata is None or code.gpu in {"", metadata.gpu} else None
        for path, keys in packs:
            for key, about in self._of_pack(path, keys):
                yield key, "", about

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
        if not there and IMAGES in f"/{path}":
            self.unknown.append(path)
        for key, about in there:
            yield key, _metadata(about)

    def _beside(self, path: str) -> tuple[str, Launches] | None:
        """Return the folder of the launch data for the pack at a path, and the launch data; None if there is none."""
        for folder in map(str, PurePosixPath(path).parents):
            if folder in self._launches:
                return folder, self._launches[folder]
        return None

    def take(
        self, files: Iterable[StoredFile], wanted: Collection[str]
    ) -> Iterator[tuple[str, bytes | None, bytes | None]]:
        """Yield (name, code object, JSON) for each wanted object; the JSON is None if there is none.

        For an object in neither a pack nor a store, the JSON follows at the end, with None in place of the code object.
        """
        stems = {name.partition(f"{SUFFIX}#")[0].removesuffix(SUFFIX) for name in wanted}
        loose: dict[str, str] = {}
        beside: dict[str, bytes] = {}
        for item in contents(files, _refuse):
            if isinstance(item, Beside):
                if item.stem in stems:
                    beside.setdefault(item.stem, item.raw)
                elif item.stem.removesuffix(_LAUNCH) in stems:
                    beside[item.stem.removesuffix(_LAUNCH)] = item.raw
            elif isinstance(item, Pack):
                if self._beside(item.path) is not None or self._planned is not None:
                    yield from self._take_pack(item, wanted)
            elif isinstance(item, Code) and item.name in wanted:
                yield item.name, item.read(), None if item.launch is None else json.dumps(item.launch).encode()
                if item.launch is None:
                    loose[item.name] = item.stem
        for name, stem in loose.items():
            yield name, None, beside.get(stem)

    def _take_pack(self, pack: Pack, wanted: Container[str]) -> Iterator[tuple[str, bytes, bytes]]:
        folder, launches = self._beside(pack.path) or ("", None)
        for code in pack.codes(_refuse):
            if code.name in wanted:
                shared = code.shared or 0
                if launches is not None:
                    about: Any = launches.metadata(code.name.removeprefix(f"{folder}/"), shared)
                else:
                    about = self._planned(code.name, shared) if self._planned is not None else None
                yield code.name, code.read(), json.dumps(about).encode()


def _refuse(error: ToolchainError) -> NoReturn:
    raise error


def _gpu_of(content: bytes) -> str:
    """Return the GPU of a code object; an empty string if the object is damaged or the GPU is unknown."""
    try:
        return gpu_of_flag(ElfTables(content).mach) or ""
    except ValueError:
        return ""


def _keys(pack: Pack) -> Iterator[tuple[str, int]]:
    for code in pack.codes(_refuse):
        if code.size:
            yield code.name, code.shared or 0


def _metadata(about: Any) -> Metadata | None:
    try:
        return metadata_of(about, "the launch")
    except NotEmulatedError:
        return None  # the check of the code object reports the error
