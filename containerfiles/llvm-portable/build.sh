#!/bin/sh
# Builds LLVM inside the base against the old system in /sysroot, by containerfiles/llvm/build.sh. It reads the same
# environment variables and in addition
#   GLIBC       the version of that system's glibc, e.g. 2.31; the layer's CMake package tells it to consumers
set -eu
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac
if [ ! -e /sysroot/usr/include/stdlib.h ] || ! command -v clang++ >/dev/null || ! command -v ld.lld >/dev/null; then
  echo "toolchain: a portable LLVM is built with clang and lld against an old system in /sysroot" >&2
  exit 43
fi
case ${GLIBC:-} in
*[!0-9.]* | '')
  echo "toolchain: GLIBC must name the version of the glibc in /sysroot" >&2
  exit 43
  ;;
esac
found=$(sed -n 's/^#define[ \t]*__GLIBC\(_MINOR\)\{0,1\}__[ \t]*\([0-9]*\)$/\2/p' /sysroot/usr/include/features.h | tr '\n' .)
if [ "$found" != "$GLIBC." ]; then
  echo "toolchain: /sysroot holds glibc ${found%.}, and the layer would be called one for $GLIBC" >&2
  exit 43
fi
# For another machine the other script takes /sysroot by itself, and its native table generators are this system's.
if [ "${ARCH:-amd64}" = "$machine" ]; then
  # The options in CMAKE_EXTRA come last, so they override this one.
  export CMAKE_EXTRA="-DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/portable.cmake ${CMAKE_EXTRA:-}"
fi
sh /recipe/containerfiles/llvm/build.sh

# A part of LLVM may have no CMake package.
package="/out$PREFIX/lib/cmake/llvm"
if [ -f "$package/LLVMConfig.cmake" ]; then
  sed "s/@GLIBC@/$GLIBC/" /recipe/containerfiles/llvm-portable/LayerConsumer.cmake >"$package/LayerConsumer.cmake"
  chmod 0644 "$package/LayerConsumer.cmake"
  # shellcheck disable=SC2016  # CMake's variable
  printf '\ninclude("${CMAKE_CURRENT_LIST_DIR}/LayerConsumer.cmake")\n' >>"$package/LLVMConfig.cmake"
fi
