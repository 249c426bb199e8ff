"""Audit compiled code of any origin: find the GPUs that it is for, missing kernels, and the LLVMs in libraries."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from toolchain.catalog.aotriton_generations import pack
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.stored_file import StoredFile
from toolchain.kernels.aotriton_plan import read_packs
from toolchain.stages.aotriton import PARTIAL
from toolchain.stages.prebuilt import known_files
from toolchain_lab.examine.contents import FAULTS, OnFault, SealedError, key_of
from toolchain_lab.examine.kernels import Kernel, kernels_of
from toolchain_lab.examine.libraries import Library, newest, read_library
from toolchain_lab.examine.places import advice, opened
from toolchain_lab.examine.uneven import uneven

_WINDOWS = (".pyd", ".dll")
_HOST = (".so", *_WINDOWS)


@dataclass(kw_only=True)
class Audit:
    """The result of auditing a place; see `places.opened`.

    Args:
        missing: keys of kernels that the plan lists but the place lacks.
        empty: keys of kernels whose code object is empty, which AOTriton's loader treats as known bad.
        damaged: a description of the fault in each file that is damaged.
        absent: requested GPUs for which the place contains no code.
        unknown: requested GPUs for which no code was found, but for which a compressed bundle may contain some.
        sealed: the number of compressed bundles that cannot be unpacked here.
        uneven, differing: `missing` and `differing` of `uneven.Uneven`; empty if a plan was given.
        notes: lines about the files that were skipped, and about GPUs whose kernels can only be loaded if XNACK is on.
        planned: the number of kernels that the plan lists for the requested GPUs; None if no plan was given.
        partial: folders of AOTriton packs that a file in the folder marks as lacking kernels.
        prebuilt: files that have the name of a known prebuilt file; see data/prebuilt.toml.
        rebuilt: whether compiling a kernel again gave the same bytes, by the key of the kernel.
        images: digests of the images that were read; empty for files and folders.
    """

    what: str
    kernels: list[Kernel] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    sealed: int = 0
    uneven: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    planned: int | None = None
    partial: list[str] = field(default_factory=list)
    prebuilt: list[str] = field(default_factory=list)
    rebuilt: dict[str, bool] = field(default_factory=dict)
    images: tuple[str, ...] = ()

    def gpus(self) -> dict[str, dict[str, int]]:
        """Return the number of kernels by GPU and function, without empty kernels.

        A GPU for which only libraries contain code has an empty mapping, because code in libraries is not listed by
        function. The kernels of ROCm's runtime are not counted.
        """
        counters: dict[str, Counter[str]] = {}
        for kernel in self.kernels:
            if kernel.facts is not None:
                counters.setdefault(kernel.gpu, Counter())[kernel.family] += 1
        for library in self.libraries:
            for target in () if library.is_runtime else library.targets:
                counters.setdefault(target, Counter())
        return {gpu: dict(sorted(counts.items())) for gpu, counts in sorted(counters.items())}

    @property
    def glibc(self) -> str:
        """The oldest version of glibc with which all libraries run, or an empty string if no library needs glibc."""
        return newest(library.glibc for library in self.libraries if library.glibc)

    def problems(self, *, allow_empty: bool = False) -> list[str]:
        """Return a line for each kind of fault that was found.

        Args:
            allow_empty: whether empty kernels are not a fault.
        """
        wrong = [key for key, equal in self.rebuilt.items() if not equal]
        rows = [
            ("GPUs without a kernel", self.absent),
            ("kernels are missing", self.missing),
            ("kernels are empty (known bad)", [] if allow_empty else self.empty),
            ("files are damaged", self.damaged),
            ("kernels or functions are missing that another GPU has", self.uneven),
            ("kernels have other bytes when they are compiled again", wrong),
        ]
        unknown = [f"{self.sealed_note()}: {_first(self.unknown)} may be in there"] if self.unknown else []
        return [*(f"{len(keys)} {what}: {_first(keys)}" for what, keys in rows if keys), *unknown]

    def sealed_note(self) -> str:
        """Return a note about the bundles that cannot be unpacked, or an empty string if there are none."""
        if not self.sealed:
            return ""
        if self.sealed == 1:
            return "1 bundle is compressed, and its GPUs are unknown"
        return f"{self.sealed} bundles are compressed, and their GPUs are unknown"

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "gpus": self.gpus(),
            "kernels": len(self.kernels),
            "planned": self.planned,
            "missing": self.missing,
            "empty": self.empty,
            "damaged": self.damaged,
            "absent": self.absent,
            "unknown": self.unknown,
            "sealed": self.sealed,
            "uneven": self.uneven,
            "differing": self.differing,
            "notes": self.notes,
            "glibc": self.glibc,
            "partial": self.partial,
            "prebuilt": self.prebuilt,
            "libraries": [asdict(library) for library in self.libraries],
            "rebuilt": self.rebuilt,
        }


def _first(texts: Sequence[str]) -> str:
    return ", ".join([*(text[:160] for text in texts[:3]), *(["…"] if texts[3:] else [])])


def _not_read(paths: Sequence[str], one: str, many: str) -> list[str]:
    """Return a list with the note that counts the unread files of a kind. It is empty if there are no such files."""
    if not paths:
        return []
    counted = f"1 {one} was" if len(paths) == 1 else f"{len(paths)} {many} were"
    return [f"{counted} not read: {_first(paths)}"]


def audit(what: str, cache: Cache, *, gpus: Sequence[str] = (), plan: Path | None = None) -> Audit:
    """Audit the files of a place without running any of them.

    Args:
        what: the place; see `places.opened`.
        gpus: the GPUs for which there must be kernels.
        plan: the folder that AOTriton's generator wrote, if all kernels that it plans for `gpus` must be present. If
            it is None, the kernels for each GPU are compared with those for the other GPUs.

    ConfigError is raised if the place contains nothing that is compiled, or if the plan lists no kernel for these GPUs.
    """
    result = Audit(what=what)

    def fault(error: ToolchainError) -> None:
        if isinstance(error, SealedError):
            result.sealed += 1
        else:
            result.damaged.append(f"{error.what} ({error.why})" if error.why else error.what)

    windows, cubins = list[str](), list[str]()
    with opened(what, cache) as files:
        kernels = kernels_of(_looking(files, result, windows, cubins, fault), fault)
        result.kernels = sorted(kernels, key=lambda kernel: kernel.key)
        result.images, result.notes = files.images, files.notes()
    result.notes += _not_read(windows, "library for Windows", "libraries for Windows")
    result.notes += _not_read(cubins, "cubin for NVIDIA", "cubins for NVIDIA")
    if not (result.kernels or result.libraries or result.damaged or result.sealed):
        raise ConfigError(
            "nothing-compiled",
            f"{what} contains no compiled code",
            why="\n".join(
                [
                    "it contains no kernels or libraries that can be read; unpack packages such as .deb first",
                    *result.notes,
                ]
            ),
            fix=advice(what, "an image, a prefix, an archive, a wheel or a folder with compiled code"),
        )
    result.empty = [kernel.key for kernel in result.kernels if kernel.facts is None]
    there = result.gpus()
    loadable = {kernel.gpu for kernel in result.kernels if kernel.facts is not None and not kernel.facts.xnack}
    for gpu in sorted({kernel.gpu for kernel in result.kernels if kernel.facts is not None} - loadable):
        result.notes.append(f"{gpu}: its kernels can only be loaded if XNACK is on, and it is off by default")
    result.sealed += sum(library.sealed for library in result.libraries)
    without = [gpu for gpu in gpus if gpu not in there]
    result.unknown, result.absent = (without, []) if result.sealed else ([], without)
    if plan is not None:
        wanted = objects_of(plan, gpus).keys()
        result.planned = len(wanted)
        result.missing = sorted(wanted - {kernel.key for kernel in result.kernels})
    else:
        found = uneven(result.kernels, [gpu for gpu in gpus if gpu in there])
        result.uneven, result.differing = found.missing, found.differing
        if found.more:
            result.notes.append(f"{found.more} more kernels or functions differ by GPU, and are not listed")
    return result


def _looking(
    files: Iterable[StoredFile], result: Audit, windows: list[str], cubins: list[str], on_fault: OnFault
) -> Iterator[StoredFile]:
    """Yield the files that may contain kernels; record libraries, partial packs and prebuilt files in `result`.

    Args:
        windows, cubins: lists to which the libraries for Windows, and the code objects for NVIDIA, are added.
    """
    prebuilt = {row.path.rpartition("/")[2] for row in known_files()}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        if name == PARTIAL:
            result.partial.append(folder)
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in prebuilt):
            result.prebuilt.append(file.path)
        if name.endswith(".cubin"):
            cubins.append(file.path)
            continue
        if _is_library(name):
            if _is_library(file.target.rpartition("/")[2]):
                continue  # it is read under its own name
            try:
                if (library := read_library(file)) is not None:
                    result.libraries.append(library)
                    if library.fault:
                        result.damaged.append(library.fault)
                elif name.endswith(_WINDOWS):
                    windows.append(file.path)
            except FAULTS as error:
                on_fault(error)
            continue
        yield file


def _is_library(name: str) -> bool:
    return name.endswith(_HOST) or ".so." in name


def objects_of(folder: Path, gpus: Sequence[str]) -> dict[str, str]:
    """Return the path of the code object for each kernel that AOTriton's generator plans, by the kernel's key.

    Args:
        folder: the folder with the plan, to which the returned paths are relative.
        gpus: the GPUs whose kernels are included; if empty, the kernels for all GPUs are included.
    """
    clusters, archives = read_packs(folder)
    by_path = {cluster.path: cluster for cluster in clusters}
    packs = {f"amd-{pack(gpu)}" for gpu in gpus}
    objects = {}
    for archive in archives:
        if packs and archive.path.split("/")[1] not in packs:
            continue
        stem = archive.path.removesuffix(".zip")
        for member, name in archive.members:
            for path, inside in by_path[member].objects:
                if not gpus or any(f"arch={gpu}" in inside for gpu in gpus) or "arch=" not in inside:
                    objects[key_of(f"{stem}/{name.removesuffix('.aks2')}/{inside}")] = path
    if not objects:
        wanted = f" for {', '.join(gpus)}" if gpus else ""
        raise ConfigError(
            "plan-without-kernel",
            f"{folder} plans no kernel{wanted}",
            fix="name another folder, or the GPUs of this plan",
        )
    return objects
