#!/bin/sh
# Builds mimalloc as a shared library to be preloaded. Called by the Containerfile beside it; comes in by environment:
#   PREFIX   where the library will lie
#   JOBS
# Reads /src/mimalloc, writes below /out and PREFIX: libmimalloc.so and its licence.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/tmp
export NINJA_STATUS='@ninja %f/%t %r %e@ '

echo "@step configure"
rm -rf /out /tmp/mimalloc
mkdir -p "/out$PREFIX"
flags="-ffile-prefix-map=/src/mimalloc=. -ffile-prefix-map=/tmp/mimalloc=."
cmake -G Ninja -S /src/mimalloc -B /tmp/mimalloc -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
  -DCMAKE_SHARED_LINKER_FLAGS="-fuse-ld=lld -Wl,-s -Wl,--build-id=sha1" \
  -DMI_OVERRIDE=ON -DMI_BUILD_SHARED=ON -DMI_BUILD_STATIC=OFF -DMI_BUILD_OBJECT=OFF -DMI_BUILD_TESTS=OFF

echo "@step compile"
ninja -C /tmp/mimalloc ${JOBS:+-j"$JOBS"}
# One name, whatever the version is.
install -m 0755 /tmp/mimalloc/libmimalloc.so "/out$PREFIX/libmimalloc.so"
install -m 0644 /src/mimalloc/LICENSE "/out$PREFIX/LICENSE"
echo "@step done"
