"""Find out which AOTriton a PyTorch source tree requires, and check archives or an installed prefix against it.

PyTorch's `cmake/External/aotriton.cmake` names a release, the archive of a runtime for each ROCm version, and the
archive of images (compiled kernels) for each pack of GPUs, each with its SHA-256. Up to PyTorch 2.6, the file
`.ci/docker/aotriton_version.txt` names archives that contain both the runtime and the images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolchain.catalog.aotriton_generations import generation_of
from toolchain.catalog.releases import aotriton_release
from toolchain.catalog.rocm import rocm_of
from toolchain.core import strict_json
from toolchain.core.digest import sha256_file
from toolchain.core.errors import ContractError, DocumentError, SourceError, ToolchainError, UnsupportedError
from toolchain.core.filesystem import read_regular

CMAKE = "cmake/External/aotriton.cmake"
VERSION_FILE = ".ci/docker/aotriton_version.txt"
BASE_URL = "https://github.com/ROCm/aotriton/releases/download/"
URL_VARIABLE = "PYTORCH_AOTRITON_BASE_URL"
_LIBRARY = re.compile(r"/(lib/libaotriton_v2\.(?:so|a))\b")
_FIRST_WITH_VERSION = (0, 8)  # older headers define no version
_LARGEST = 1 << 20
_COMMENT = re.compile(r"#[^\n]*")
_JOIN = re.compile(r"\blist\s*\(\s*JOIN\s[^()]*__AOTRITON_SHA256_LIST\s*\)")
# The inner group is atomic. Otherwise, a search that fails would divide the comments in all ways, which may take hours.
_SET = re.compile(r"\bset\s*\(\s*__AOTRITON_(\w+)\s((?>[^()#\"]|\"[^\"]*\"|#[^\n]*)*)\)")
_VALUE = re.compile(r"\"([^\"]*)\"|#[^\n]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Releases, ROCm versions, glibc floors and packs must match this, because they become parts of file names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


@dataclass(frozen=True)
class Archive:
    """An archive that PyTorch downloads.

    Args:
        sha256: 64 hexadecimal digits; all zeros or empty if upstream did not publish the file.
        rocm: the ROCm version of a runtime; empty for images.
        pack: the pack of GPUs for which the archive contains images; empty for a runtime.
    """

    name: str
    sha256: str
    rocm: str = ""
    pack: str = ""


@dataclass(frozen=True)
class Wanted:
    """The AOTriton that a PyTorch source tree requires.

    Args:
        release: the release of AOTriton, as it is written in URLs.
        commit: the commit that PyTorch builds if it has no archive; empty if it names no commit.
        archives: the runtimes in the order of PyTorch's file, then the images.
        url: the URL of the folder with the archives, with a slash at its end.
        fixed_url: whether PyTorch ignores the environment variable that `URL_VARIABLE` names.
        choice: which runtime PyTorch's file chooses for a ROCm version that has none. `exact`: no runtime. `older`: the
            last older one, or the first one if all are newer. `clamped`: the first one if all are newer, the last one
            if all are older, otherwise no runtime.
        library: the file in a prefix to which PyTorch links.
    """

    release: str
    commit: str
    archives: tuple[Archive, ...]
    url: str
    fixed_url: bool
    choice: Literal["exact", "older", "clamped"] = "exact"
    library: str = "lib/libaotriton_v2.so"

    @property
    def version(self) -> str:
        """Return the version of the release in the form of AOTriton's headers, such as `0.13.0`."""
        return ".".join((*re.sub(r"[a-z].*$", "", self.release).split("."), "0", "0")[:3])

    @property
    def rocms(self) -> tuple[str, ...]:
        """Return the ROCm versions with a runtime, such as `6.4`."""
        return tuple(archive.rocm for archive in self.archives if archive.rocm)

    def needed(self, rocm: str, gpus: Sequence[str]) -> list[Archive]:
        """Return the archives for a ROCm version and GPUs; an empty argument selects all ROCm versions or all GPUs.

        Raises:
            UnsupportedError: PyTorch chooses no runtime for the ROCm version, or has no images for a GPU.
        """
        runtime = self._runtime(rocm) if rocm else None
        if rocm and runtime is None:
            other = "it compiles AOTriton" if self.choice == "exact" else "its file chooses no archive"
            raise UnsupportedError(
                "pytorch-without-rocm",
                f"this PyTorch names no AOTriton runtime for ROCm {rocm}",
                why=f"it has runtimes for {', '.join(dict.fromkeys(self.rocms))}; for ROCm {rocm} {other}",
                fix=f"use one of these ROCm versions, or set AOTRITON_INSTALLED_PREFIX to a prefix of {self.release}",
            )
        packs = {archive.pack for archive in self.archives if archive.pack}
        known = packs_by_gpu(self.release, packs, gpus)
        if lacking := [gpu for gpu in gpus if gpu not in known or (packs and known[gpu] not in packs)]:
            one = f"one archive, for {', '.join(sorted(known))}"
            raise UnsupportedError(
                "pytorch-without-gpu",
                f"this PyTorch downloads no images for {', '.join(lacking)}",
                why=f"it has {', '.join(sorted(packs)) or one}",
                fix="leave out the GPU, for which attention uses slower kernels or fails",
            )
        wanted = {known[gpu] for gpu in gpus} if gpus else packs
        return [
            archive
            for archive in self.archives
            if (archive.pack in wanted if archive.pack else runtime in {None, archive})
        ]

    def _runtime(self, rocm: str) -> Archive | None:
        """Return the runtime that PyTorch's file chooses for a ROCm version; None if it chooses none."""
        runtimes = [archive for archive in self.archives if archive.rocm]
        exact = next((archive for archive in runtimes if archive.rocm == rocm), None)
        if exact is not None or self.choice == "exact" or not runtimes:
            return exact
        older = [archive.rocm for archive in runtimes if _number(archive.rocm) < _number(rocm)]
        if self.choice == "clamped" and older and older[-1] != runtimes[-1].rocm:
            return None
        chosen = older[-1] if older else runtimes[0].rocm
        return next(archive for archive in runtimes if archive.rocm == chosen)


