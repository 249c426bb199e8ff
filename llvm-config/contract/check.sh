#!/bin/sh
# Checks that the LLVM below PREFIX has what a Triton needs. Run it in a fresh container of base and layer:
#
#   LIBRARIES="MLIRIR;LLVMPasses;..." LLD=ON CLANG=OFF sh check.sh [--quick] [--until NAME] PREFIX
#
#   LIBRARIES  the CMake targets that this Triton names, joined by ;
#   LLD        ON: Triton links through lld's libraries       (default OFF)
#   FILECHECK  ON: Triton's wheel holds FileCheck             (default ON)
#   CLANG      ON: Triton compiles device code by clang++     (default OFF)
#   DYLIB      allow: a dynamic libLLVM is not a failure      (only to try this script on a distribution's LLVM)
#   FORBIDDEN  folders that no file may contain, joined by :  (default /build:/src/llvm:/sysroot, where build.sh builds)
#   PART       tablegen, mlir-tblgen, support: the layer is only this part of LLVM, and only this part is checked; codegen: it
#              is an LLVM of one GPU without MLIR
#   SYSTEM     the folder of the oldest system that may link the layer: symbols that the archives leave undefined must be in
#              its C and C++ libraries or in the layer      (default: not checked; / for the system it runs in)
#   CROSS      the architecture of the layer, if it is not that of this machine: programs are built against the system in
#              /sysroot by clang and lld, and run by
#   EMULATOR   a command line without blanks in its words
#   LINKER     bfd or lld, which links the programs           (default: lld if it exists)
#   JOBS       the number of compile jobs                     (default: the number of processors)
#
# The script prints a line `@contract NAME ok|fail DETAIL` for each check, and logs of failures on standard error. Cheap checks
# come first; --quick ends at the first failure, --until NAME after this check. The exit code is 1 if a check failed.
set -u
LC_ALL=C
export LC_ALL
unset CMAKE_PREFIX_PATH LLVM_DIR MLIR_DIR LLD_DIR CXXFLAGS CFLAGS LDFLAGS

usage() {
  echo "usage: check.sh [--quick] [--until NAME] PREFIX" >&2
  exit 2
}
quick='' until=''
while [ $# -gt 1 ]; do
  case $1 in
    --quick) quick=1 ;;
    --until) until=$2 && shift ;;
    *) usage ;;
  esac
  shift
done
case ${1:-} in '' | -*) usage ;; esac
prefix=$1
here=$(cd "$(dirname "$0")" && pwd) || exit 2
LIBRARIES=${LIBRARIES:-} LLD=${LLD:-OFF} FILECHECK=${FILECHECK:-ON} CLANG=${CLANG:-OFF} DYLIB=${DYLIB:-forbid}
FORBIDDEN=${FORBIDDEN:-/build:/src/llvm:/sysroot} PART=${PART:-} CROSS=${CROSS:-} SYSTEM=${SYSTEM:-} EMULATOR=${EMULATOR:-}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 1)}
libraries=$LIBRARIES
for name in lldCommon lldELF; do
  case ";$libraries;" in *";$name;"*) continue ;; esac
  if [ "$LLD" = ON ]; then libraries="$libraries;$name"; fi
done

work=$(mktemp -d "${TMPDIR:-/tmp}/contract.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
failed=' '

# check NAME AFTER FUNCTION: run FUNCTION, which sets `detail` to a line of text, unless the check AFTER failed (- for none).
check() {
  detail=''
  case $failed in
    *" $2 "*)
      failed="$failed$1 "
      echo "@contract $1 fail not run, because $2 failed"
      return
      ;;
  esac
  if "$3" >"$work/$1.log" 2>&1; then
    echo "@contract $1 ok $detail"
  else
    failed="$failed$1 "
    tail -n 40 "$work/$1.log" >&2
    echo "@contract $1 fail ${detail:-see the log above}"
    if [ -n "$quick" ]; then exit 1; fi
  fi
  if [ "$1" = "$until" ]; then finish; fi
}

finish() {
  if [ "$failed" = ' ' ]; then exit 0; fi
  exit 1
}

# emulated PROGRAM ARGUMENT...: run a program for the layer's architecture.
# shellcheck disable=SC2086  # EMULATOR is a command line
emulated() { $EMULATOR "$@"; }

