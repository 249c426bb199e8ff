# Code generators of the layer for aarch64. The target is named, because `host` is the build machine.
set(LLVM_TARGETS_TO_BUILD "AArch64;NVPTX;AMDGPU" CACHE STRING "")
set(LLVM_HOST_TRIPLE "aarch64-unknown-linux-gnu" CACHE STRING "")
set(LLVM_DEFAULT_TARGET_TRIPLE "aarch64-unknown-linux-gnu" CACHE STRING "")
