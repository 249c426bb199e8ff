# Code generators of the layer for ppc64le. The target is named, because `host` is the build machine.
set(LLVM_TARGETS_TO_BUILD "PowerPC;NVPTX;AMDGPU" CACHE STRING "")
set(LLVM_HOST_TRIPLE "powerpc64le-unknown-linux-gnu" CACHE STRING "")
set(LLVM_DEFAULT_TARGET_TRIPLE "powerpc64le-unknown-linux-gnu" CACHE STRING "")