# Every named library must be an archive with members. A thin archive would refer to the build folder.
libraries() {
  missing='' hollow='' count=0
  rest="$libraries;"
  while [ -n "$rest" ]; do
    name=${rest%%;*} rest=${rest#*;}
    [ -n "$name" ] || continue
    file="$prefix/lib/lib$name.a"
    if [ ! -f "$file" ]; then
      missing="$missing $name"
    elif [ "$(head -c 7 "$file")" != '!<arch>' ] || [ "$(wc -c <"$file")" -lt 128 ]; then
      hollow="$hollow $name"
    fi
    count=$((count + 1))
  done
  detail="$count named${missing:+; missing:$missing}${hollow:+; no archive:$hollow}"
  [ -z "$missing$hollow" ]
}

static() {
  if [ "$DYLIB" = allow ]; then
    detail="not asked for"
    return 0
  fi
  shared=$(find "$prefix/lib" -name 'libLLVM*.so*' -o -name 'libMLIR.so*' | head -n 3 | tr '\n' ' ')
  detail="${shared:-no libLLVM or libMLIR to load}"
  [ -z "$shared" ] && ! grep -qE '^set\(LLVM_LINK_LLVM_DYLIB ON\)' "$prefix/lib/cmake/llvm/LLVMConfig.cmake"
}

prints_record() {
  printf 'class Number<int n> { int answer = !mul(n, 2); }\ndef Twice : Number<21>;\n' >"$work/record.td"
  emulated "$tool" --print-records "$work/record.td" | grep -q 'int answer = 42'
}

llvm_tblgen() {
  tool="$prefix/bin/llvm-tblgen"
  detail="$tool does not run"
  emulated "$tool" --version || return 1
  detail="it does not print a record"
  prints_record || return 1
  detail="prints a record"
}

mlir_tblgen() {
  tool="$prefix/bin/mlir-tblgen"
  detail="$tool does not run"
  emulated "$tool" --version || return 1
  if [ "$PART" = tablegen ] || [ "$PART" = mlir-tblgen ]; then
    # The layer does not have MLIR's own table definitions.
    detail="it does not print a record"
    prints_record || return 1
    detail="prints a record"
    return 0
  fi
  detail="it does not generate a dialect"
  emulated "$tool" -gen-dialect-decls -I "$prefix/include" "$here/dialect.td" -o "$work/dialect.h.inc" || return 1
  emulated "$tool" -gen-op-decls -I "$prefix/include" "$here/dialect.td" -o "$work/ops.h.inc" || return 1
  grep -q 'class ContractDialect' "$work/dialect.h.inc" && grep -q 'class TwiceOp' "$work/ops.h.inc" || return 1
  detail="a dialect and an operation"
}

filecheck() {
  tool="$prefix/bin/FileCheck"
  detail="$tool does not run"
  emulated "$tool" --version || return 1
  printf '// CHECK: first\n// CHECK-NEXT: second\n' >"$work/pattern"
  printf 'first\nsecond\n' >"$work/right"
  printf 'second\nfirst\n' >"$work/wrong"
  detail="it refuses what matches"
  emulated "$tool" "$work/pattern" --input-file "$work/right" || return 1
  detail="it passes what does not match"
  if emulated "$tool" "$work/pattern" --input-file "$work/wrong"; then return 1; fi
  detail="tells a match from none"
}

clang() {
  tool="$prefix/bin/clang++"
  detail="$tool does not run"
  emulated "$tool" --version || return 1
  detail="it does not compile device code to LLVM IR"
  # Without CUDA, clang's driver chooses a PTX version that is too old for sm_90.
  emulated "$tool" --target=nvptx64-nvidia-cuda -march=sm_90 -Xclang -target-feature -Xclang +ptx80 \
    -nostdlibinc -ffreestanding -O1 -S -emit-llvm "$here/device.cpp" -o "$work/device.ll" || return 1
  grep -q 'target triple = "nvptx64' "$work/device.ll" && grep -q '@contract_sum' "$work/device.ll" || return 1
  detail="device code to LLVM IR"
}

# A file contains a folder if its path stands alone or begins a path; `utils/build/` in a comment does not count.
paths() {
  alternatives=$(printf %s "$FORBIDDEN" | sed 's/[][\\.*^$+?(){}|]/\\&/g; s/:/|/g')
  grep -rlaE "(^|[^A-Za-z0-9_./>})-])($alternatives)([^A-Za-z0-9_.-]|\$)" "$prefix" >"$work/named"
  case $? in
    0)
      detail="$(wc -l <"$work/named") files name $FORBIDDEN: $(head -n 5 "$work/named" | tr '\n' ' ')"
      return 1
      ;;
    1) detail="no file names $FORBIDDEN" ;;
    *) return 1 ;;
  esac
}

