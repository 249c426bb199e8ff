#!/bin/sh
# Compiler launcher: runs the compiler, and runs it again without the precompiled header if a source does not compile
# with it, because a name clashes with a header that the source does not include. So a precompiled header can cost time but
# cannot break a build. /build/pch-fallbacks lists the sources that were compiled twice, and the headers that could not be
# precompiled.
case " $* " in
*" -emit-pch "*)
  # Some commit of LLVM may have headers that do not compile together. The compiler refuses an empty precompiled header.
  code=0
  "$@" || code=$?
  [ "$code" -eq 1 ] || exit "$code" # for example, the compiler was killed
  while [ "$1" != -o ]; do shift; done
  echo "toolchain: the headers of $2 do not compile together, so its sources are compiled without it" >&2
  echo "$2" >>/build/pch-fallbacks
  : >"$2"
  exit 0
  ;;
*" -include-pch "*) ;;
*) exec "$@" ;;
esac
errors=$(mktemp)
if "$@" 2>"$errors"; then
  cat "$errors" >&2
  rm -f "$errors"
  exit 0
fi
rm -f "$errors"
# CMake passes `-Xclang -include-pch -Xclang FILE -Xclang -include -Xclang FILE` once, in this order.
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
