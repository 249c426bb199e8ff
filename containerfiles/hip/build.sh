#!/bin/sh
# Makes a stub library from each folder in /stubs and writes it to /out/NAME/SONAME. The Containerfile in this folder runs it.
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
  # The library must not need a C library, because programs link it on any system.
  clang -O1 -fPIC -shared -nostdlib -fuse-ld=lld -ffile-prefix-map=/stubs=. -Wl,--build-id=none "-Wl,-soname,$soname" \
    "-Wl,--version-script=$folder/stub.map" -o "/out/$name/$soname" "$folder/stub.c"
done
echo "@step done"
