# Settings of every LLVM layer, for all Triton versions and architectures.
# A CMake initial cache: `cmake -C llvm-config/common.cmake ...`. The components come from components.toml and
# arrive as LLVM_ENABLE_PROJECTS and LLVM_DISTRIBUTION_COMPONENTS; the targets come from targets/<arch>.cmake.

set(CMAKE_BUILD_TYPE Release CACHE STRING "")
set(LLVM_ENABLE_ASSERTIONS OFF CACHE BOOL "")
# The hash seed of ADT/Hashing.h is tied to the ABI checks; without them kernels come out the same in every process.
set(LLVM_ABI_BREAKING_CHECKS FORCE_OFF CACHE STRING "")

# Sections for single functions take a twelfth of an object in headers and relocations. Without them --gc-sections still
# drops whole objects, and inline functions, which always have their own sections. LLVM sets -ffunction-sections in the
# common flags; the flags of the build type come later on the command line, so they win.
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG -fno-function-sections -fno-data-sections" CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -fno-function-sections -fno-data-sections" CACHE STRING "")

# Build static archives only, because libtriton must not depend on an LLVM at run time.
set(BUILD_SHARED_LIBS OFF CACHE BOOL "")
set(LLVM_BUILD_LLVM_DYLIB OFF CACHE BOOL "")
set(LLVM_LINK_LLVM_DYLIB OFF CACHE BOOL "")
set(MLIR_BUILD_MLIR_C_DYLIB OFF CACHE BOOL "")
# LLVM's default. Triton also compiles its MLIR classes without RTTI. Type information takes a thirtieth of an object.
set(LLVM_ENABLE_RTTI OFF CACHE BOOL "")
set(LLVM_ENABLE_EH OFF CACHE BOOL "")
# Triton derives its library folder as <syspath>/lib, so the suffix must stay empty also where the system says lib64.
set(LLVM_LIBDIR_SUFFIX "" CACHE STRING "")

# A consumer must not need further packages to link the layer.
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

# Otherwise a second copy of every MLIR object is installed under lib/objects-Release.
set(MLIR_INSTALL_AGGREGATE_OBJECTS OFF CACHE BOOL "")

# The layer must not contain the repository's revision or the build folder.
set(LLVM_APPEND_VC_REV OFF CACHE BOOL "")
set(LLVM_FORCE_VC_REVISION "" CACHE STRING "")
set(LLVM_VERSION_SUFFIX "" CACHE STRING "")
set(LLVM_USE_RELATIVE_PATHS_IN_FILES ON CACHE BOOL "")

# CMake includes pch.cmake after LLVM's project() call. It adds precompiled headers and edits without changing LLVM's tree.
set(TOOLCHAIN_PCH ON CACHE BOOL "Compile LLVM with precompiled headers (clang only)")
set(CMAKE_PROJECT_LLVM_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/pch.cmake" CACHE FILEPATH "")
