"""Make an image with HIP's headers and stub libraries, so that programs can be linked where no ROCm is installed.

Below `PLACE`, the image contains a folder for each set of headers, such as `hip6/include`, and a prefix for each ROCm,
such as `rocm6`, in which CMake finds HIP. The folder `liblzma` contains the headers and a stub of liblzma. The
functions of the stubs are listed in data/hip.toml.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.catalog.rocm import DEFAULT_ROCM, Headers, Library, Stub, headers_of, libraries, rocm_of, stubs_of
from toolchain.core import process
from toolchain.core.errors import SourceError, UnsupportedError
from toolchain.core.filesystem import copy_built, emptied, source_text
from toolchain.core.recipe import Recipe, digests
from toolchain.request.model import Request
from toolchain.sources.patch import copy_tree
from toolchain.sources.spec import SourceSpec, of_folder
from toolchain.sources.tree import Source, check_links
from toolchain.stages.inputs import source_inputs, stage_inputs
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace

LOG = logging.getLogger(__name__)
RECIPE = "containerfiles/hip"
PLACE = "/usr/lib/toolchain/hip"
_OF_TRITON = "third_party/amd/backend/include"
# HIP's headers are in these folders of an include folder, an installed ROCm, a distribution's package, or Triton.
_WHERE = ("hip", "include/hip", "usr/include/hip", f"{_OF_TRITON}/hip")
_API = "hip_runtime_api.h"
_NEEDS = ("hip_runtime.h", _API, "hip_version.h", "amd_detail")
# Every function of a stub library returns this value, which is hipErrorNoDevice.
_NO_DEVICE = 100


@dataclass(frozen=True, kw_only=True)
class HipDetails:
    """The decisions about HIP.

    Args:
        majors: the major versions of ROCm for which libraries are linked.
        rows: the rows of data/hip.toml for the planned sources, in the same order, with HIP's headers first.
    """

    majors: tuple[str, ...]
    rows: tuple[Headers | Library, ...]
    stubs: tuple[Stub, ...]


@dataclass(frozen=True)
class HipStage:
    """The stage that makes the image with HIP's headers and stub libraries."""

    name: str = "hip"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[HipDetails]:
        majors = requested_rocms(request)
        rows: tuple[Headers | Library, ...] = (*headers_of(majors), *libraries())
        stubs = stubs_of(majors)
        sources = tuple(source_of(row, request) for row in rows)
        for row, source in zip(rows, sources, strict=True):
            if isinstance(row, Headers) and source.path is not None and source.path.is_dir():
                check_headers(source.path, row)
        resolved = {"base": dependencies["base"].input_digest, "sources": source_inputs(sources, request.patches)}
        more = {"stubs": {stub.name: stub.as_json() for stub in stubs}, "recipe": digests(RECIPE)}
        return Planned(
            name=self.name,
            image=f"toolchain-hip-{'-'.join(majors)}",
            inputs=stage_inputs(self.name, request, resolved, more),
            sources=sources,
            partial="headers and libraries to link with, no ROCm",
            engine=True,
            details=HipDetails(majors=majors, rows=rows, stubs=stubs),
        )

    def build(self, planned: Planned[HipDetails], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        from toolchain.stages.binary_checks import check_stub  # noqa: PLC0415 - plans read no ELF

        majors, stubs, work = planned.details.majors, planned.details.stubs, workspace.work()
        workspace.step("source")
        tree = emptied(work / "tree")
        place = tree / PLACE.lstrip("/")
        versions = {}
        for row, source in zip(planned.details.rows, planned.sources, strict=True):
            content = _content(workspace.fetch(source).path, work / f"unpacked-{row.name}", workspace)
            if isinstance(row, Headers):
                headers = check_headers(content, row)
                versions[row.name] = version_in(headers, content)
                (place / row.name / "include").mkdir(parents=True)
                copy_tree(headers, place / row.name / "include" / "hip")
                # The folder `nvidia_detail` is removed, because only NVIDIA's compiler uses its headers.
                shutil.rmtree(place / row.name / "include" / "hip" / "nvidia_detail", ignore_errors=True)
            else:
                _take_lzma(content, place / row.name)
            for licence in sorted((*content.glob("LICENSE*"), *content.glob("usr/share/doc/*/copyright"))):
                (place / row.name / "licenses").mkdir(parents=True, exist_ok=True)
                shutil.copy(licence, place / row.name / "licenses" / licence.name)
        made = workspace.build(
            Recipe(
                name="hip",
                containerfile=f"{RECIPE}/Containerfile",
                base=workspace.image(dependencies["base"]),
                contexts={"stubs": write_stubs(stubs, work / "stubs")},
                steps={"compile": 5.0},
            )
        )
        for stub in stubs:
            check_stub(made / stub.name / stub.soname, stub)
            library = place / stub.name / "lib" / stub.soname
            library.parent.mkdir(parents=True, exist_ok=True)
            copy_built(made, f"{stub.name}/{stub.soname}", library)
            (library.parent / f"{stub.soname.partition('.so')[0]}.so").symlink_to(stub.soname)
        for major in majors:
            name = rocm_of(major).headers
            _write_package(place / f"rocm{major}", rocm_of(major).soname, name, cmake_version(major, versions[name]))
        _write_pc(place, libraries())
        return workspace.finish(
            planned,
            LayerContent(tree=tree, compress=False),
            ImageParts(title=", ".join(majors)),
            facts={"hip": versions, "stubs": {stub.name: stub.as_json() for stub in stubs}},
        )


def hip_stage(_: str, request: Request) -> HipStage | None:
    """Return the stage for a portable AOTriton; None for one that is bound to a base and linked with the base's HIP.

    UnsupportedError is raised if the request names both ROCm versions and a base.
    """
    if request.glibc:
        return HipStage()
    if request.rocm:
        raise UnsupportedError(
            "rocm-with-base",
            f"--rocm cannot be combined with --base {request.base}",
            why="on a base that you name, AOTriton's library is linked with the HIP of that base",
            fix="leave out one of the two options",
        )
    return None


def requested_rocms(request: Request) -> tuple[str, ...]:
    """Return the ROCm versions for which AOTriton's library is linked: those of the request, or the default ones."""
    return request.rocm or DEFAULT_ROCM


def source_of(row: Headers | Library, request: Request) -> Source:
    """Return the source for a row of data/hip.toml.

    It is the source that the user names, or else suitable headers in the user's folder of Triton, or else the
    distribution's package.
    """
    spec = request.sources.get(row.name)
    if spec is None and isinstance(row, Headers) and (own := _of_checkout(row, request)) is not None:
        spec = of_folder(own)
    return request.locate(row.name, spec or SourceSpec(kind="distro", where=row.package, version=row.version))


def _of_checkout(row: Headers, request: Request) -> Path | None:
    """Return the folder above HIP's headers in the user's folder of Triton; None if there are no suitable headers.

    A Triton that the user names by commit is not used, because the plans before and after the fetch would then name
    different sources.
    """
    spec = request.sources.get("triton")
    tree = spec.path / _OF_TRITON if spec is not None and spec.path is not None else None
    if tree is None or not (tree / "hip").is_dir():
        return None
    try:
        check_headers(tree, row)
    except (SourceError, UnsupportedError) as error:
        LOG.info("the HIP headers in the checkout of Triton are not used: %s", error.what)
        return None
    return tree


def check_headers(tree: Path, row: Headers) -> Path:
    """Return the folder of HIP's headers in a tree.

    SourceError is raised if headers or their version are missing, and UnsupportedError if their version does not fit
    the row or they lack a function that AOTriton's library calls.
    """
    folder = next((tree / name for name in _WHERE if (tree / name / "hip_version.h").is_file()), None)
    given = f"--source {row.name}="
    if folder is None:
        raise SourceError(
            "hip-headers-missing",
            f"the source {row.name} contains no HIP headers",
            why=f"it has none of {', '.join(f'{name}/hip_version.h' for name in _WHERE)}",
            fix=f"give {given}PATH with the include folder of ROCm, or third_party/amd/backend/include of a Triton",
        )
    if missing := [name for name in _NEEDS if not (folder / name).exists()]:
        raise SourceError(
            "hip-headers-missing",
            f"the HIP headers in the source {row.name} are incomplete",
            why=f"{folder.relative_to(tree)} lacks {', '.join(missing)}",
            fix=f"give {given}PATH with all HIP headers, or leave out this option",
        )
    version = version_in(folder, tree)
    if int(version.partition(".")[0]) not in row.hip:
        raise UnsupportedError(
            "hip-version-unfit",
            f"the source {row.name} is HIP {version}",
            why=f"it must be HIP {' or '.join(map(str, row.hip))}: other headers are for another ROCm",
            fix=f"give {given}PATH with headers of this version, or leave out this option",
        )
    text = source_text(tree, f"{folder.relative_to(tree)}/{_API}")
    wanted = [name for stub in stubs_of([str(row.hip[0])])[:1] for name in stub.symbols]
    if missing := [name for name in wanted if not re.search(rf"\b{name}\b", text)]:
        raise UnsupportedError(
            "hip-version-unfit",
            f"the HIP {version} of the source {row.name} has no {', '.join(missing)}",
            why="AOTriton's library calls it",
            fix=f"give {given}PATH with a newer HIP, or leave out this option to use the distribution's package",
        )
    return folder


def version_in(folder: Path, tree: Path) -> str:
    """Return the version that the headers define, such as `6.4.43484`; raise SourceError if they define none.

    Args:
        tree: the source tree that contains `folder`.
    """
    text = source_text(tree, f"{folder.relative_to(tree)}/hip_version.h")
    parts = [re.search(rf"#define HIP_VERSION_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    if not all(parts):
        raise SourceError(
            "hip-headers-missing",
            f"{folder.name}/hip_version.h defines no version",
            fix="give the headers of an installed HIP",
        )
    return ".".join(part[1] for part in parts if part)


def cmake_version(major: str, version: str) -> str:
    """Return the version of HIP's CMake package for a major version of ROCm.

    It is the version of the headers if that version has the major number of ROCm, and otherwise the first version with
    this number, such as `6.0.0` for ROCm 6.
    """
    return version if version.partition(".")[0] == major else f"{major}.0.0"


def write_stubs(stubs: Iterable[Stub], into: Path) -> Path:
    """Write a folder for each stub, with its soname, its C code and its version script; return the folder `into`.

    The recipe containerfiles/hip builds the stub libraries from these folders.
    """
    emptied(into)
    for stub in stubs:
        folder = into / stub.name
        folder.mkdir(parents=True)
        (folder / "soname").write_text(stub.soname, encoding="utf-8")
        code = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in sorted(stub.symbols))
        (folder / "stub.c").write_text(code, encoding="utf-8")
        script = ""
        for number, (node, names) in enumerate(stub.nodes):
            rest = "" if number else " local: *;"
            script += f"{node} {{ global: {' '.join(f'{name};' for name in sorted(names))}{rest} }};\n"
        (folder / "stub.map").write_text(script, encoding="utf-8")
    return into


def _content(path: Path, into: Path, workspace: Workspace) -> Path:
    """Return the folder of a source; a Debian package is first unpacked into `into`."""
    if path.is_dir():
        return path
    if path.suffix != ".deb":
        raise SourceError(
            "hip-headers-missing",
            f"{path.name} is neither a folder nor a Debian package",
            fix="give a folder that contains the headers",
        )
    emptied(into)
    process.which("dpkg-deb")
    # Only headers and licences are unpacked, because libraries and links to libraries are not needed.
    taken = 'dpkg-deb --fsys-tarfile "$1" | tar --extract --directory "$2" ./usr/include ./usr/share/doc'
    process.run(["sh", "-c", taken, "sh", path, into], log=workspace.log)
    check_links(into)
    return into


def _take_lzma(content: Path, into: Path) -> None:
    for root in (content / "usr/include", content / "include", content):
        if (root / "lzma.h").is_file() and (root / "lzma").is_dir():
            (into / "include").mkdir(parents=True)
            shutil.copy(root / "lzma.h", into / "include" / "lzma.h")
            copy_tree(root / "lzma", into / "include" / "lzma")
            return
    raise SourceError(
        "liblzma-headers-missing",
        "the source liblzma contains no lzma.h",
        fix="give --source liblzma=PATH with a folder that contains lzma.h and lzma/, or leave out this option",
    )


def _write_package(prefix: Path, soname: str, headers: str, version: str) -> None:
    """Write a CMake package of HIP with the targets that AOTriton uses."""
    (prefix / "include").symlink_to(f"../{headers}/include")
    folder = prefix / "lib" / "cmake" / "hip"
    folder.mkdir(parents=True)
    (folder / "hip-config.cmake").write_text(
        f"""# Made by the stage `hip`: headers and a library to link with.
get_filename_component(_hip_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET hip::amdhip64)
  add_library(hip::amdhip64 SHARED IMPORTED)
  set_target_properties(hip::amdhip64 PROPERTIES
    IMPORTED_LOCATION "${{_hip_prefix}}/lib/libamdhip64.so" IMPORTED_SONAME {soname}
    INTERFACE_COMPILE_DEFINITIONS USE_PROF_API=1
    INTERFACE_INCLUDE_DIRECTORIES "${{_hip_prefix}}/include")
  add_library(hip::host INTERFACE IMPORTED)
  set_target_properties(hip::host PROPERTIES INTERFACE_LINK_LIBRARIES hip::amdhip64
    INTERFACE_COMPILE_DEFINITIONS "__HIP_PLATFORM_HCC__=1;__HIP_PLATFORM_AMD__=1")
endif()
set(hip_VERSION {version})
""",
        encoding="utf-8",
    )
    (folder / "hip-config-version.cmake").write_text(
        f"""set(PACKAGE_VERSION "{version}")
if(NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
""",
        encoding="utf-8",
    )


def _write_pc(place: Path, rows: Iterable[Library]) -> None:
    for row in rows:
        name = row.soname.removeprefix("lib").partition(".so")[0]
        folder = place / row.name / "lib" / "pkgconfig"
        folder.mkdir(parents=True, exist_ok=True)
        version = row.version.partition("-")[0]
        text = f"prefix=${{pcfiledir}}/../..\nName: {row.name}\nDescription: to link with\nVersion: {version}\n"
        text += f"Cflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -l{name}\n"
        (folder / f"{row.name}.pc").write_text(text, encoding="utf-8")
