#!/bin/sh
# Builds Triton's wheels against the old system in /sysroot, on a portable LLVM layer. The Containerfile in this folder runs
# it. It reads these environment variables:
#   PREFIX     install prefix of the LLVM layer
#   ARCH       amd64 or arm64; wheels for another machine than this one are cross-compiled and run by /emulator/emulator
#   PYTHONS    versions as `3.11 3.13`: the roots below /pythons
#   DROP       files of the source to leave out, separated by `;`
#   REPLACE    `file=glob`, separated by `;`: a file of the base replaces the file of the source
#   CMAKE_EXTRA  further options of CMake
#   BINDINGS   pybind11 or nanobind, by which the wheel binds C++ to Python
#   STABLE_ABI ON makes one wheel for Python 3.12 and all later ones
#   LIT        ON runs upstream's lit tests afterwards; failures are recorded and do not fail the build
#   JOBS, LINK_JOBS
# It reads /src/triton, /wheels, /sysroot, /pythons, /codegen and /recipe, and keeps the build tree in /build. It writes /out:
# wheel/, auditwheel.txt, lit-VERSION.xml, and ninja-VERSION.log with the steps of each Python. For a Triton that generates
# code by separate LLVMs, /codegen has tree/ with these libraries at their paths in Triton's tree, and `variables` with
# NAME=PATH for each, relative to that tree.
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

case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac
case ${ARCH:-amd64} in
amd64) triple=x86_64-linux-gnu ;;
arm64) triple=aarch64-linux-gnu ;;
*)
  echo "toolchain: no wheel is built for $ARCH" >&2
  exit 42
  ;;
esac
if [ ! -e /sysroot/usr/include/stdlib.h ] || ! command -v clang++ >/dev/null || ! command -v ld.lld >/dev/null; then
  echo "toolchain: a portable Triton is built with clang and lld against an old system in /sysroot" >&2
  exit 43
fi
cross=
if [ "${ARCH:-amd64}" != "$machine" ]; then
  cross=$ARCH
  export EMULATOR=/emulator/emulator
fi

setup= # prepare_setup sets it to the folder of setup.py
# shellcheck disable=SC1091  # the path is that of the container
. /recipe/containerfiles/triton/setup.sh
echo "@step configure"
# Without a digest the inputs of an old tree are unknown, so it is not used.
if [ -z "${INPUT_DIGEST:-}" ] || [ "$(cat /build/toolchain-stamp 2>/dev/null)" != "$INPUT_DIGEST" ]; then
  rm -f /build/toolchain-stamp
  rm -rf /build/src /build/cmake /build/python
  lay_source
  if [ -d /codegen/tree ]; then cp -a /codegen/tree/. /build/src/; fi
  printf '%s' "${INPUT_DIGEST:-}" >/build/toolchain-stamp
fi

python3 -m venv --clear /build/venv
/build/venv/bin/python -m pip install --quiet setuptools wheel "${BINDINGS:-pybind11}" auditwheel lit

# The build runs mlir-tblgen, which is a program of the other machine.
if [ -n "$cross" ] && [ -e "$PREFIX/bin/mlir-tblgen" ]; then
  mv "$PREFIX/bin/mlir-tblgen" "$PREFIX/bin/mlir-tblgen.bin"
  printf '#!/bin/sh\nexec %s -L /sysroot %s "$@"\n' "$EMULATOR" "$PREFIX/bin/mlir-tblgen.bin" >"$PREFIX/bin/mlir-tblgen"
  chmod 0755 "$PREFIX/bin/mlir-tblgen"
fi
# Triton links zlib and does not use it, and the LLVM layer does not need it. An empty archive satisfies the linker, and the
# wheel does not need libz.so. Importing the wheel shows if a symbol is missing.
mkdir -p /build/empty
rm -f /build/empty/libz.a
ar rcs /build/empty/libz.a

export LLVM_SYSPATH="$PREFIX"
export TRITON_BUILD_WITH_CCACHE=ON TRITON_PARALLEL_LINK_JOBS="${LINK_JOBS:-1}" MAX_JOBS="${JOBS:-$(nproc)}"
export TRITON_BUILD_WITH_CLANG_LLD=1 TRITON_BUILD_DIR=/build/cmake
# Variables for upstream's download mirrors and caches must not change the build.
unset OAIARTIFACTS_BASE_URL TRITON_CACHE_DEPENDENCY_DOWNLOADS TRITON_LLVM_SYSTEM_SUFFIX TRITON_STABLE_ABI
prepare_setup /build/venv/bin/python
# Triton uses the libraries in these variables and neither builds nor downloads them.
if [ -f /codegen/variables ]; then
  while IFS='=' read -r name file; do
    if [ ! -f "/build/src/$file" ]; then
      echo "toolchain: /codegen has no $file, which its variables name" >&2
      exit 43
    fi
    export "$name=/build/src/$file"
  done </codegen/variables
fi
# The file lists each attempt to download, a line for each.
export TOOLCHAIN_REACHED=/build/reached PYTHONPATH=/recipe/containerfiles/triton-portable/offline
refuse_reaching() {
  if [ -s "$TOOLCHAIN_REACHED" ]; then
    echo "toolchain: Triton's build would download: $(sort -u "$TOOLCHAIN_REACHED" | head -n 5 | tr '\n' ' ')" >&2
    exit 48
  fi
}
# LLVM's headers may have deprecations if LLVM is not exactly the pin. -Werror remains for all other warnings.
flags="-ffile-prefix-map=/build/src=. -ffile-prefix-map=/build=. -ffile-prefix-map=/sysroot= \
  -Wno-error=deprecated-declarations"
