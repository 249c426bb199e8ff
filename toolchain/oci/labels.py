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
# Of a Triton cache: what its kernels are found by, or not.
CACHE_MOUNT = "toolchain.triton-cache.mount"  # where it must be
CACHE_CALLS = "toolchain.triton-cache.calls"  # JSON: the calls that it serves
CACHE_TRITON = "toolchain.triton-cache.triton"  # input digest of the Triton image; its manifest depends on the packing
CACHE_TRITON_LAYER = "toolchain.triton-cache.triton-layer"  # diff_id of that image's top layer
CACHE_TRITON_KEY = "toolchain.triton-cache.triton-key"  # SHA-256 of what Triton's key of itself is
CACHE_MCV_KEY = "toolchain.triton-cache.mcv-key"  # what MCV takes for that key, where it finds one: before Triton 3.6
CACHE_TRITON_PATH = "toolchain.triton-cache.triton-path"  # where the package is
