"""Names of labels and annotations of images: OCI's own, and this tool's."""

from __future__ import annotations

_OCI = "org.opencontainers.image."
CREATED = f"{_OCI}created"
TITLE = f"{_OCI}title"
REVISION = f"{_OCI}revision"
LICENSES = f"{_OCI}licenses"

INPUT_DIGEST = "toolchain.input-digest"
BINARIES = "toolchain.binaries"
PARTIAL = "toolchain.partial"
GPUS = "toolchain.gpus"
TRITON = "toolchain.triton"  # version and commit, as far as they are known, with a space between them
LLVM = "toolchain.llvm"  # likewise
KERNELS = "toolchain.kernels"
GLIBC = "toolchain.glibc"  # of the oldest system that links the layer
GLIBCXX = "toolchain.glibcxx"
BUILD_TYPE = "toolchain.build-type"
TRITON_BUILD = "toolchain.triton-build"
