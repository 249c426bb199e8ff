# Code generators of the layer for s390x. The target is named, because `host` is the build machine.
set(LLVM_TARGETS_TO_BUILD "SystemZ;NVPTX;AMDGPU" CACHE STRING "")
set(LLVM_HOST_TRIPLE "s390x-unknown-linux-gnu" CACHE STRING "")
set(LLVM_DEFAULT_TARGET_TRIPLE "s390x-unknown-linux-gnu" CACHE STRING "")
