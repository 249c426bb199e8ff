#!/bin/sh
# This script runs in a container of the user's own base, as `sh -c TEXT probe WORD...`. It prints a line
# `found TOOL VERSION` for each tool that it finds, and `probed` at the end. A word is the version of a Python to look
# for in addition to python3, or NAME=GLOB for a file. The script uses only a shell, basic utilities such as mkdir and
# grep, and the tools that it looks for.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 LC_ALL=C.UTF-8
has() { command -v "$1" >/dev/null 2>&1; }
# Print the first version number in the output of a command; print nothing if there is none.
said() {
  first=$("$@" 2>/dev/null) || first=
  for word in $first; do
    case $word in [0-9]*.[0-9]*)
      echo "${word%%[!0-9.]*}"
      return
      ;;
    esac
  done
}
cc=
cxx=
if has gcc && has g++; then
  echo "found gcc $(gcc -dumpfullversion -dumpversion 2>/dev/null)"
  cc=gcc cxx=g++
fi
if has clang && has clang++; then
  echo "found clang $(said clang --version)"
  cc=clang cxx=clang++
fi
for tool in cmake ninja; do
  if has "$tool"; then echo "found $tool $(said "$tool" --version)"; fi
done
for tool in ar llvm-ar ld.lld find pkg-config git ccache llvm-objcopy; do
  if has "$tool"; then echo "found $tool"; fi
done
work=/tmp/toolchain-probe-$$
mkdir -p "$work"
if [ -n "$cxx" ]; then
  printf '#include <cstdlib>\n#include <optional>\n#include <vector>\nint main() { return std::vector<int>{}.size(); }\n' >"$work/a.cc"
  lld=
  if [ "$cc" = clang ] && has ld.lld; then lld=-fuse-ld=lld; fi
  if "$cxx" -std=c++17 $lld -o "$work/a" "$work/a.cc" >/dev/null 2>&1; then echo "found c++17"; fi
  printf '#include <lzma.h>\n' >"$work/b.c"
  if "$cc" -fsyntax-only "$work/b.c" >/dev/null 2>&1; then echo "found lzma.h"; fi
fi
rm -rf "$work"
python() {
  has "$1" || return 0
  version=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || return 0
  echo "found $1 $version"
  if "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.isfile(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null; then
    echo "found $1.h"
  fi
  if "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then echo "found $1.venv"; fi
}
python python3
for word in "$@"; do
  case $word in
  *=*)
    for file in ${word#*=}; do
      if [ -f "$file" ]; then
        echo "found ${word%%=*}"
        break
      fi
    done
    ;;
  *) python "python$word" ;;
  esac
done
for header in /usr/include/hip/hip_runtime_api.h "${ROCM_PATH:-/opt/rocm}/include/hip/hip_runtime_api.h"; do
  if [ -f "$header" ] && grep -q hipStreamGetDevice "$header"; then
    echo "found hip"
    break
  fi
done
# The getconf of another C library does not know GNU_LIBC_VERSION; then no line is printed.
if has getconf; then
  glibc=$(said getconf GNU_LIBC_VERSION)
  if [ -n "$glibc" ]; then echo "found glibc $glibc"; fi
fi
if [ -f /etc/os-release ]; then
  . /etc/os-release
  echo "found os ${ID:-}"
  echo "found like ${ID_LIKE:-}"
fi
echo probed
