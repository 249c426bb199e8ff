#!/bin/sh
# Builds Triton's wheels against the old system in /sysroot, on a portable LLVM layer. Called by the Containerfile beside
# it; comes in by environment:
#   PREFIX     install prefix of the LLVM layer
#   ARCH       amd64, arm64; what is not this machine is cross-compiled, and run by /emulator/emulator
#   PYTHONS    versions as `3.11 3.13`: roots below /pythons
#   DROP       files of the source that must not be built in, with `;` between
#   REPLACE    `file=glob` with `;` between: the file of the source gives way to the base's, named by an absolute glob
#   CMAKE_EXTRA  further options of CMake
#   BINDINGS   pybind11 or nanobind: what the wheel binds C++ to Python by
#   STABLE_ABI ON makes one wheel for Python 3.12 and all later ones
#   LIT        ON runs upstream's own lit tests afterwards; what fails there is recorded and fails nothing
#   JOBS, LINK_JOBS
# Reads /src/triton, /wheels, /sysroot, /pythons, /codegen and /recipe, keeps its tree in /build, writes /out: wheel/,
# auditwheel.txt, lit-VERSION.xml, and ninja-VERSION.log with the steps of each Python. In /codegen, where Triton makes code
# for GPUs by LLVMs of their own: tree/ with those libraries at their places in Triton's tree, and `variables` with NAME=PATH
# for each, below that tree.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/build/home SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
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

setup= # the folder of setup.py, which prepare_setup finds
# shellcheck disable=SC1091  # where the container has it
. /recipe/containerfiles/triton/setup.sh
echo "@step configure"
# Without a digest the inputs of the tree are unknown.
if [ -z "${INPUT_DIGEST:-}" ] || [ "$(cat /build/toolchain-stamp 2>/dev/null)" != "$INPUT_DIGEST" ]; then
  rm -f /build/toolchain-stamp
  rm -rf /build/src /build/cmake /build/python
  lay_source
  if [ -d /codegen/tree ]; then cp -a /codegen/tree/. /build/src/; fi
  printf '%s' "${INPUT_DIGEST:-}" >/build/toolchain-stamp
fi

python3 -m venv --clear /build/venv
/build/venv/bin/python -m pip install --quiet setuptools wheel "${BINDINGS:-pybind11}" auditwheel lit

# The layer's programs are the other machine's, and the build runs this one.
if [ -n "$cross" ] && [ -e "$PREFIX/bin/mlir-tblgen" ]; then
  mv "$PREFIX/bin/mlir-tblgen" "$PREFIX/bin/mlir-tblgen.bin"
  printf '#!/bin/sh\nexec %s -L /sysroot %s "$@"\n' "$EMULATOR" "$PREFIX/bin/mlir-tblgen.bin" >"$PREFIX/bin/mlir-tblgen"
  chmod 0755 "$PREFIX/bin/mlir-tblgen"
fi
# Triton names zlib when it links and uses nothing of it: an LLVM layer without zlib needs none. With no member in the
# archive the wheel does not ask for libz either; importing it shows whether something was missing.
mkdir -p /build/empty
rm -f /build/empty/libz.a
ar rcs /build/empty/libz.a

export LLVM_SYSPATH="$PREFIX"
export TRITON_BUILD_WITH_CCACHE=ON TRITON_PARALLEL_LINK_JOBS="${LINK_JOBS:-1}" MAX_JOBS="${JOBS:-$(nproc)}"
export TRITON_BUILD_WITH_CLANG_LLD=1 TRITON_BUILD_DIR=/build/cmake
# Mirrors of what upstream would download, and caches of it, have no say.
unset OAIARTIFACTS_BASE_URL TRITON_CACHE_DEPENDENCY_DOWNLOADS TRITON_LLVM_SYSTEM_SUFFIX TRITON_STABLE_ABI
prepare_setup /build/venv/bin/python
# Triton takes the libraries that are named so, and neither builds nor fetches any.
if [ -f /codegen/variables ]; then
  while IFS='=' read -r name file; do
    if [ ! -f "/build/src/$file" ]; then
      echo "toolchain: /codegen has no $file, which its variables name" >&2
      exit 43
    fi
    export "$name=/build/src/$file"
  done </codegen/variables
