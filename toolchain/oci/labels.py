"""Define the names of labels and annotations of images."""

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
TRITON = "toolchain.triton"  # known version and commit of Triton, or the tree of its checkout
LLVM = "toolchain.llvm"  # known version and commit of LLVM, or the tree of its checkout
KERNELS = "toolchain.kernels"
GLIBC = "toolchain.glibc"  # glibc version of the oldest system on which programs can link to the LLVM in the layer
GLIBCXX = "toolchain.glibcxx"
BUILD_TYPE = "toolchain.build-type"
TRITON_BUILD = "toolchain.triton-build"
# These labels describe a Triton cache and the Triton image with which it was made. MCV is Red Hat's Model Cache Vault,
# which can unpack the cache.
CACHE_MOUNT = "toolchain.triton-cache.mount"  # path where the cache must be mounted
CACHE_CALLS = "toolchain.triton-cache.calls"  # JSON list of the calls whose kernels the cache contains
CACHE_TRITON = "toolchain.triton-cache.triton"  # input digest of the Triton image
CACHE_TRITON_LAYER = "toolchain.triton-cache.triton-layer"  # diff_id of the Triton image's top layer
CACHE_TRITON_KEY = "toolchain.triton-cache.triton-key"  # SHA-256 of `triton_key()`, which depends on Triton's code
CACHE_MCV_KEY = "toolchain.triton-cache.mcv-key"  # Triton's key as MCV reads it; not set from Triton 3.6 on
CACHE_TRITON_PATH = "toolchain.triton-cache.triton-path"  # path of the package `triton` in the Triton image
