# Where the time goes in LLVM, MLIR and lld while Triton compiles AOTriton's kernels; see docs/measurements/index.md.
#
# What the other folders take is one part in fourteen, and two thirds of what is to be compiled. MLIR's dialect LLVMIR is left
# out: one part in seventy of the time, and as much to compile as all of LLVM's passes over IR.

set(TOOLCHAIN_PROFILED
  llvm/lib/Analysis llvm/lib/Bitcode/Reader llvm/lib/Bitstream/Reader llvm/lib/CodeGen llvm/lib/CodeGen/SelectionDAG
  llvm/lib/IR llvm/lib/MC llvm/lib/Support llvm/lib/Target/AMDGPU llvm/lib/Target/AMDGPU/AsmParser
  llvm/lib/Target/AMDGPU/Utils llvm/lib/Transforms/InstCombine llvm/lib/Transforms/Scalar llvm/lib/Transforms/Utils
  llvm/lib/Transforms/Vectorize
  mlir/lib/Analysis mlir/lib/Dialect/Arith/IR mlir/lib/Dialect/SCF/IR mlir/lib/IR mlir/lib/Support mlir/lib/Transforms
  mlir/lib/Transforms/Utils)
cmake_path(GET CMAKE_SOURCE_DIR PARENT_PATH TOOLCHAIN_PROFILED_TOP)
include("${CMAKE_CURRENT_LIST_DIR}/profiled.cmake")
# After it: a precompiled header has the flags of the library that it is for.
include("${CMAKE_CURRENT_LIST_DIR}/pch-instantiated.cmake")
