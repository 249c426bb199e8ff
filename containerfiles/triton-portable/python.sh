#!/bin/sh
# Runs the CPython of a root below /pythons: sh python.sh VERSION ARGUMENTS...
# It uses the loader and the C library of the root, so it runs on a base of any age. EMULATOR is the path of a qemu-user, for
# a root of another machine.
set -eu
version=$1
shift
root=/pythons/$version
export PYTHONHOME="$root/usr"
if [ -n "${EMULATOR:-}" ]; then
  exec "$EMULATOR" -L "$root" "$root/usr/bin/python$version" "$@"
fi
for loader in "$root"/lib64/ld-*.so.* "$root"/lib/ld-*.so.*; do
  if [ -e "$loader" ]; then
    machine=$(uname -m)-linux-gnu
    exec "$loader" --library-path "$root/usr/lib/$machine:$root/lib/$machine" "$root/usr/bin/python$version" "$@"
  fi
done
echo "toolchain: /pythons/$version has no loader of programs" >&2
exit 47