# symbols.sh prints the missing symbols of each library.
symbols() {
  if sh "$here/symbols.sh" "$prefix" "$SYSTEM" >"$work/wanting"; then
    detail="$(cat "$work/wanting"), all in the layer or in the oldest system's"
    return 0
  fi
  cat "$work/wanting"
  detail="the oldest system has not what is named in $(wc -l <"$work/wanting") libraries or programs:"
  detail="$detail $(head -n 5 "$work/wanting" | tr '\n' ';')"
  return 1
}

# A consumer that compiles without NDEBUG sees other types than the archives have. The CMake package must warn about it.
layouts() {
  find_compiler
  set -- "${CXX:-c++}"
  if [ -n "$CROSS" ]; then set -- "$@" "--target=$(uname_of "$CROSS")-linux-gnu" --sysroot=/sysroot; fi
  nm='nm'
  if command -v llvm-nm >/dev/null; then nm='llvm-nm'; fi
  for mode in -DNDEBUG -UNDEBUG; do
    "$@" -std=c++17 -fno-rtti "$mode" -I "$prefix/include" -c "$here/layouts.cpp" -o "$work/layouts.o" || return 1
    "$nm" -P "$work/layouts.o" | sed -n 's/^layout_\([^ ]*\) [A-Z] [^ ]* *\([^ ]*\)$/\1 \2/p' >"$work/layouts$mode" || return 1
  done
  detail="bytes with NDEBUG, as the archives, and without:"
  while read -r name size; do
    without=$(sed -n "s/^$name //p" "$work/layouts-UNDEBUG")
    detail="$detail $name $((0x$size)) and $((0x$without)),"
  done <"$work/layouts-DNDEBUG"
  detail=${detail%,}
  grep -q . "$work/layouts-DNDEBUG"
}

# CMake's search path begins with another LLVM, which must not be used.
configure() {
  for package in MLIR LLVM LLD; do
    folder="$work/other/lib/cmake/$(echo "$package" | tr '[:upper:]' '[:lower:]')"
    mkdir -p "$folder"
    echo "message(FATAL_ERROR \"another $package of the machine was taken\")" >"$folder/${package}Config.cmake"
    printf 'set(PACKAGE_VERSION 1.0)\nset(PACKAGE_VERSION_COMPATIBLE FALSE)\n' \
      >"$folder/${package}ConfigVersion.cmake"
  done
  CMAKE_PREFIX_PATH="$work/other"
  export CMAKE_PREFIX_PATH
  tree "$here" -DCONTRACT_LIBRARIES="$LIBRARIES" -DCONTRACT_LLD="$LLD" && status=0 || status=1
  cat "$work/tree/CMakeFiles/CMakeError.log" 2>/dev/null
  detail=$(sed -n 's/^-- contract: //p' "$work/configure.log")
  return $status
}

build_use() { cmake --build "$work/tree" -j "$jobs" --target contract-use && detail="compiles and links"; }

# The program must do the same when GNU ld links it.
gnu_ld() {
  if [ -n "$CROSS" ] || ! command -v ld.bfd >/dev/null; then
    detail="not asked for: the base has none for this architecture"
    return 0
  fi
  cmake --build "$work/tree" -j "$jobs" --target contract-use-bfd || return 1
  mkdir -p "$work/made-bfd"
  "$work/tree/contract-use-bfd" "$work/made-bfd" || return 1
  detail="what it links does not make the same files"
  cmp "$work/made/axpy.o" "$work/made-bfd/axpy.o" && cmp "$work/made/axpy.ptx" "$work/made-bfd/axpy.ptx" &&
    detail="links by the archives' indexes"
}

# Each header must compile by itself, so everything that it includes must be in the layer.
headers() {
  find_compiler
  set -- "${CXX:-c++}"
  if [ -n "$CROSS" ]; then set -- "$@" "--target=$(uname_of "$CROSS")-linux-gnu" --sysroot=/sysroot; fi
  for header in llvm/ADT/StringExtras.h llvm/ADT/DenseMap.h llvm/ADT/APFloat.h llvm/Demangle/Demangle.h \
    llvm/Support/CommandLine.h llvm/Support/raw_ostream.h llvm/Support/MemoryBuffer.h llvm/Support/YAMLTraits.h; do
    echo "#include <$header>"
  done >"$work/headers.cpp"
  "$@" -std=c++17 -fno-rtti -fsyntax-only -I "$prefix/include" "$work/headers.cpp" || return 1
  detail="$(find "$prefix/include" -name '*.h' | wc -l) headers"
}

uname_of() {
  case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
    ppc64le) echo powerpc64le ;;
    *) echo "$1" ;;
  esac
}

