"""Choose the parts of LLVM in a layer: all that Triton needs, or a small part for testing a machine or a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.catalog.components import LlvmRequirements
from toolchain.core.errors import UnsupportedError

DISTRIBUTION = "distribution"
TABLEGEN = "tablegen"
MLIR_TBLGEN = "mlir-tblgen"
SUPPORT = "support"
FULL_DISK = 14_000_000_000  # bytes of the build tree, the ccache and the installed copy of the whole LLVM
# These programs generate sources, so a build for another machine builds them for this machine first.
_GENERATORS = (
    "llvm-min-tblgen",
    "llvm-tblgen",
    "mlir-tblgen",
    "mlir-linalg-ods-yaml-gen",
    "mlir-src-sharder",
    "mlir-pdll",
    "clang-tblgen",
)
# These are the headers of LLVMDemangle and LLVMSupport, and those that they include.
_HEADERS = (
    "llvm/ADT",
    "llvm/Config",
    "llvm/Demangle",
    "llvm/Support",
    *(f"llvm-c/{name}.h" for name in ("DataTypes", "Deprecated", "Error", "ErrorHandling", "ExternC", "Support")),
    *(f"llvm-c/{name}.h" for name in ("Types", "blake3")),
)


@dataclass(frozen=True, kw_only=True)
class LlvmSubset:
    """A part of LLVM, or everything that Triton needs.

    Args:
        name: the value of `--only`.
        label: the description of the part, for display; empty for the whole.
        stem: the beginning of the image's name.
        projects: the value of LLVM_ENABLE_PROJECTS.
        components: the value of LLVM_DISTRIBUTION_COMPONENTS.
        target: the build target: `distribution`, or the programs of the layer.
        libraries: the libraries that the contract check of the part `support` tests; empty for other parts.
        headers: the files and folders below include/ that are installed although no component contains them.
        native: the programs that a build for another machine first builds for this machine, and then runs.
        disk: the estimated size, in bytes, of the build tree, the ccache and the installed copy.
        recipe: the folder of the Containerfile and other recipe files; empty if the part uses those of the whole LLVM.
    """

    name: str
    label: str
    stem: str
    projects: tuple[str, ...]
    components: tuple[str, ...]
    target: str
    libraries: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    native: tuple[str, ...]
    disk: int
    recipe: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the layer contains everything that Triton needs."""
        return self.name == DISTRIBUTION


def subset_of(only: str, needs: LlvmRequirements) -> LlvmSubset:
    """Return the part that the value of `--only` names; raise UnsupportedError if there is no such part."""
    if only == DISTRIBUTION:
        return LlvmSubset(
            name=only, label="", stem="llvm-triton", projects=needs.projects, components=needs.components,
            target="distribution", native=_GENERATORS, disk=FULL_DISK,
        )  # fmt: skip
    if only == TABLEGEN:
        return LlvmSubset(
            name=only, label="table generators only", stem="llvm-triton-tablegen", projects=needs.projects,
            components=needs.components, target="llvm-tblgen mlir-tblgen", native=("llvm-min-tblgen",),
            disk=5_000_000_000,
        )  # fmt: skip
    if only == MLIR_TBLGEN:
        # llvm-tblgen is not built, because its emitters for instruction selection take long to compile.
        return LlvmSubset(
            name=only, label="mlir-tblgen only", stem="llvm-triton-mlir-tblgen", projects=needs.projects,
            components=needs.components, target="mlir-tblgen", native=("llvm-min-tblgen",), disk=4_000_000_000,
            recipe=(
                "containerfiles/llvm-programs", "llvm-config/linked-sources.cmake", "llvm-config/pch-programs.cmake",
            ),
        )  # fmt: skip
    if only == SUPPORT:
        libraries = ("LLVMDemangle", "LLVMSupport")
        # No file of lld is built. The project is enabled because LLVM compiles with other options if no project is
        # enabled, so ccache would not find the objects of the other parts.
        return LlvmSubset(
            name=only, label="LLVMDemangle and LLVMSupport only", stem="llvm-triton-support", projects=("lld",),
            components=(*libraries, "cmake-exports"), target="distribution", libraries=libraries, headers=_HEADERS,
            native=(), disk=3_000_000_000,
        )  # fmt: skip
    known = ", ".join((TABLEGEN, MLIR_TBLGEN, SUPPORT))
    raise UnsupportedError(
        "unknown-llvm-part", f"{only!r} is not a part of LLVM", fix=f"use --only with one of {known}, or leave it out"
    )
