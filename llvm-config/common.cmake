# What every LLVM layer holds, whatever the Triton version and the architecture.
# A CMake initial cache: `cmake -C llvm-config/common.cmake ...`. The components come from components.toml and
# arrive as LLVM_ENABLE_PROJECTS and LLVM_DISTRIBUTION_COMPONENTS; the targets come from targets/<arch>.cmake.

set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(LLVM_ENABLE_ASSERTIONS OFF CACHE BOOL "")
# The hash seed of ADT/Hashing.h is tied to the ABI checks; without them kernels come out the same in every process.
set(LLVM_ABI_BREAKING_CHECKS FORCE_OFF CACHE STRING "")

# One section for each function costs a twelfth of an object in headers and relocations. A consumer's --gc-sections then
# drops whole objects, and the inline functions, which have sections of their own all the same. LLVM asks for it in the
# flags of every build type; those of the type itself come later and win.
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG -fno-function-sections -fno-data-sections" CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -fno-function-sections -fno-data-sections" CACHE STRING "")

# libtriton must not depend on an LLVM at run time: static archives alone.
set(BUILD_SHARED_LIBS OFF CACHE BOOL "")
set(LLVM_BUILD_LLVM_DYLIB OFF CACHE BOOL "")
set(LLVM_LINK_LLVM_DYLIB OFF CACHE BOOL "")
set(MLIR_BUILD_MLIR_C_DYLIB OFF CACHE BOOL "")
# As LLVM does by default and Triton compiles whatever derives from MLIR. Type information takes a thirtieth of an object.
set(LLVM_ENABLE_RTTI OFF CACHE BOOL "")
set(LLVM_ENABLE_EH OFF CACHE BOOL "")
# Triton derives its library folder as <syspath>/lib, so the suffix must stay empty also where the system says lib64.
set(LLVM_LIBDIR_SUFFIX "" CACHE STRING "")

# Nothing that a consumer would have to install beside the layer.
set(LLVM_ENABLE_ZLIB OFF CACHE STRING "")
set(LLVM_ENABLE_ZSTD OFF CACHE STRING "")
set(LLVM_ENABLE_LIBXML2 OFF CACHE STRING "")
set(LLVM_ENABLE_TERMINFO OFF CACHE BOOL "")
set(LLVM_ENABLE_LIBEDIT OFF CACHE STRING "")
set(LLVM_ENABLE_LIBPFM OFF CACHE BOOL "")
set(LLVM_ENABLE_CURL OFF CACHE STRING "")
set(LLVM_ENABLE_HTTPLIB OFF CACHE STRING "")
set(LLVM_ENABLE_BINDINGS OFF CACHE BOOL "")
set(LLVM_ENABLE_OCAMLDOC OFF CACHE BOOL "")
set(LLVM_ENABLE_PLUGINS OFF CACHE BOOL "")
set(MLIR_ENABLE_BINDINGS_PYTHON OFF CACHE BOOL "")
set(MLIR_ENABLE_EXECUTION_ENGINE OFF CACHE BOOL "")

# Tools and utilities are built only where a component names them.
set(LLVM_BUILD_TOOLS OFF CACHE BOOL "")
set(LLVM_INCLUDE_TOOLS ON CACHE BOOL "")
set(LLVM_BUILD_UTILS ON CACHE BOOL "")
set(LLVM_INCLUDE_UTILS ON CACHE BOOL "")
set(LLVM_INSTALL_UTILS ON CACHE BOOL "")
set(LLD_BUILD_TOOLS OFF CACHE BOOL "")
set(LLVM_INSTALL_TOOLCHAIN_ONLY OFF CACHE BOOL "")
set(LLVM_BUILD_RUNTIME OFF CACHE BOOL "")
set(LLVM_BUILD_RUNTIMES OFF CACHE BOOL "")
set(LLVM_INCLUDE_RUNTIMES OFF CACHE BOOL "")
foreach(part IN ITEMS TESTS EXAMPLES BENCHMARKS DOCS)
  set(LLVM_INCLUDE_${part} OFF CACHE BOOL "")
endforeach()
set(MLIR_INCLUDE_TESTS OFF CACHE BOOL "")
set(MLIR_INCLUDE_INTEGRATION_TESTS OFF CACHE BOOL "")
set(MLIR_INCLUDE_DOCS OFF CACHE BOOL "")
set(CLANG_INCLUDE_TESTS OFF CACHE BOOL "")
set(CLANG_INCLUDE_DOCS OFF CACHE BOOL "")
set(CLANG_ENABLE_STATIC_ANALYZER OFF CACHE BOOL "")
set(CLANG_ENABLE_ARCMT OFF CACHE BOOL "")
set(CLANG_BUILD_TOOLS ON CACHE BOOL "")

# A second copy of every MLIR object under lib/objects-Release otherwise.
set(MLIR_INSTALL_AGGREGATE_OBJECTS OFF CACHE BOOL "")

# Neither the surrounding repository nor the build folder may show in the result.
set(LLVM_APPEND_VC_REV OFF CACHE BOOL "")
set(LLVM_FORCE_VC_REVISION "" CACHE STRING "")
set(LLVM_VERSION_SUFFIX "" CACHE STRING "")
set(LLVM_USE_RELATIVE_PATHS_IN_FILES ON CACHE BOOL "")

# CMake's own project hook adds precompiled headers and edits. LLVM's tree stays as it is.
set(TOOLCHAIN_PCH ON CACHE BOOL "Compile LLVM with precompiled headers (clang only)")
set(CMAKE_PROJECT_LLVM_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/pch.cmake" CACHE FILEPATH "")
