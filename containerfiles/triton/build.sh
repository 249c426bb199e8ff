#!/bin/sh
# Builds Triton's wheel on the base and the LLVM layer. The Containerfile in this folder runs it. It reads these variables:
#   PREFIX     install prefix of the LLVM layer
#   PYTHONS    versions as 3.13, separated by spaces; empty for the base's own
#   DROP       files of the source to leave out, separated by `;`
#   REPLACE    `file=glob`, separated by `;`: a file of the base replaces the file of the source
#   CXXFLAGS   further flags of the C++ compiler
#   LIT        ON runs upstream's lit tests afterwards; failures are recorded and do not fail the build
#   JOBS, LINK_JOBS
# It reads /src/triton, /wheels and /recipe, keeps the build tree in /build, and writes /out: wheel/, auditwheel.txt,
# lit-*.xml, ninja-*.log, and `python` with the version of the base's Python.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/build/home SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
# The compiler asks for large pages, which saves a twelfth of its CPU time. A glibc before 2.35 ignores this.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
export NINJA_STATUS='@ninja %f/%t %r %e@ '
export CCACHE_DIR=/ccache CCACHE_CONFIGPATH=/recipe/containerfiles/ccache.conf
mkdir -p "$HOME"

setup= # prepare_setup sets it to the folder of setup.py
# shellcheck disable=SC1091  # the path is that of the container
. /recipe/containerfiles/triton/setup.sh
echo "@step configure"
# Without a digest the inputs of an old tree are unknown, so it is not used.
if [ -z "${INPUT_DIGEST:-}" ] || [ "$(cat /build/toolchain-stamp 2>/dev/null)" != "$INPUT_DIGEST" ]; then
  rm -f /build/toolchain-stamp
  rm -rf /build/src /build/cmake-*
  lay_source
  printf '%s' "${INPUT_DIGEST:-}" >/build/toolchain-stamp
fi
if command -v clang >/dev/null && command -v ld.lld >/dev/null; then
  export TRITON_BUILD_WITH_CLANG_LLD=1
  linker='-fuse-ld=lld '
else
  linker=
fi

export LLVM_SYSPATH="$PREFIX"
export TRITON_BUILD_WITH_CCACHE=ON TRITON_PARALLEL_LINK_JOBS="${LINK_JOBS:-1}" MAX_JOBS="${JOBS:-$(nproc)}"
# LLVM's headers may have deprecations if LLVM is not exactly the pin. -Werror remains for all other warnings.
flags="-ffile-prefix-map=/build/src=. -ffile-prefix-map=/build=. -Wno-error=deprecated-declarations ${CXXFLAGS:-}"
link="${linker}-Wl,-s -Wl,--gc-sections -Wl,--build-id=sha1"

rm -rf /out
mkdir -p /out/wheel
own=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' || :)
echo "$own" >/out/python
for version in ${PYTHONS:-$own}; do
  if ! command -v "python$version" >/dev/null; then
    echo "toolchain: the base has no python$version" >&2
    exit 42
  fi
done
case " ${PYTHONS:-$own} " in
*" $own "*) ;;
*)
  echo "toolchain: the base runs Python $own, which --python ($PYTHONS) leaves out; its image could not run the wheel" >&2
  exit 46
  ;;
esac
for version in ${PYTHONS:-$own}; do
  venv=/build/venv-$version
  "python$version" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet setuptools wheel pybind11 auditwheel lit
  export TRITON_BUILD_DIR="/build/cmake-$version"
  prepare_setup "$venv/bin/python"
  # Triton's default build type has assertions and debug information; the last -D wins. Old trees use the C flags for C++.
  export TRITON_APPEND_CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release '-DCMAKE_CXX_FLAGS=$flags' '-DCMAKE_C_FLAGS=$flags' \
    -DTRITON_BUILD_UT=OFF \
    -DMLIR_DIR=$PREFIX/lib/cmake/mlir -DLLVM_DIR=$PREFIX/lib/cmake/llvm -DLLD_DIR=$PREFIX/lib/cmake/lld \
    '-DCMAKE_SHARED_LINKER_FLAGS=$link' '-DCMAKE_EXE_LINKER_FLAGS=$link' '-DCMAKE_MODULE_LINKER_FLAGS=$link'"
  rm -rf "/build/dist-$version"
  echo "@step compile"
  (
    cd "$setup"
    PATH="/build/tools:$venv/bin:$PATH" "$venv/bin/python" setup.py bdist_wheel --dist-dir "/build/dist-$version"
  )
  # CMake must have found the layer's LLVM and not one of the base.
  for package in LLVM MLIR LLD; do
    where=$(sed -n "s/^${package}_DIR:[A-Z]*=//p" "$TRITON_BUILD_DIR/CMakeCache.txt")
    case "$where" in
    "$PREFIX"/* | '') ;;
    *)
      echo "toolchain: Triton was configured with the $package in $where, not the layer's" >&2
      exit 44
      ;;
    esac
  done
  wheel=$(echo "/build/dist-$version"/*.whl)
  # auditwheel derives the platform tag from the versions of the symbols, which the base's C library limits.
  "$venv/bin/python" -m auditwheel show "$wheel" >"/build/auditwheel-$version.txt"
  tee -a /out/auditwheel.txt <"/build/auditwheel-$version.txt"
  tag=$(sed -n 's/.*platform tag: "\([a-z0-9_]*\)".*/\1/p' "/build/auditwheel-$version.txt" | tail -n 1)
  if [ -z "$tag" ]; then
    echo "toolchain: auditwheel names no platform for $wheel" >&2
    exit 45
  fi
  wheel=/build/dist-$version/$("$venv/bin/python" -m wheel tags --remove --platform-tag "$tag" "$wheel" | tail -n 1)
  cp "$wheel" /out/wheel/
  cp "$TRITON_BUILD_DIR/.ninja_log" "/out/ninja-$version.log"
  if [ "${LIT:-ON}" = ON ]; then
    echo "@step lit"
    # Limit the CPU time of a test, because some tests do not end on an LLVM that is not the pin.
    (
      # shellcheck disable=SC3045  # not POSIX, but dash, bash and busybox all have it
      ulimit -t "${LIT_SECONDS:-120}"
      exec "$venv/bin/lit" --quiet -j"$MAX_JOBS" --xunit-xml-output "/out/lit-$version.xml" "$TRITON_BUILD_DIR/test"
    ) || :
  fi
done
echo "@step done"