def _number(rocm: str) -> tuple[int, ...]:
    return tuple(int(part) for part in rocm.split(".") if part.isdigit())


def packs_by_gpu(release: str, packs: Iterable[str], gpus: Sequence[str]) -> dict[str, str]:
    """Return the name of the pack, such as `amd-gfx110x`, for each GPU that a release supports.

    The name is empty if the library itself contains the kernels for the GPU.

    Args:
        packs: the packs that PyTorch names; they are only used if the release is unknown.
        gpus: the GPUs to look up if the release is unknown.
    """
    try:
        generation = generation_of(aotriton_release(release, allow_unknown=True).name)
    except ToolchainError:
        generation = None
    if generation is not None:
        found = dict.fromkeys(generation.gpus, "") if generation.inside else {}
        return found | {gpu: f"amd-{pack}" for pack, many in generation.packs.items() for gpu in many}
    # The release is unknown, so a pack is chosen by its name, with the same patterns as in PyTorch's file.
    rules = {pack: re.escape(pack.removeprefix("amd-gfx")).replace("x", ".") for pack in packs}
    return {gpu: pack for gpu in gpus for pack, rule in (rules or {"": ""}).items() if re.search(rule, gpu)}


def read_pytorch(path: Path) -> Wanted:
    """Return the AOTriton that PyTorch requires, according to its source tree or its aotriton.cmake.

    UnsupportedError is raised if PyTorch downloads no AOTriton, and SourceError if its files cannot be read or used.
    """
    cmake = path / CMAKE if path.is_dir() else path
    top = cmake.parents[2] if cmake.as_posix().endswith(CMAKE) else cmake.parent
    text = _text(cmake)
    values: dict[str, list[str]] = {}
    for match in _SET.finditer(text):
        # Only the first value of a variable is used, because the file replaces the values in sanitizer builds.
        values.setdefault(match[1], [value[1] for value in _VALUE.finditer(match[2]) if value[1] is not None])
    text = _COMMENT.sub("", text)
    if "SHA256_LIST" in values:
        return _of_lists(cmake, text, values)
    if _JOIN.search(text):
        release = next(iter(values.get("VER", [])), "")
        raise UnsupportedError(
            "pytorch-lists-empty",
            f"CMake finds no archive in {cmake}",
            why="the file passes texts to list(JOIN …), which expects names of lists, so its lists are empty",
            fix=f"use a newer commit of this PyTorch, or set AOTRITON_INSTALLED_PREFIX to a prefix of {release}",
        )
    if "aotriton_version.txt" in text:
        return _of_version_file(text, top / VERSION_FILE)
    if tag := re.search(r"\bGIT_TAG\s+\"?([0-9A-Za-z._-]+)", text):
        raise UnsupportedError(
            "pytorch-compiles-aotriton",
            f"this PyTorch downloads no AOTriton, but compiles {tag[1]}",
            why=f"{cmake} has a GIT_TAG, but no list of archives",
            fix="build this commit, and set AOTRITON_INSTALLED_PREFIX to its prefix: toolchain build aotriton"
            f" --source aotriton=https://github.com/ROCm/aotriton@{tag[1]}",
        )
    raise SourceError(
        "pytorch-without-aotriton",
        f"{cmake} does not name an AOTriton",
        why="it sets no __AOTRITON_SHA256_LIST and reads no aotriton_version.txt",
        fix=f"give the source tree of PyTorch, or its {CMAKE}",
    )


