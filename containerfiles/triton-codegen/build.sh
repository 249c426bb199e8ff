#!/bin/sh
# Builds the library by which Triton generates code for a GPU, against the old system in /sysroot. The Containerfile in this
# folder runs it. It reads these environment variables:
#   PREFIX     install prefix of the LLVM layer
#   ARCH       amd64 or arm64; a library for another machine than this one is cross-compiled
#   PROJECT    folder of the CMake project in Triton's tree
#   LIBRARY    the name of the library
#   EXPORTS    the version script that the project writes into its build folder
#   REVISION   `NAME=TEXT`: CMake's variable for the revision, and the revision that the library reports
#   JOBS
# It reads /src/triton, /sysroot and /recipe, and writes /out: the library, the version script and Triton's licence.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/tmp
export NINJA_STATUS='@ninja %f/%t %r %e@ '
export CCACHE_DIR=/ccache CCACHE_CONFIGPATH=/recipe/containerfiles/ccache.conf

case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac
if [ ! -e /sysroot/usr/include/stdlib.h ] || ! command -v clang++ >/dev/null || ! command -v ld.lld >/dev/null; then
  echo "toolchain: $LIBRARY is built with clang and lld against an old system in /sysroot" >&2
  exit 43
fi
case ${REVISION:-} in
*[!A-Za-z0-9_.=+~-]* | '' | =* | *=) wrong=1 ;;
*=*) wrong='' ;;
*) wrong=1 ;;
esac
if [ -n "$wrong" ]; then
  echo "toolchain: REVISION must be NAME=TEXT: CMake's variable, and what the library answers" >&2
  exit 43
fi
cross=
if [ "${ARCH:-amd64}" != "$machine" ]; then cross=$ARCH; fi
launcher=
if command -v ccache >/dev/null; then launcher=ccache; fi

echo "@step configure"
rm -rf /out /tmp/codegen
mkdir -p /out
flags="-ffile-prefix-map=/src/triton=. -ffile-prefix-map=/tmp/codegen=. -ffile-prefix-map=/sysroot="
# Release defines NDEBUG, with which the layer's archives were compiled. Without it the headers declare other types.
cmake -G Ninja -S "/src/triton/$PROJECT" -B /tmp/codegen -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_TOOLCHAIN_FILE=/recipe/containerfiles/triton-portable/toolchain.cmake ${cross:+-DTOOLCHAIN_ARCH="$cross"} \
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  ${launcher:+-DCMAKE_C_COMPILER_LAUNCHER=$launcher -DCMAKE_CXX_COMPILER_LAUNCHER=$launcher} \
  -DLLVM_DIR="$PREFIX/lib/cmake/llvm" "-D$REVISION" -DCMAKE_INSTALL_PREFIX=/usr \
  -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
  -DCMAKE_SHARED_LINKER_FLAGS="-fuse-ld=lld -Wl,-s -Wl,--gc-sections -Wl,--build-id=sha1"
# CMake must have found the layer's LLVM and not one of the base.
where=$(sed -n 's/^LLVM_DIR:[A-Z]*=//p' /tmp/codegen/CMakeCache.txt)
case "$where" in
"$PREFIX"/*) ;;
*)
  echo "toolchain: $LIBRARY was configured with the LLVM in $where, not the layer's" >&2
  exit 44
  ;;
esac

echo "@step compile"
ninja -C /tmp/codegen ${JOBS:+-j"$JOBS"}
found=$(find /tmp/codegen -name "$LIBRARY" -type f)
if [ -z "$found" ]; then
  echo "toolchain: $PROJECT made no $LIBRARY" >&2
  exit 45
fi
install -m 0755 "$found" "/out/$LIBRARY"
if [ -f "/tmp/codegen/$EXPORTS" ]; then install -m 0644 "/tmp/codegen/$EXPORTS" "/out/$EXPORTS"; fi
if [ -f /src/triton/LICENSE ]; then install -m 0644 /src/triton/LICENSE /out/LICENSE; fi
echo "@step done"
