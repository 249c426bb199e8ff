#!/bin/sh
# Builds MLIR's table generator alone, by containerfiles/llvm-portable/build.sh or, without GLIBC, containerfiles/llvm/build.sh.
# It reads the same environment variables. llvm-config/pch-programs.cmake has its precompiled headers.
set -eu
CMAKE_EXTRA="-DCMAKE_PROJECT_LLVM_INCLUDE=/recipe/llvm-config/pch-programs.cmake ${CMAKE_EXTRA:-}"
export CMAKE_EXTRA
if [ -n "${GLIBC:-}" ]; then exec sh /recipe/containerfiles/llvm-portable/build.sh; fi
exec sh /recipe/containerfiles/llvm/build.sh