def _text(path: Path, fix: str = f"give the source tree of PyTorch, or its {CMAKE}") -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise SourceError("pytorch-unreadable", f"{path} is larger than {_LARGEST} bytes", fix=fix)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SourceError("pytorch-unreadable", f"cannot read {path}", why="it is not UTF-8 text", fix=fix) from error
    except OSError as error:
        raise SourceError("pytorch-unreadable", f"cannot read {path}", why=error.strerror or "", fix=fix) from error


def _check_names(path: Path, names: Iterable[str]) -> None:
    """Raise SourceError for a name such as `../x`, because the names become parts of file names."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise SourceError(
                "pytorch-name-unsafe",
                f"{path} names {name[:80]!r}",
                why="a release, ROCm version, floor or pack must be usable in a file name",
                fix="use the unchanged file of PyTorch",
            )


def _of_lists(cmake: Path, text: str, values: Mapping[str, list[str]]) -> Wanted:
    rocms, floors, sums = (values.get(name, []) for name in ("ROCM_LIST", "MANYLINUX_LIST", "SHA256_LIST"))
    images, image_sums = values.get("IMAGE_LIST", []), values.get("IMAGE_SHA256_LIST", [])
    # AMD's fork of PyTorch names a release for each ROCm version, and the release under which all files are published.
    versions = values.get("VER_LIST") or values.get("VER", [])[:1] * len(rocms)
    release = next(iter([*values.get("RELEASE_PAGE", []), *versions]), "")
    if not release or not len(versions) == len(rocms) == len(floors) == len(sums) or len(images) != len(image_sums):
        raise SourceError(
            "pytorch-lists-differ",
            f"the lists in {cmake} have different lengths",
            why=f"runtimes: {len(versions)} releases, {len(rocms)} ROCm versions, {len(floors)} floors, {len(sums)} "
            f"digests; images: {len(images)} packs, {len(image_sums)} digests",
            fix="use the unchanged file of PyTorch",
        )
    _check_names(cmake, [release, *versions, *rocms, *floors, *images])
    runtimes = [
        Archive(f"aotriton-{version}-{floor}_x86_64-{rocm}-shared.tar.gz", digest, rocm=rocm.removeprefix("rocm"))
        for version, rocm, floor, digest in zip(versions, rocms, floors, sums, strict=True)
    ]
    packs = [
        Archive(f"aotriton-{release}-images-{image}.tar.gz", digest, pack=image)
        for image, digest in zip(images, image_sums, strict=True)
    ]
    url = next((text for text in values.get("BASE_URL", []) if text.startswith("http")), BASE_URL)
    commits = [text for text in values.get("CI_COMMIT", []) if re.fullmatch("[0-9a-f]{40}", text)]
    commits += re.findall(r"__AOTRITON_CI_COMMIT\s+\"([0-9a-f]{40})\"", text)
    return Wanted(
        release, (commits or [""])[0], (*runtimes, *packs), url, URL_VARIABLE not in text, _choice(text), _library(text)
    )


def _choice(text: str) -> Literal["exact", "older", "clamped"]:
    """Return how PyTorch's file chooses a runtime (see `Wanted.choice`), from the variables that it uses."""
    if "__AOTRITON_ROCM_DEFAULT_STR" in text:
        return "older"
    return "clamped" if "__AOTRITON_ROCM_HIGH" in text else "exact"


def _library(text: str) -> str:
    named = _LIBRARY.search(text)
    return named[1] if named else Wanted.library


def _of_version_file(text: str, path: Path) -> Wanted:
    lines = _text(path, "add the file from PyTorch's repository, because this PyTorch reads it").splitlines()
    if len(lines) < 5 or not all(_DIGEST.fullmatch(digest) for digest in lines[4].strip().split(";")):
        raise SourceError(
            "pytorch-form-unknown",
            f"{path} has an unknown format",
            why="expected five lines: release, floor, ROCm, commit and SHA-256",
            fix="use the unchanged file of PyTorch",
        )
    release, floors, rocms, commit, digests = (line.strip().split(";") for line in lines[:5])
    if not len(floors) == len(rocms) == len(digests):
        raise SourceError(
            "pytorch-lists-differ",
            f"the lists in {path} have different lengths",
            fix="use the unchanged file of PyTorch",
        )
    _check_names(path, [*release, *floors, *rocms])
    archives = tuple(
        Archive(f"aotriton-{release[0]}-{floor}_x86_64-{rocm}-shared.tar.gz", digest, rocm=rocm.removeprefix("rocm"))
        for floor, rocm, digest in zip(floors, rocms, digests, strict=True)
    )
    url = next(iter(re.findall(r"\"(https?://[^\"$]*/)\"", text)), BASE_URL)
    return Wanted(release[0], commit[0], archives, url, URL_VARIABLE not in text, _choice(text), _library(text))


