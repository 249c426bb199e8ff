#!/bin/sh
# Makes a library to link with of each folder in /stubs. Called by the Containerfile beside it. Writes /out/NAME/SONAME.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/tmp
if ! command -v clang >/dev/null || ! command -v ld.lld >/dev/null; then
  echo "toolchain: a library to link with is made by clang and lld" >&2
  exit 43
fi
echo "@step compile"
for folder in /stubs/*/; do
  name=$(basename "$folder")
  soname=$(cat "$folder/soname")
  mkdir -p "/out/$name"
  # Nothing of a C library: it is linked into whatever names it, on any system.
  clang -O1 -fPIC -shared -nostdlib -fuse-ld=lld -ffile-prefix-map=/stubs=. -Wl,--build-id=none "-Wl,-soname,$soname" \
    "-Wl,--version-script=$folder/stub.map" -o "/out/$name/$soname" "$folder/stub.c"
done
echo "@step done"
