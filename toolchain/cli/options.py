"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BaseOpt = Annotated[
    str | None,
    typer.Option(
        "--base",
        envvar="TOOLCHAIN_BASE",
        help="Base recipe, or a local image as oci:DIR[:TAG|@DIGEST]; LLVM is then for this base alone."
        " \\[default: debian13, and a portable LLVM]",
    ),
]
GlibcOpt = Annotated[
    str | None,
    typer.Option(
        "--glibc",
        envvar="TOOLCHAIN_GLIBC",
        help="The oldest glibc that a portable LLVM links with. \\[default: 2.31]",
        metavar="FLOOR",
    ),
]
ArchOpt = Annotated[
    str, typer.Option("--arch", envvar="TOOLCHAIN_ARCH", help="OCI architectures, with commas between them.")
]
SourceOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        help="NAME=PATH, NAME=URL@SHA or NAME=distro:PACKAGE; again for each source. \\[env var: TOOLCHAIN_SOURCE]",
        metavar="NAME=WHERE",
    ),
]
PatchOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--patch", help="Patch for a source; again for each. \\[env var: TOOLCHAIN_PATCH]", metavar="NAME=FILE"
    ),
]
TritonOpt = Annotated[
    str | None,
    typer.Option("--triton", envvar="TOOLCHAIN_TRITON", help="Triton version whose LLVM pin and needs count."),
]
AotritonOpt = Annotated[
    str | None, typer.Option("--aotriton", envvar="TOOLCHAIN_AOTRITON", help="AOTriton release whose pins count.")
]
GpuOpt = Annotated[
    str | None,
    typer.Option("--gpu", envvar="TOOLCHAIN_GPU", help="GPUs as gfx942,gfx1100 or by market name; ',' or ';' between."),
]
SelectOpt = Annotated[
    str | None, typer.Option("--select", envvar="TOOLCHAIN_SELECT", help="Only kernels that match this shell pattern.")
]
LimitOpt = Annotated[
    int | None, typer.Option("--limit", envvar="TOOLCHAIN_LIMIT", min=1, help="At most this many kernels.")
]
KeepGoingOpt = Annotated[
    bool, typer.Option("--keep-going", envvar="TOOLCHAIN_KEEP_GOING", help="Record kernels that fail and go on.")
]
KernelTimeoutOpt = Annotated[
    float | None,
    typer.Option(
        "--kernel-timeout", envvar="TOOLCHAIN_KERNEL_TIMEOUT", min=1, help="Seconds for one kernel; no limit."
    ),
]
AllowBinaryOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-binary", envvar="TOOLCHAIN_ALLOW_BINARY", help="Let a prebuilt thing in by name.", metavar="NAME"
    ),
]
DropBinaryOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-binary",
        envvar="TOOLCHAIN_DROP_BINARY",
        help="Leave a prebuilt file of a source out, by name or path.",
        metavar="NAME",
    ),
]
PythonOpt = Annotated[
    str | None,
    typer.Option("--python", envvar="TOOLCHAIN_PYTHON", help="Python versions of Triton's wheels, as 3.13,3.12."),
]
OnlyOpt = Annotated[
    str,
    typer.Option(
        "--only",
        envvar="TOOLCHAIN_ONLY",
        help="A part of LLVM: `tablegen`, the table generators alone, or `support`, LLVMSupport and LLVMDemangle.",
    ),
]
JobsOpt = Annotated[
    int, typer.Option("--jobs", "-j", envvar="TOOLCHAIN_JOBS", min=0, help="Jobs; 0 for what cores and memory allow.")
]
OfflineOpt = Annotated[bool, typer.Option("--offline", envvar="TOOLCHAIN_OFFLINE", help="Never reach out.")]
CompressionOpt = Annotated[
    str, typer.Option("--compression", envvar="TOOLCHAIN_COMPRESSION", help="gzip or zstd for published layers.")
]
ContractOpt = Annotated[
    bool, typer.Option("--contract/--no-contract", help="Prove that the layer serves Triton before it counts.")
]
LockedOpt = Annotated[
    bool, typer.Option("--locked", envvar="TOOLCHAIN_LOCKED", help="Take in nothing that is not in toolchain.lock.")
]
LockFileOpt = Annotated[
    Path | None,
    typer.Option(
        "--lock-file", envvar="TOOLCHAIN_LOCK_FILE", help="The lock, ./toolchain.lock otherwise; implies --locked."
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Data on standard output, as JSON.")]
CacheOpt = Annotated[
    Path | None, typer.Option("--cache", envvar="TOOLCHAIN_CACHE", help="The tool's own folder.", show_default=False)
]
