# Code generators of the layer for x86_64. There is no other CPU, because Triton before mid-2026 initialises every target.
set(LLVM_TARGETS_TO_BUILD "X86;NVPTX;AMDGPU" CACHE STRING "")
set(LLVM_HOST_TRIPLE "x86_64-unknown-linux-gnu" CACHE STRING "")
set(LLVM_DEFAULT_TARGET_TRIPLE "x86_64-unknown-linux-gnu" CACHE STRING "")
