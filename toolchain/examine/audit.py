"""What somebody else shipped: which GPUs and kernels are in it, what is missing, and which compilers made it."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain.cache import Cache
from toolchain.catalog.gpus import pack
from toolchain.errors import ConfigError, KernelError
from toolchain.examine.kernels import Kernel, kernels_of, key_of
from toolchain.examine.libraries import Library, read_library
from toolchain.examine.places import File, opened
from toolchain.kernels.aotriton_plan import read_packs
from toolchain.stages.prebuilt import known_files

_HOST = (".so", ".pyd")


@dataclass(kw_only=True)
class Audit:
    """What a place holds.

    Args:
        missing: keys of kernels that the plan has and the place lacks.
        empty: keys of kernels that AOTriton's loader takes for known bad.
        damaged: what is wrong with files that cannot be read.
        absent: GPUs that were asked for and have no kernel.
        uneven: what another GPU of the place has and one that was asked for lacks.
        prebuilt: files named as those that sources bring without a source of their own, see data/prebuilt.toml.
        rebuilt: by key, whether a second compilation came out with the same bytes.
    """

    what: str
    kernels: list[Kernel] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    uneven: list[str] = field(default_factory=list)
    planned: int | None = None
    prebuilt: list[str] = field(default_factory=list)
    rebuilt: dict[str, bool] = field(default_factory=dict)

    def gpus(self) -> dict[str, dict[str, int]]:
        """Kernels by GPU and function, empty ones left out; GPUs of code inside libraries have none by name."""
        found: dict[str, Counter[str]] = {}
        for kernel in self.kernels:
            if kernel.facts is not None:
                found.setdefault(kernel.gpu, Counter())[kernel.family] += 1
        for library in self.libraries:
            for target in library.targets:
                found.setdefault(target, Counter())
        return {gpu: dict(sorted(counts.items())) for gpu, counts in sorted(found.items())}

    @property
    def glibc(self) -> str:
        """The oldest glibc on which all libraries run; empty where none asks."""
        versions = [library.glibc for library in self.libraries if library.glibc]
        return max(versions, key=lambda text: [int(part) for part in text.split(".")], default="")

    def problems(self, *, allow_empty: bool = False) -> list[str]:
        """What is wrong, a line for each kind."""
        wrong = [key for key, equal in self.rebuilt.items() if not equal]
        rows = [
            ("GPUs without a kernel", self.absent),
            ("kernels are missing", self.missing),
            ("kernels are empty (known bad)", [] if allow_empty else self.empty),
            ("files are damaged", self.damaged),
            ("functions are missing that another GPU has", self.uneven),
            ("kernels compile to other bytes", wrong),
        ]
        return [f"{len(found)} {what}: {_first(found)}" for what, found in rows if found]

    def as_json(self) -> dict[str, Any]:
        """As `audit --json` prints it."""
        return {
            "what": self.what,
            "gpus": self.gpus(),
            "kernels": len(self.kernels),
            "planned": self.planned,
            "missing": self.missing,
            "empty": self.empty,
            "damaged": self.damaged,
            "absent": self.absent,
            "uneven": self.uneven,
            "glibc": self.glibc,
            "prebuilt": self.prebuilt,
            "libraries": [library.as_json() for library in self.libraries],
            "rebuilt": self.rebuilt,
        }


def _first(texts: Sequence[str]) -> str:
    """Some of many for a message; names of AOTriton's kernels have hundreds of characters."""
    return ", ".join([*(text[:160] for text in texts[:3]), *(["…"] if texts[3:] else [])])


def audit(what: str, cache: Cache, *, gpus: Sequence[str] = (), plan: Path | None = None) -> Audit:
    """Look at all that a place holds. Nothing of it is run.

    Args:
        gpus: that must be there.
        plan: folder of AOTriton's generator: all kernels of these GPUs that it plans must be there.

    Raises:
        ConfigError: there is no code for a GPU and no library in it, or the plan has none of these GPUs.
    """
    found = Audit(what=what)

    def fault(error: KernelError) -> None:
        found.damaged.append(f"{error.what} ({error.why})" if error.why else error.what)

    with opened(what, cache) as files:
        found.kernels = sorted(kernels_of(_looking(files, found), fault), key=lambda kernel: kernel.key)
    if not found.kernels and not found.libraries and not found.damaged:
        raise ConfigError(
            f"{what} holds no compiled code",
            why="neither kernels nor libraries are in it",
            fix="name an image, a prefix, an archive, a wheel or a folder that has some",
        )
    found.empty = [kernel.key for kernel in found.kernels if kernel.facts is None]
    there = found.gpus()
    found.absent = [gpu for gpu in gpus if not there.get(gpu) and gpu not in there]
    if plan is not None:
        wanted = planned(plan, gpus)
        found.planned = len(wanted)
        found.missing = sorted(wanted - {kernel.key for kernel in found.kernels})
    else:
        everything = {name for counts in there.values() for name in counts}
        found.uneven = [
            f"{gpu} lacks {name}" for gpu in gpus if gpu in there for name in sorted(everything - there[gpu].keys())
        ]
    return found


def _looking(files: Iterable[File], found: Audit) -> Iterator[File]:
    """The files, while libraries among them are read, and what is known to come without a source is noted."""
    prebuilt = {row.path.rpartition("/")[2] for row in known_files()}
    for path, content in files:
        name = path.rpartition("/")[2]
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in prebuilt):
            found.prebuilt.append(path)
        if name.endswith(_HOST) or ".so." in name:
            data = content()
            if (library := read_library(path, data)) is not None:
                found.libraries.append(library)
            continue
        yield path, content


def planned(folder: Path, gpus: Sequence[str]) -> set[str]:
    """The keys of the kernels that AOTriton's generator plans.

    Args:
        gpus: of these; all by default.

    Raises:
        SourceError: the folder holds no plan.
        ConfigError: it plans nothing for these GPUs.
    """
    return set(objects_of(folder, gpus))


def objects_of(folder: Path, gpus: Sequence[str]) -> dict[str, str]:
    """By key, the code object of each planned kernel below the plan's folder.

    Raises:
        SourceError, ConfigError: see `planned`.
    """
    clusters, archives = read_packs(folder)
    by_path = {cluster.path: cluster for cluster in clusters}
    packs = {f"amd-{pack(gpu)}" for gpu in gpus}
    found = {}
    for archive in archives:
        if packs and archive.path.split("/")[1] not in packs:
            continue
        stem = archive.path.removesuffix(".zip")
        for member, name in archive.members:
            for path, inside in by_path[member].objects:
                if not gpus or any(f"arch={gpu}" in inside for gpu in gpus) or "arch=" not in inside:
                    found[key_of(f"{stem}/{name.removesuffix('.aks2')}/{inside}")] = path
    if not found:
        raise ConfigError(f"{folder} plans no kernel for {', '.join(gpus)}", fix="name the GPUs that it is for")
    return found