link="-fuse-ld=lld -L/build/empty -Wl,-s -Wl,--gc-sections -Wl,--build-id=sha1"
# Triton's default build type has assertions and debug information, and other type layouts than the layer; the last -D wins.
# CMake asks the Python of the wheel and not the base's. Old trees use the C flags for C++, and find Python's headers by
# PYTHON_INCLUDE_DIRS.
export TRITON_APPEND_CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release '-DCMAKE_CXX_FLAGS=$flags' '-DCMAKE_C_FLAGS=$flags' \
  -DTRITON_BUILD_UT=OFF -DPYTHON_INCLUDE_DIRS=/build/python/include \
  -DCMAKE_TOOLCHAIN_FILE=/recipe/containerfiles/triton-portable/toolchain.cmake ${cross:+-DTOOLCHAIN_ARCH=$cross} \
  -DPython3_EXECUTABLE=/build/python/bin/python3 -DPython3_INCLUDE_DIR=/build/python/include \
  -DMLIR_DIR=$PREFIX/lib/cmake/mlir -DLLVM_DIR=$PREFIX/lib/cmake/llvm -DLLD_DIR=$PREFIX/lib/cmake/lld ${CMAKE_EXTRA:-} \
  '-DCMAKE_SHARED_LINKER_FLAGS=$link' '-DCMAKE_EXE_LINKER_FLAGS=$link' '-DCMAKE_MODULE_LINKER_FLAGS=$link'"

rm -rf /out
mkdir -p /out/wheel /build/cmake
: >"$TOOLCHAIN_REACHED"
for version in $PYTHONS; do
  include=/pythons/$version/usr/include
  if [ ! -e "$include/python$version/Python.h" ]; then
    echo "toolchain: /pythons has no headers of Python $version" >&2
    exit 42
  fi
  # The headers of each version are copied to the same folder in turn. The commands stay the same and the copies have new
  # time stamps, so ninja compiles only the sources that include these headers again.
  if [ "$(cat /build/python/version 2>/dev/null)" != "$version" ]; then
    rm -rf /build/python
    mkdir -p /build/python/bin
    cp -r "$include/python$version" /build/python/include
    # Debian's pyconfig.h includes the file of the machine that compiles.
    if [ -e "$include/$triple/python$version/pyconfig.h" ]; then
      cp --remove-destination "$include/$triple/python$version/pyconfig.h" /build/python/include/pyconfig.h
    fi
    printf '#!/bin/sh\nexec sh /recipe/containerfiles/triton-portable/python.sh %s "$@"\n' "$version" \
      >/build/python/bin/python3
    chmod 0755 /build/python/bin/python3
    printf '%s' "$version" >/build/python/version
    # CMake's cache describes the previous interpreter.
    rm -rf /build/cmake/CMakeCache.txt /build/cmake/CMakeFiles/[0-9]*
  fi
  abi=cp$(echo "$version" | tr -d .)
  python_tag=$abi
  if [ "${STABLE_ABI:-}" = ON ] && [ "${version#*.}" -ge 12 ]; then
    python_tag=cp312 abi=abi3
    # One wheel serves all versions.
    if ls /out/wheel/*-cp312-abi3-*.whl >/dev/null 2>&1; then continue; fi
    export TRITON_STABLE_ABI=ON
  fi
  rm -rf "/build/dist-$version"
  echo "@step compile"
  cp "$TRITON_BUILD_DIR/.ninja_log" /build/ninja-before 2>/dev/null || : >/build/ninja-before
  (
    cd "$setup" &&
      PATH="/build/tools:/build/venv/bin:$PATH" /build/venv/bin/python setup.py bdist_wheel \
        --dist-dir "/build/dist-$version" --plat-name "linux_${triple%%-*}"
  ) || {
    status=$?
    refuse_reaching
    exit $status
  }
  refuse_reaching
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
  # auditwheel derives the platform tag from the versions of the symbols.
  /build/venv/bin/python -m auditwheel show "$wheel" >"/build/auditwheel-$version.txt"
  tee -a /out/auditwheel.txt <"/build/auditwheel-$version.txt"
  tag=$(sed -n 's/.*platform tag: "\([a-z0-9_]*\)".*/\1/p' "/build/auditwheel-$version.txt" | tail -n 1)
  if [ -z "$tag" ]; then
    echo "toolchain: auditwheel names no platform for $wheel" >&2
    exit 45
  fi
  # Replace the tag of the base's Python, which ran setup.py.
  named=$(/build/venv/bin/python -m wheel tags --remove --python-tag "$python_tag" --abi-tag "$abi" --platform-tag "$tag" "$wheel" |
    tail -n 1)
  cp "/build/dist-$version/$named" /out/wheel/
  # Keep only the steps of this Python, which the log did not have before.
  grep -vxFf /build/ninja-before "$TRITON_BUILD_DIR/.ninja_log" >"/out/ninja-$version.log" || :
  if [ "${LIT:-ON}" = ON ] && [ -z "$cross" ] && [ ! -e /out/lit-done ]; then
    : >/out/lit-done
    echo "@step lit"
    # Limit the CPU time of a test, because some tests do not end on an LLVM that is not the pin.
    (
      # shellcheck disable=SC3045  # not POSIX, but dash, bash and busybox all have it
      ulimit -t "${LIT_SECONDS:-120}"
      exec /build/venv/bin/lit --quiet -j"$MAX_JOBS" --xunit-xml-output "/out/lit-$version.xml" "$TRITON_BUILD_DIR/test"
    ) || :
  fi
done
rm -f /out/lit-done
echo "@step done"
