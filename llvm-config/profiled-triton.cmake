# Where the time goes in Triton's own code while it compiles AOTriton's kernels, its copies of LLVM's templates included:
# the linker takes those, since Triton's objects come before LLVM's libraries. See docs/measurements/index.md.

set(TOOLCHAIN_PROFILED
  lib/Analysis lib/Conversion/TritonGPUToLLVM lib/Dialect/Triton/IR lib/Dialect/TritonGPU/IR
  lib/Dialect/TritonNvidiaGPU/Transforms lib/Tools)
set(TOOLCHAIN_PROFILED_TOP "${CMAKE_SOURCE_DIR}")
include("${CMAKE_CURRENT_LIST_DIR}/profiled.cmake")