find_compiler() {
  if [ -z "${CXX:-}" ] && command -v clang >/dev/null && command -v clang++ >/dev/null; then
    CC=clang CXX=clang++
    export CC CXX
  fi
}

# tree FOLDER OPTION...: configure the project in FOLDER for the layer's architecture
tree() {
  find_compiler
  generator='Unix Makefiles'
  if command -v ninja >/dev/null; then generator=Ninja; fi
  folder=$1
  shift
  if [ -n "$CROSS" ]; then set -- "$@" -DCMAKE_TOOLCHAIN_FILE="$here/../cross.cmake" -DTOOLCHAIN_ARCH="$CROSS"; fi
  cmake -G "$generator" -S "$folder" -B "$work/tree" -DCONTRACT_PREFIX="$prefix" ${LINKER:+"-DCONTRACT_LINKER=$LINKER"} "$@"
}

support() {
  detail="it does not configure"
  tree "$here/support" || return 1
  detail="it does not link"
  cmake --build "$work/tree" -j "$jobs" || return 1
  detail="it does not run"
  emulated "$work/tree/contract-support" || return 1
  detail=$(tail -n 1 "$work/support.log")
}

use() {
  mkdir -p "$work/made"
  emulated "$work/tree/contract-use" "$work/made" && detail="MLIR to LLVM IR to code"
}

# bytes FILE OFFSET COUNT: print bytes as decimal numbers
bytes() { od -An -v -tu1 -j "$2" -N "$3" "$1" | tr -s ' ' | sed 's/^ //; s/ $//'; }

# elf FILE TYPE: test that FILE is an AMDGPU ELF (machine 224) of e_type TYPE with the flags of gfx942 (0x4c)
elf() {
  detail="$(basename "$1"): magic $(bytes "$1" 0 4), type $(bytes "$1" 16 2), machine $(bytes "$1" 18 2)"
  detail="$detail, processor $(bytes "$1" 48 1), $(wc -c <"$1") bytes"
  [ "$(bytes "$1" 0 4)" = '127 69 76 70' ] && [ "$(bytes "$1" 16 2)" = "$2 0" ] &&
    [ "$(bytes "$1" 18 2)" = '224 0' ] && [ "$(bytes "$1" 48 1)" = 76 ]
}

amdgpu() { elf "$work/made/axpy.o" 1; }

lld() { elf "$work/made/axpy.co" 3; }

ptx() {
  detail="$(grep -E '^\.target' "$work/made/axpy.ptx")"
  grep -qE '^\.target sm_90([^0-9a-z]|$)' "$work/made/axpy.ptx" && grep -q '\.entry axpy' "$work/made/axpy.ptx"
}

build_link() {
  cmake --build "$work/tree" -j "$jobs" --target contract-link || return 1
  detail="whole archives, $(($(wc -c <"$work/tree/contract-link") / 1000000)) MB"
}

link() {
  emulated "$work/tree/contract-link" || return 1
  detail=$(tail -n 1 "$work/link.log")
}

case $PART in
  tablegen)
    check llvm-tblgen - llvm_tblgen
    check mlir-tblgen llvm-tblgen mlir_tblgen
    check paths - paths
    if [ -n "$SYSTEM" ]; then check symbols - symbols; fi
    ;;
  mlir-tblgen)
    check mlir-tblgen - mlir_tblgen
    check paths - paths
    if [ -n "$SYSTEM" ]; then check symbols - symbols; fi
    ;;
  support)
    check libraries - libraries
    check headers - headers
    check paths - paths
    if [ -n "$SYSTEM" ]; then check symbols - symbols; fi
    check support libraries support
    ;;
  codegen)
    check libraries - libraries
    check static - static
    check paths - paths
    if [ -n "$SYSTEM" ]; then check symbols - symbols; fi
    check support libraries support
    ;;
  *)
    check libraries - libraries
    check static - static
    check mlir-tblgen - mlir_tblgen
    if [ "$FILECHECK" = ON ]; then check FileCheck - filecheck; fi
    if [ "$CLANG" = ON ]; then check clang++ - clang; fi
    check paths - paths
    if [ -n "$SYSTEM" ]; then check symbols - symbols; fi
    check layouts - layouts
    check configure - configure
    check build-use configure build_use
    check use build-use use
    check gnu-ld use gnu_ld
    check amdgpu use amdgpu
    if [ "$LLD" = ON ]; then check lld use lld; fi
    check ptx use ptx
    check build-link configure build_link
    check link build-link link
    ;;
esac
finish
