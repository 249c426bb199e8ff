"""Names of labels and annotations of images."""

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
TRITON = "toolchain.triton"  # version and commit, if known, with a space between them
LLVM = "toolchain.llvm"  # the same
KERNELS = "toolchain.kernels"
GLIBC = "toolchain.glibc"  # of the oldest system that links the layer
GLIBCXX = "toolchain.glibcxx"
BUILD_TYPE = "toolchain.build-type"
TRITON_BUILD = "toolchain.triton-build"
# Of a Triton cache: facts that decide whether Triton finds its kernels.
CACHE_MOUNT = "toolchain.triton-cache.mount"  # path where it must be mounted
CACHE_CALLS = "toolchain.triton-cache.calls"  # JSON: the calls that it serves
CACHE_TRITON = "toolchain.triton-cache.triton"  # input digest of the Triton image; its manifest depends on the packing
CACHE_TRITON_LAYER = "toolchain.triton-cache.triton-layer"  # diff_id of that image's top layer
CACHE_TRITON_KEY = "toolchain.triton-cache.triton-key"  # SHA-256 of Triton's key of its own code
CACHE_MCV_KEY = "toolchain.triton-cache.mcv-key"  # the key as MCV computes it, which it only does before Triton 3.6
CACHE_TRITON_PATH = "toolchain.triton-cache.triton-path"  # path of the package
