#!/bin/sh
# Checks that every symbol which archives and programs below PREFIX leave undefined is in the layer or in the C and C++
# libraries of a system. The layer then links and runs on this system and on newer ones.
#
#   sh symbols.sh PREFIX SYSTEM     SYSTEM: the folder of the system; / for the running one
#
# The script prints `COUNT symbols of COUNT libraries and programs, all in PREFIX or SYSTEM`. Otherwise it prints a line
# `libX.a: SYMBOL in MEMBER, …` for each library or program with another symbol, and exits with 1. It uses llvm-nm or nm.
set -eu
LC_ALL=C
export LC_ALL
prefix=$1 system=${2%/}
nm='nm'
if command -v llvm-nm >/dev/null; then nm='llvm-nm'; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/symbols.XXXXXX")
trap 'rm -rf "$work"' EXIT

# defined PATTERN...: print the symbols that the system's libraries of these names define
defined() {
  for pattern; do
    # shellcheck disable=SC2231  # PATTERN is a glob
    for file in "$system"/lib/$pattern "$system"/lib64/$pattern "$system"/usr/lib/$pattern "$system"/usr/lib64/$pattern \
      "$system"/lib/*-linux-gnu*/$pattern "$system"/usr/lib/*-linux-gnu*/$pattern \
      "$system"/usr/lib/gcc/*/*/$pattern "$system"/opt/rh/gcc-toolset-*/root/usr/lib/gcc/*/*/$pattern; do
      if [ -e "$file" ]; then
        # shellcheck disable=SC2086  # OPTION may be empty
        "$nm" ${option:-} -P --defined-only "$file" || exit 2
      fi
    done
  done
}
option=-D
defined libc.so.6 libm.so.6 libmvec.so.1 libpthread.so.0 libdl.so.2 librt.so.1 'ld-linux*.so.*' 'ld64.so.*' \
  libgcc_s.so.1 'libstdc++.so.6' >"$work/shared"
option=''
defined crt1.o crti.o crtn.o crtbegin.o crtend.o libc_nonshared.a libpthread_nonshared.a libgcc.a libgcc_eh.a \
  >"$work/static" 2>/dev/null
for symbol in printf log2 _Znwm; do
  if ! grep -q "^${symbol}[@ ]" "$work/shared"; then
    echo "no C and C++ libraries in $system/: nothing there defines $symbol"
    exit 1
  fi
done

cd "$prefix"
set -- lib/*.a
: >"$work/own"
: >"$work/wanted"
if [ -e "$1" ]; then
  "$nm" -P --defined-only --extern-only "$@" >"$work/own" 2>"$work/said" || exit 2
  "$nm" -A -P --undefined-only "$@" >"$work/wanted" 2>"$work/said" || exit 2
fi
for program in bin/*; do
  case $(head -c 4 "$program" 2>/dev/null | tail -c 3) in
  ELF) "$nm" -A -D -P --undefined-only "$program" >>"$work/wanted" ;;
  esac
done

awk '
  # A linker ignores symbols of a shared library that have only an old version (one @).
  role == "shared" {
    if ($1 ~ /@/) {
      name = $1
      sub(/@@/, "@", name)
      exported[name]
      if ($1 !~ /@@/) next
      sub(/@.*/, "", $1)
    }
    have[$1]
  }
  role == "own" && NF > 1 { have[$1] }
  role == "wanted" && $3 == "U" {
    name = $2
    file = $1
    sub(/:$/, "", file)
    member = file
    sub(/^[^[]*\[?/, "", member)
    sub(/\]$/, "", member)
    sub(/\[.*/, "", file)
    sub(/.*\//, "", file)
    files[file]
    if (!(name in named)) {
      named[name]
      count++
    }
    if (name in have || name in exported) next
    # The linker defines these symbols.
    if (name ~ /^(_GLOBAL_OFFSET_TABLE_|_DYNAMIC|_TLS_MODULE_BASE_|__ehdr_start|__executable_start|\.TOC\.)$/) next
    if (name ~ /^(__start_|__stop_|__(preinit|init|fini)_array_|_?(end|etext|edata)$)/) next
    if ((file, name) in told) next
    told[file, name]
    if (++missing[file] <= 5) list[file] = list[file] (missing[file] > 1 ? ", " : "") name (member ? " in " member : "")
  }
  END {
    for (file in files) total++
    for (file in missing) {
      bad = 1
      more = missing[file] > 5 ? " and " (missing[file] - 5) " more" : ""
      print file ": " list[file] more | "sort"
    }
    close("sort")
    if (bad) exit 1
    print count + 0 " symbols of " total + 0 " libraries and programs"
  }
' role=shared "$work/shared" role=own "$work/static" "$work/own" role=wanted "$work/wanted"
