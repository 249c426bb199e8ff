#!/bin/sh
# Checks the CMake packages of a configured LLVM in a minute, before anything is compiled: they must not contain folders of
# the build, they must have every library that the contract check and its consumer link, and the link lines of the check must
# not name another library. containerfiles/llvm/build.sh runs it:
#
#   LIBRARIES="MLIRIR;..." LLD=ON FORBIDDEN="/build /src/llvm" [CROSS=arm64] rehearse.sh TREE PREFIX
#
# The script installs the packages of the build tree TREE into a folder, with empty files in place of the libraries.
set -eu
tree=$1 prefix=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$tree/toolchain-rehearsal
rm -rf "$work"
for part in cmake-exports mlir-cmake-exports lld-cmake-exports clang-cmake-exports; do
  DESTDIR="$work/root" cmake -DCMAKE_INSTALL_COMPONENT="$part" -P "$tree/cmake_install.cmake" >"$work.log"
done
# shellcheck disable=SC2086  # FORBIDDEN is a list
python3 "$here/../packages.py" "$work/root$prefix" $FORBIDDEN
# shellcheck disable=SC2016  # CMake's variable
find "$work/root$prefix/lib/cmake" -name '*.cmake' -exec sed -n 's/.*"${_IMPORT_PREFIX}\/\([^";]*\)".*/\1/p' {} + |
  sort -u | while read -r file; do
    case $file in
    include*) mkdir -p "$work/root$prefix/$file" ;;
    *)
      mkdir -p "$work/root$prefix/${file%/*}"
      : >"$work/root$prefix/$file"
      ;;
    esac
  done
set --
if [ -n "${CROSS:-}" ]; then set -- -DCMAKE_TOOLCHAIN_FILE="$here/../cross.cmake" -DTOOLCHAIN_ARCH="$CROSS"; fi
cxx=
if command -v clang >/dev/null && command -v clang++ >/dev/null; then cxx=clang++; fi
cmake -G Ninja -S "$here" -B "$work/tree" -DCONTRACT_PREFIX="$work/root$prefix" -DCONTRACT_LIBRARIES="$LIBRARIES" \
  -DCONTRACT_LLD="${LLD:-OFF}" ${cxx:+-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++} "$@" >"$work.log" 2>&1 || {
  tail -n 30 "$work.log" >&2
  echo "toolchain: the contract check would not configure against this LLVM; the reason is above" >&2
  exit 1
}
# An imported library is linked as a file. A plain name in a link line is a library that the packages do not have.
loose=$(grep -o -e ' -l\(LLVM\|MLIR\|lld\)[A-Za-z0-9]*' "$work/tree/build.ninja" | sort -u | tr -d '\n' || :)
if [ -n "$loose" ]; then
  echo "toolchain: the contract check would link what this layer does not hold:$loose" >&2
  exit 1
fi
# The program of the contract check uses C++ functions that MLIR may rename. Check its syntax as soon as the generated headers
# exist, because otherwise a missing function would be found hours later.
source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$tree/CMakeCache.txt" 2>/dev/null || :)
# MLIR's targets for generated headers end with IncGen. `mlir-headers` does not depend on all of them in every release.
headers=$(ninja -C "$tree" -t targets all 2>/dev/null | sed -n 's/^\([A-Za-z0-9_]*IncGen\|mlir-headers\): phony$/\1/p' | grep -v Test || :)
if [ -n "$headers" ] && [ -d "$source/../mlir/include" ]; then
  for target in intrinsics_gen omp_gen acc_gen target_parser_gen vt_gen; do
    if ninja -C "$tree" -t query "$target" >/dev/null 2>&1; then headers="$headers $target"; fi
  done
  # shellcheck disable=SC2086  # targets are words
  ninja -C "$tree" ${JOBS:+-j"$JOBS"} $headers
  lld=
  if [ "${LLD:-OFF}" = ON ]; then lld=-DCONTRACT_LLD; fi
  "${cxx:-c++}" -std=c++17 -fno-rtti -fsyntax-only -w -D__STDC_CONSTANT_MACROS -D__STDC_FORMAT_MACROS -D__STDC_LIMIT_MACROS \
    $lld -I"$source/include" -I"$source/../mlir/include" -I"$source/../lld/include" -I"$tree/include" \
    -I"$tree/tools/mlir/include" "$here/use.cpp" >"$work.log" 2>&1 || {
    # No target makes this generated header, so the contract check decides later whether it is needed.
    if grep -q -e "'[^']*\.inc' file not found" "$work.log"; then
      grep -m 1 -e error: "$work.log" >&2
      echo "toolchain: the contract check's program is not checked before the build, because that header is not made yet" >&2
      rm -rf "$work" "$work.log"
      exit 0
    fi
    grep -m 20 -e error: "$work.log" >&2 || tail -n 20 "$work.log" >&2
    echo "toolchain: the contract check's program does not compile against this MLIR; the layer itself may be right" >&2
    echo "toolchain: llvm-config/contract/use.cpp has the names that it knows" >&2
    exit 1
  }
fi
rm -rf "$work" "$work.log"
