#!/bin/sh
# Compiler launcher: runs the compiler; where a file does not compile with the precompiled header (a name of the file
# clashes with one of a header that it does not include itself), compiles it again without. So a precompiled header
# can cost time, never a build. The files this happened to are listed in /build/pch-fallbacks.
case " $* " in
*" -include-pch "*) ;;
*) exec "$@" ;;
esac
case " $* " in
*" -emit-pch "*) exec "$@" ;;
esac
errors=$(mktemp)
if "$@" 2>"$errors"; then
  cat "$errors" >&2
  rm -f "$errors"
  exit 0
fi
rm -f "$errors"
# CMake passes `-Xclang -include-pch -Xclang FILE -Xclang -include -Xclang FILE`, in this order, once.
count=$#
skip=0
source=
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  count=$((count - 1))
  if [ "$skip" -gt 0 ]; then
    skip=$((skip - 1))
    continue
  fi
  if [ "$word" = -Xclang ]; then
    case "$1" in
    -include-pch | -include)
      skip=3
      continue
      ;;
    esac
  fi
  source=$word
  set -- "$@" "$word"
done
echo "$source" >>/build/pch-fallbacks
exec "$@"
