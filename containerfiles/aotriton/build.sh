#!/bin/sh
# Builds AOTriton's library in NOIMAGE mode and has upstream's generator plan the kernels. Called by the Containerfile
# beside it; comes in by environment:
#   PREFIX           install prefix of the library
#   GPUS             as gfx942, with spaces between
#   SHA1, TREE_SHA1  what the library says it was made of, 40 hex digits each
#   DROP             files of the source that must not be built in, with `;` between
#   ROCM             `6=hip6 7=hip6`: a library for each ROCm, against the system in /sysroot and the headers and libraries
#                    to link with in /hip; empty for one library against the base and its HIP
#   WORDS            GPUS by the words of a release that has its own (before 0.10)
#   INSIDE           whether the library holds its kernels (before 0.8)
#   OBJECTS          whether /objects holds those kernels; the library is built with them, and without them there is only a plan
#   JOBS
# Reads /src/aotriton, what /database holds in its place, and /wheels, keeps its tree in /build, writes /out:
#   prefix/  the installed library, below PREFIX; with ROCM below PREFIX/rocm6 and so on, and CMake's choice of one
#   plan/    the generator's Bare.* files and manifests, and the tuning databases; paths in them begin with /build/plan
#   python/  the generator and packers with all they import
#   hip-version
#   redirected.json  choices of aiter's kernels in upstream's tables that lead to Triton's now; see without_aiter.py
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/build/home SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
export NINJA_STATUS='@ninja %f/%t %r %e@ '
export CCACHE_DIR=/ccache CCACHE_CONFIGPATH=/recipe/containerfiles/ccache.conf
# Where the distribution has HIP; upstream looks into /opt/rocm otherwise.
export ROCM_PATH="${ROCM_PATH:-/usr}"
export AOTRITON_CI_SUPPLIED_SHA1="$SHA1" AOTRITON_GIT_TREESHA1="${TREE_SHA1:-$SHA1}"
mkdir -p "$HOME"

# configure FOLDER PREFIX LINKER-FLAGS FURTHER-OPTIONS
configure() {
  folder=$1 prefix=$2 linker=$3
  shift 3
  targets=$(echo "$GPUS" | tr ' ' ';') words=$(echo "${WORDS:-}" | tr ' ' ';')
  flags='-ffile-prefix-map=/build/src=. -ffile-prefix-map=/build=.'
  # v3src/packed_kernel.cc of 0.10 narrows an initializer, which gcc only warns of. 0.8 does not name libdl, which glibc had
  # apart before 2.34.
  cmake -G Ninja -S "$top" -B "$folder" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags -Wno-c++11-narrowing" \
    -DCMAKE_SHARED_LINKER_FLAGS="-fuse-ld=lld -Wl,--build-id=sha1${linker:+ $linker}" \
    -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DCMAKE_PROJECT_INCLUDE=/recipe/containerfiles/aotriton/precompiled.cmake \
    -DCMAKE_PCH_INSTANTIATE_TEMPLATES=OFF \
    -DAOTRITON_NOIMAGE_MODE=ON -DAOTRITON_NO_PYTHON=ON -DAOTRITON_TARGET_ARCH="$targets" ${words:+"-DTARGET_GPUS=$words"} \
    "-DCMAKE_CXX_STANDARD_LIBRARIES=-Wl,--as-needed -ldl" "$@"
}

# relocatable FOLDER PREFIX: let the CMake package below FOLDER find its files from its own place. AOTriton installs by
# absolute paths, so CMake writes PREFIX into it.
relocatable() {
  find "$1" -name 'aotriton-targets*.cmake' -exec sed -i \
    -e "s|set(_IMPORT_PREFIX \"$2\")|get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)|" \
    -e "s|$2/|\${_IMPORT_PREFIX}/|g" '{}' +
}

# Has what is compiled and linked next see one ROCm: `6=hip6`.
point() { ln -sfn "/hip/rocm${1%%=*}" "/build/hip-${1#*=}"; }