fi
# What this build wanted from elsewhere, a line each.
export TOOLCHAIN_REACHED=/build/reached PYTHONPATH=/recipe/containerfiles/triton-portable/offline
refuse_reaching() {
  if [ -s "$TOOLCHAIN_REACHED" ]; then
    echo "toolchain: Triton's build would download: $(sort -u "$TOOLCHAIN_REACHED" | head -n 5 | tr '\n' ' ')" >&2
    exit 48
  fi
}
# Deprecations come from LLVM's headers where LLVM is not exactly the pin; -Werror stays for everything else.
flags="-ffile-prefix-map=/build/src=. -ffile-prefix-map=/build=. -ffile-prefix-map=/sysroot= \
  -Wno-error=deprecated-declarations"
link="-fuse-ld=lld -L/build/empty -Wl,-s -Wl,--gc-sections -Wl,--build-id=sha1"
# Triton's own build type has assertions and debug information, and other layouts than the layer; the last -D wins.
# The interpreter is the wheel's own, so that what CMake asks it is not answered by the base's. Old trees take their flags
# of C++ from those of C, and Python's headers from PYTHON_INCLUDE_DIRS.
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
  # Every version's headers are in one place in turn. The commands stay the same, so ninja compiles again what reads them,
  # and nothing else; the copy's files are new, and ninja goes by that.
  if [ "$(cat /build/python/version 2>/dev/null)" != "$version" ]; then
    rm -rf /build/python
    mkdir -p /build/python/bin
    cp -r "$include/python$version" /build/python/include
    # Debian's own file includes the one of the machine that compiles.
    if [ -e "$include/$triple/python$version/pyconfig.h" ]; then
      cp --remove-destination "$include/$triple/python$version/pyconfig.h" /build/python/include/pyconfig.h
    fi
    printf '#!/bin/sh\nexec sh /recipe/containerfiles/triton-portable/python.sh %s "$@"\n' "$version" \
      >/build/python/bin/python3
    chmod 0755 /build/python/bin/python3
    printf '%s' "$version" >/build/python/version
    # What CMake learned of the last interpreter.
    rm -rf /build/cmake/CMakeCache.txt /build/cmake/CMakeFiles/[0-9]*
  fi
  abi=cp$(echo "$version" | tr -d .)
  python_tag=$abi
  if [ "${STABLE_ABI:-}" = ON ] && [ "${version#*.}" -ge 12 ]; then
    python_tag=cp312 abi=abi3
    # One is for all of them.
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
  # An LLVM that the base has for itself must not have been found in place of the layer's.
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
  # The platform tag is what auditwheel finds in the symbols.
  /build/venv/bin/python -m auditwheel show "$wheel" >"/build/auditwheel-$version.txt"
  tee -a /out/auditwheel.txt <"/build/auditwheel-$version.txt"
  tag=$(sed -n 's/.*platform tag: "\([a-z0-9_]*\)".*/\1/p' "/build/auditwheel-$version.txt" | tail -n 1)
  if [ -z "$tag" ]; then
    echo "toolchain: auditwheel names no platform for $wheel" >&2
    exit 45
  fi
  # The base's Python ran setup.py and put its own tag there.
  named=$(/build/venv/bin/python -m wheel tags --remove --python-tag "$python_tag" --abi-tag "$abi" --platform-tag "$tag" "$wheel" |
    tail -n 1)
  cp "/build/dist-$version/$named" /out/wheel/
  # The steps of this Python alone: what the log did not have before.
  grep -vxFf /build/ninja-before "$TRITON_BUILD_DIR/.ninja_log" >"/out/ninja-$version.log" || :
  if [ "${LIT:-ON}" = ON ] && [ -z "$cross" ] && [ ! -e /out/lit-done ]; then
    : >/out/lit-done
    echo "@step lit"
    # A test that never ends (off its LLVM pin, Triton has some) is stopped after so many seconds of CPU time, and fails.
    (
      # shellcheck disable=SC3045  # not POSIX, but dash, bash and busybox all have it
      ulimit -t "${LIT_SECONDS:-120}"
      exec /build/venv/bin/lit --quiet -j"$MAX_JOBS" --xunit-xml-output "/out/lit-$version.xml" "$TRITON_BUILD_DIR/test"
    ) || :
  fi
done
rm -f /out/lit-done
echo "@step done"
