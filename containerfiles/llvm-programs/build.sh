#!/bin/sh
# Builds MLIR's table generator alone, by containerfiles/llvm-portable/build.sh or, without GLIBC, containerfiles/llvm/build.sh.
# It reads the same environment variables. llvm-config/pch-programs.cmake has its precompiled headers, and
# llvm-config/linked-sources.cmake the sources that it links.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ -n "${GLIBC:-}" ]; then build=/recipe/containerfiles/llvm-portable/build.sh; else build=/recipe/containerfiles/llvm/build.sh; fi
options="-DCMAKE_PROJECT_LLVM_INCLUDE=/recipe/llvm-config/pch-programs.cmake ${CMAKE_EXTRA:-}"
# The lists were not tried in a build for another machine, which has programs in NATIVE.
if [ -z "${NATIVE:-}" ]; then
  code=0
  CMAKE_EXTRA="-DTOOLCHAIN_LINKED_ONLY=ON $options" sh "$build" || code=$?
  # The stamp shows that LLVM was configured.
  if [ "$code" -eq 0 ] || [ ! -f /build/toolchain-stamp ]; then exit "$code"; fi
  echo "this LLVM may need more sources than linked-sources.cmake names, so all are compiled now"
fi
CMAKE_EXTRA="$options" exec sh "$build"