# configure for all ROCms with the headers of `6=hip6`, or without an argument for the base's.
configure_for() {
  if [ -z "${1:-}" ]; then
    configure /build/runtime "$PREFIX" ""
    return
  fi
  headers=${1#*=}
  point "$1"
  # Of several that share their headers the first one gives the prefix.
  configure "/build/runtime-$headers" "$PREFIX/rocm${1%%=*}" "-Wl,-z,defs" "-Dhip_DIR=/build/hip-$headers/lib/cmake/hip" \
    -DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/portable.cmake
}

configure_all() {
  if [ -z "${ROCM:-}" ]; then configure_for; fi
  for pair in ${ROCM:-}; do
    if [ ! -d "/build/runtime-${pair#*=}" ]; then configure_for "$pair"; fi
  done
}

top=/build/src
runtime=/build/runtime
if [ -n "${ROCM:-}" ]; then
  if [ ! -e /sysroot/usr/include/stdlib.h ] || ! command -v ld.lld >/dev/null; then
    echo "toolchain: a library for several ROCms is built with clang and lld against an old system in /sysroot" >&2
    exit 43
  fi
  for pair in $ROCM; do
    if [ ! -e "/hip/rocm${pair%%=*}/lib/libamdhip64.so" ]; then
      echo "toolchain: /hip has no library to link with for ROCm ${pair%%=*}" >&2
      exit 43
    fi
  done
  first=${ROCM%% *}
  runtime=/build/runtime-${first#*=}
  export PKG_CONFIG_LIBDIR=/hip/liblzma/lib/pkgconfig
fi

echo "@step configure"
# Without a digest the inputs of the tree are unknown.
if [ -z "${INPUT_DIGEST:-}" ] || [ "$(cat /build/toolchain-stamp 2>/dev/null)" != "$INPUT_DIGEST" ]; then
  rm -f /build/toolchain-stamp /build/planned
  rm -rf /build/src /build/runtime /build/runtime-* /build/plan
  # Upstream's build installs its generator from the source folder, which writes there.
  cp -a /src/aotriton /build/src
  cp -a /database/. /build/src/
  (
    IFS=';'
    for file in ${DROP:-}; do rm -f "/build/src/$file"; done
  )
  # From 0.9 to 0.11 the version comes in by a script for GNU's linker, which puts a section behind itself; lld does not.
  for script in /build/src/v[23]python/ld_script.py; do
    if [ -f "$script" ]; then sed -i 's/INSERT AFTER \.comment;/INSERT AFTER .dynamic;/' "$script"; fi
  done
  python3 /recipe/containerfiles/aotriton/without_aiter.py /build/src /build/redirected.json
  if [ -n "${ROCM:-}" ]; then
    python3 /recipe/containerfiles/aotriton/old_libstdcxx.py /build/src
  fi
  # Before 0.10 the library asks git for its commit.
  if [ -n "${WORDS:-}" ]; then
    mkdir -p /build/tools
    printf '#!/bin/sh\necho %s\n' "$SHA1" >/build/tools/git
    chmod 0755 /build/tools/git
  fi
  if [ -z "${INSIDE:-}" ]; then
    PATH="/build/tools:$PATH" configure_all
  else
    python3 -m venv /build/venv
    /build/venv/bin/python -m pip install --quiet numpy
  fi
  printf '%s' "${INPUT_DIGEST:-}" >/build/toolchain-stamp
fi

echo "@step plan"
venv=$runtime/venv
if [ -n "${INSIDE:-}" ]; then venv=/build/venv; fi
# Since 0.13 the generator is installed beside what it imports; before, it is run out of its tree.
package=aotriton root='--root_dir /build/src'
if [ ! -d /build/src/modules ]; then package=v3python root=; fi
if [ -n "${WORDS:-}" ]; then package=v2python; fi
# The generator before 0.10, one of its modules, and what it says nothing useful in.
v2() {
  (
    cd /build/src
    # shellcheck disable=SC2086  # one word a GPU
    VIRTUAL_ENV=$venv AOTRITON_ENABLE_FP32=1 "$venv/bin/python" -m "v2python.$1" --target_gpus $WORDS --build_dir /build/plan $2 \
      >/build/v2.log 2>&1 || { tail -n 20 /build/v2.log >&2; exit 1; }
  )
}
# The generator appends to its files piece by piece: that they are there does not say that they are whole.
if [ ! -f /build/planned ] && [ -n "${WORDS:-}" ]; then
  rm -rf /build/plan
  mkdir -p /build/plan
  clusters=
  if [ -z "${INSIDE:-}" ]; then clusters=--generate_cluster_info; fi
  v2 generate_compile "--bare_mode $clusters"
  sync -f /build/plan
  touch /build/planned
fi
if [ ! -f /build/planned ]; then
  rm -rf /build/plan /build/plan.partial
  mkdir -p /build/plan.partial
  # The NOIMAGE configuration has composed the tuning databases; the signature needs them beside the plan.
  # Before 0.11.1 they are files, 0.13 has one folder for all operators, later ones a folder for each family.
  for database in "$runtime"/v3src/*_database.sqlite3 "$runtime"/v3src/database "$runtime"/v3src/*/database; do
    if [ ! -e "$database" ]; then continue; fi
    place=/build/plan.partial/$(dirname "${database#"$runtime"/v3src/}")
    mkdir -p "$place"
    cp -a "$database" "$place/"
  done
  mv /build/plan.partial /build/plan
  rm -f /build/plan/Bare.*
  (
    cd /build/src
    # shellcheck disable=SC2086  # one word a GPU
    gpus=$(VIRTUAL_ENV=$venv "$venv/bin/python" -m "$package.gpu_targets" --target_arch $GPUS --target_gpus)
    # shellcheck disable=SC2046,SC2086
    VIRTUAL_ENV=$venv AOTRITON_ENABLE_FP32=1 "$venv/bin/python" -X utf8 -m "$package.generate" \
      --target_gpus $(echo "$gpus" | tr ';' ' ') --build_dir /build/plan $root
  )
  sync -f /build/plan
  touch /build/planned
fi

echo "@step compile"
rm -rf /out /build/install
mkdir -p /out/prefix /out/plan
cp /build/redirected.json /out/redirected.json
if [ -n "${INSIDE:-}" ]; then
  if [ -z "${OBJECTS:-}" ]; then
    cp /build/plan/Bare.compile /out/plan/
    mkdir -p /out/python
    echo "@step done"
    exit 0
  fi
  cp -rs --remove-destination /objects/. /build/plan/
  # The first one lists its files, and leaves some of them empty, which the second one fills.
  v2 generate_shim --bare_mode
  v2 generate_shim ""
  top=/recipe/containerfiles/aotriton/inside
  rm -rf /build/runtime /build/runtime-*
  configure_all
fi
if [ -z "${ROCM:-}" ]; then
  ninja -C /build/runtime ${JOBS:+-j"$JOBS"} aotriton_v2
  echo "@step install"
  DESTDIR=/out/prefix ninja -C /build/runtime install/strip
  relocatable "/out/prefix$PREFIX" "$PREFIX"
else
  for pair in $ROCM; do
    major=${pair%%=*} folder=/build/runtime-${pair#*=}
    point "$pair"
    # For another ROCm with the same headers it is linked again, and nothing is compiled.
    if [ "$(cat "$folder/linked" 2>/dev/null)" != "$major" ]; then find "$folder" -maxdepth 2 -name 'libaotriton*_v2.so*' -delete; fi
    ninja -C "$folder" ${JOBS:+-j"$JOBS"} aotriton_v2
    printf '%s' "$major" >"$folder/linked"
    # By ninja what was compiled from names with `^` would be compiled again.
    DESTDIR=/build/install cmake --install "$folder" --strip
    from=$(sed -n 's/^CMAKE_INSTALL_PREFIX:[A-Z]*=//p' "$folder/CMakeCache.txt")
    mkdir -p "/out/prefix$PREFIX"
    mv "/build/install$from" "/out/prefix$PREFIX/rocm$major"
    relocatable "/out/prefix$PREFIX/rocm$major" "$from"
    find "/out/prefix$PREFIX/rocm$major" -name '*.cmake' -exec sed -i "s|$from\b|$PREFIX/rocm$major|g" '{}' +
  done
  echo "@step install"
  cmake_files=/out/prefix$PREFIX/lib/cmake/aotriton
  mkdir -p "$cmake_files"
  install -m 0644 /recipe/containerfiles/aotriton/aotriton-config.cmake "$cmake_files/aotriton-config.cmake"
  cp "/out/prefix$PREFIX/rocm${first%%=*}/lib/cmake/aotriton/aotriton-config-version.cmake" "$cmake_files/"
fi
for licence in /build/src/LICENSE*; do
  if [ -f "$licence" ]; then install -D -m 0644 "$licence" "/out/prefix$PREFIX/share/licenses/aotriton/$(basename "$licence")"; fi
done
(
  cd /build/plan
  # Of each GPU family's shards the generator has made one file at the top.
  find . -path ./Bare.shards -prune -o -type f \
    \( -name '*.nsv' -o -name '*.sqlite3' -o -path './Bare.*' -o -path './Affine.*' \) -exec cp --parents --target-directory /out/plan '{}' +
)
cp -a "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')" /out/python
if [ "$package" != aotriton ] && [ -z "${INSIDE:-}" ]; then cp -a "/build/src/$package" "/out/python/$package"; fi
find /out/python -name __pycache__ -prune -exec rm -rf '{}' +
sed -n 's/^set(PACKAGE_VERSION "\([0-9.]*\).*/\1/p' "$ROCM_PATH"/lib/*/cmake/hip/hip-config-version.cmake "$ROCM_PATH"/lib/cmake/hip/hip-config-version.cmake 2>/dev/null | head -n 1 >/out/hip-version
cp "$runtime/.ninja_log" /out/ninja.log
echo "@step done"