def found_in(folder: Path, wanted: Wanted, archives: Sequence[Archive]) -> dict[str, str]:
    """Return the SHA-256 (64 hexadecimal digits) of the archives that are in a folder, by file name.

    An archive may also be in a subfolder that has the name of the release. Archives that are in neither folder are
    missing from the result.
    """
    digests = {}
    for archive in archives:
        for place in (folder / wanted.release / archive.name, folder / archive.name):
            if place.is_file():
                digests[archive.name] = sha256_file(place).removeprefix("sha256:")
                break
    return digests


def check_prefix(prefix: Path, wanted: Wanted, gpus: Sequence[str], rocm: str = "") -> dict[str, str]:
    """Raise ContractError if PyTorch cannot use an installed AOTriton.

    UnsupportedError is raised if the library's HIP is checked and `rocm` is unknown.

    Args:
        gpus: the GPUs that need images.
        rocm: the ROCm version of PyTorch, such as `7.2`; empty to skip the check of the library's HIP.

    Returns:
        The version under the key `version`, and the commit of each pack for `gpus` under the name of the pack.
    """
    faults, commits = [], {}
    version = version_of(prefix)
    if version != wanted.version and (version or _number(wanted.version) >= _FIRST_WITH_VERSION):
        found = f"its header defines version {version}" if version else "it has no header that defines a version"
        faults.append(f"{found}, but PyTorch needs {wanted.release}")
    if not (prefix / wanted.library).exists():
        faults.append(f"it has no {wanted.library}, which PyTorch links")
    elif rocm and wanted.library.endswith(".so"):
        faults += _wrong_hip(prefix / wanted.library, rocm)
    images = prefix / "lib" / "aotriton.images"
    if images.is_symlink():
        faults.append(
            "lib/aotriton.images is a symlink, and PyTorch copies only the link; unpack all archives into one folder"
        )
    known = packs_by_gpu(wanted.release, {archive.pack for archive in wanted.archives if archive.pack}, gpus)
    for gpu in gpus:
        if gpu not in known:
            faults.append(f"AOTriton {wanted.release} has no images for {gpu}")
            continue
        if not known[gpu]:
            continue  # its kernels are inside the library
        signature = images / known[gpu] / "__signature__"
        try:
            commits[known[gpu]] = str(
                strict_json.read(read_regular(signature, _LARGEST, within=prefix))["AOTRITON_GIT_SHA1"]
            )
        except OSError:
            faults.append(f"{gpu}: {signature.relative_to(prefix)} is missing, so the library finds no kernel for it")
        except (DocumentError, ValueError, KeyError, TypeError):
            faults.append(f"{gpu}: {signature.relative_to(prefix)} is damaged")
    if (prefix / "lib").is_dir():
        fits = re.compile(r"libaotriton_v2\.(a|so[.0-9]*)|aotriton\.images|cmake")
        foreign = sorted(path.name for path in (prefix / "lib").iterdir() if not fits.fullmatch(path.name))
        if foreign:
            faults.append(f"lib/ also contains {', '.join(foreign)}, which PyTorch would copy into torch/lib")
    if faults:
        raise ContractError(
            "prefix-unfit",
            f"{prefix} does not fit this PyTorch",
            why="; ".join(faults),
            fix=f"give a prefix of AOTriton {wanted.release} with images for all named GPUs",
        )
    return {"version": version, **commits}


def _wrong_hip(path: Path, rocm: str) -> list[str]:
    """Return a fault unless a library links to the HIP library of ROCm `rocm`, and to no other HIP library."""
    from toolchain.stages.elf import read_linked  # noqa: PLC0415 - few calls need it

    soname = rocm_of(rocm).soname
    try:
        library = read_linked(path)
    except ContractError as error:
        return [error.what]
    asks = [name for name in library.needed if name.startswith("libamdhip64.so")]
    return [] if asks == [soname] else [f"its library links to {', '.join(asks) or 'no HIP'} instead of {soname}"]


def version_of(prefix: Path) -> str:
    """Return the version that an installed header defines, such as `0.13.0`; an empty string if none defines it."""
    for name in ("config.h", "version.h"):
        try:
            text = (prefix / "include" / "aotriton" / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        parts = [re.search(rf"\b\w*VERSION_{part}\w*\s*=?\s*(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
        if all(parts):
            return ".".join(part[1] for part in parts if part)
    return ""
