#!/bin/sh
# Build and run the program with each compiler and each linker of the system: build.sh PREFIX
set -eu
prefix=$1
here=$(cd "$(dirname "$0")" && pwd)
for compilers in "gcc g++" "clang clang++"; do
  for linker in bfd lld; do
    tree=$(mktemp -d)
    cmake -G Ninja -S "$here" -B "$tree" -DCMAKE_BUILD_TYPE=Release -DLLVM_DIR="$prefix/lib/cmake/llvm" \
      -DCMAKE_C_COMPILER="${compilers% *}" -DCMAKE_CXX_COMPILER="${compilers#* }" \
      -DCMAKE_EXE_LINKER_FLAGS="-fuse-ld=$linker"
    cmake --build "$tree"
    echo "${compilers#* } and $linker: $("$tree/consumer" _ZN4llvm5APIntD1Ev | tr '\n' ' ')"
    rm -rf "$tree"
  done
done
