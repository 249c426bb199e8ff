#!/bin/sh
# Runs the CPython of a root below /pythons: sh python.sh VERSION ARGUMENTS...
# Its own loader and C library serve it, so that a base of any age runs it. EMULATOR is the path of a qemu-user where the
# root is another machine's.
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
