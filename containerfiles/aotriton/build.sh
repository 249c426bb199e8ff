#!/bin/sh
# Builds AOTriton's library in NOIMAGE mode and runs upstream's generator, which plans the kernels. The Containerfile in this
# folder runs it. It reads these environment variables:
#   PREFIX           install prefix of the library
#   GPUS             GPUs as gfx942, separated by spaces
#   SHA1, TREE_SHA1  the commit and tree that the library reports, 40 hex digits each
#   DROP             files of the source to leave out, separated by `;`
#   ROCM             `6=hip6 7=hip6`: a library for each ROCm, against the system in /sysroot and the headers and stub
#                    libraries in /hip; empty for one library against the base and its HIP
#   WORDS            the release's own names of the GPUS (before 0.10)
#   INSIDE           set if the library contains its kernels (before 0.8)
#   OBJECTS          set if /objects has these kernels; otherwise only the plan is made
#   JOBS
# It reads /src/aotriton, files in /database that replace those of the source, and /wheels. It keeps the build tree in /build
# and writes /out:
#   prefix/  the installed library, below PREFIX; with ROCM below PREFIX/rocm6 and so on, and CMake's choice of one
#   plan/    the generator's Bare.* files and manifests, and the tuning databases; paths in them begin with /build/plan
#   python/  the generator and packers with the modules that they import
#   hip-version
#   redirected.json  the number of choices of aiter's kernels that without_aiter.py changed to Triton's
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/build/home SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
export NINJA_STATUS='@ninja %f/%t %r %e@ '
export CCACHE_DIR=/ccache CCACHE_CONFIGPATH=/recipe/containerfiles/ccache.conf
# The prefix of the distribution's HIP. Without it upstream's build searches /opt/rocm.
export ROCM_PATH="${ROCM_PATH:-/usr}"
export AOTRITON_CI_SUPPLIED_SHA1="$SHA1" AOTRITON_GIT_TREESHA1="${TREE_SHA1:-$SHA1}"
mkdir -p "$HOME"

# configure FOLDER PREFIX LINKER-FLAGS MORE-OPTIONS
configure() {
  folder=$1 prefix=$2 linker=$3
  shift 3
  targets=$(echo "$GPUS" | tr ' ' ';') words=$(echo "${WORDS:-}" | tr ' ' ';')
  flags='-ffile-prefix-map=/build/src=. -ffile-prefix-map=/build=.'
  # v3src/packed_kernel.cc of 0.10 narrows an initializer, which is an error in clang and a warning in gcc. 0.8 does not link
  # libdl, which is a separate library in glibc before 2.34.
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

# relocatable FOLDER PREFIX: make the CMake package below FOLDER find its files relative to its own folder. AOTriton installs
# by absolute paths, so CMake writes PREFIX into the package.
relocatable() {
  find "$1" -name 'aotriton-targets*.cmake' -exec sed -i \
    -e "s|set(_IMPORT_PREFIX \"$2\")|get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)|" \
    -e "s|$2/|\${_IMPORT_PREFIX}/|g" '{}' +
}

# point 6=hip6: link the headers and stub libraries of ROCm 6 to the folder that the next build reads.
point() { ln -sfn "/hip/rocm${1%%=*}" "/build/hip-${1#*=}"; }

# configure_for 6=hip6: configure for all ROCms with the headers hip6. Without an argument, configure for the base's HIP.
configure_for() {
  if [ -z "${1:-}" ]; then
    configure /build/runtime "$PREFIX" ""
    return
  fi
  headers=${1#*=}
  point "$1"
  # If several ROCms have the same headers, the first one decides the prefix.
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
# Without a digest the inputs of an old tree are unknown, so it is not used.
if [ -z "${INPUT_DIGEST:-}" ] || [ "$(cat /build/toolchain-stamp 2>/dev/null)" != "$INPUT_DIGEST" ]; then
  rm -f /build/toolchain-stamp /build/planned
  rm -rf /build/src /build/runtime /build/runtime-* /build/plan
  # Copy the source, because upstream's build writes into it when it installs its generator.
  cp -a /src/aotriton /build/src
  cp -a /database/. /build/src/
  (
    IFS=';'
    for file in ${DROP:-}; do rm -f "/build/src/$file"; done
  )
  # 0.9 to 0.11 add their version by a linker script for GNU ld, which places .comment after itself. lld does not accept this.
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
# Since 0.13 the generator is an installed package. Older releases run it from the source tree.
package=aotriton root='--root_dir /build/src'
if [ ! -d /build/src/modules ]; then package=v3python root=; fi
if [ -n "${WORDS:-}" ]; then package=v2python; fi
# v2 MODULE OPTION: run a module of the generator before 0.10, and print its output only if it fails.
v2() {
  (
    cd /build/src
    # shellcheck disable=SC2086  # each GPU is a word
    VIRTUAL_ENV=$venv AOTRITON_ENABLE_FP32=1 "$venv/bin/python" -m "v2python.$1" --target_gpus $WORDS --build_dir /build/plan $2 \
      >/build/v2.log 2>&1 || { tail -n 20 /build/v2.log >&2; exit 1; }
  )
}
# The generator appends to its files, so the existence of a file does not show that it is complete. /build/planned does.
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
  # Configuring in NOIMAGE mode made the tuning databases, and the signature needs them in the folder of the plan. Before
  # 0.11.1 they are files, 0.13 has one folder for all operators, and later releases have a folder for each family.
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
    # shellcheck disable=SC2086  # each GPU is a word
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
  # The first call lists the files and leaves some of them empty; the second call writes them.
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
    # Another ROCm with the same headers needs a new link but no compilation.
    if [ "$(cat "$folder/linked" 2>/dev/null)" != "$major" ]; then find "$folder" -maxdepth 2 -name 'libaotriton*_v2.so*' -delete; fi
    ninja -C "$folder" ${JOBS:+-j"$JOBS"} aotriton_v2
    printf '%s' "$major" >"$folder/linked"
    # Install by cmake, because ninja would compile files with `^` in their name again.
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
  # The generator has merged the shards of each GPU family into one file at the top.
  find . -path ./Bare.shards -prune -o -type f \
    \( -name '*.nsv' -o -name '*.sqlite3' -o -path './Bare.*' -o -path './Affine.*' \) -exec cp --parents --target-directory /out/plan '{}' +
)
cp -a "$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')" /out/python
if [ "$package" != aotriton ] && [ -z "${INSIDE:-}" ]; then cp -a "/build/src/$package" "/out/python/$package"; fi
find /out/python -name __pycache__ -prune -exec rm -rf '{}' +
sed -n 's/^set(PACKAGE_VERSION "\([0-9.]*\).*/\1/p' "$ROCM_PATH"/lib/*/cmake/hip/hip-config-version.cmake "$ROCM_PATH"/lib/cmake/hip/hip-config-version.cmake 2>/dev/null | head -n 1 >/out/hip-version
cp "$runtime/.ninja_log" /out/ninja.log
echo "@step done"
