"""The parts of LLVM in a layer: all that Triton needs, or a part to try a machine and a recipe with."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.catalog.components import LlvmRequirements
from toolchain.core.errors import UnsupportedError

DISTRIBUTION = "distribution"
TABLEGEN = "tablegen"
MLIR_TBLGEN = "mlir-tblgen"
SUPPORT = "support"
FULL_DISK = 14_000_000_000  # bytes: tree, ccache and installed copy of all of LLVM
# Programs that are built for this machine first when LLVM is built for another one, because they generate sources.
_GENERATORS = (
    "llvm-min-tblgen",
    "llvm-tblgen",
    "mlir-tblgen",
    "mlir-linalg-ods-yaml-gen",
    "mlir-src-sharder",
    "mlir-pdll",
    "clang-tblgen",
)
# Headers that the two libraries' own headers include. No program generates them.
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
    """One choice of `--only`.

    Args:
        name: as `--only` takes it.
        label: for display; empty for the whole.
        stem: of the image's name.
        projects: LLVM_ENABLE_PROJECTS.
        components: LLVM_DISTRIBUTION_COMPONENTS.
        target: `distribution`, or the programs of the layer.
        libraries: for the contract check, those that the layer holds for every Triton.
        headers: below include/, besides those that a component brings.
        native: programs that building it for another machine runs.
        disk: bytes of tree, ccache and installed copy together, measured on 22.1.8.
        recipe: folder of its Containerfile and own files, if it is not made like the whole.
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
        """Whether it is all that Triton needs."""
        return self.name == DISTRIBUTION


def subset_of(only: str, needs: LlvmRequirements) -> LlvmSubset:
    """Return the part that `--only` names."""
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
        # llvm-tblgen would double the work, because its emitters for instruction selection cost most to compile.
        return LlvmSubset(
            name=only, label="mlir-tblgen only", stem="llvm-triton-mlir-tblgen", projects=needs.projects,
            components=needs.components, target="mlir-tblgen", native=("llvm-min-tblgen",), disk=4_000_000_000,
            recipe=(
                "containerfiles/llvm-programs", "llvm-config/pch-instantiated.cmake", "llvm-config/pch-programs.cmake",
            ),
        )  # fmt: skip
    if only == SUPPORT:
        libraries = ("LLVMDemangle", "LLVMSupport")
        # Nothing of lld is built. Without a project LLVM compiles with other options, and ccache would not find the
        # objects of the other parts.
        return LlvmSubset(
            name=only, label="LLVMDemangle and LLVMSupport only", stem="llvm-triton-support", projects=("lld",),
            components=(*libraries, "cmake-exports"), target="distribution", libraries=libraries, headers=_HEADERS,
            native=(), disk=3_000_000_000,
        )  # fmt: skip
    known = ", ".join((TABLEGEN, MLIR_TBLGEN, SUPPORT))
    raise UnsupportedError(
        "unknown-llvm-part", f"no such part of LLVM: {only!r}", fix=f"--only with one of {known}, or without for all"
    )
