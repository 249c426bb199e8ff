#!/bin/sh
# Builds LLVM inside the base. Called by the Containerfile beside it; everything comes in by environment:
#   PREFIX      where the layer will lie, e.g. /usr/lib64/llvm-triton-10dc3a8e
#   ARCH        amd64, arm64 (llvm-config/targets/)
#   PROJECTS    LLVM_ENABLE_PROJECTS
#   COMPONENTS  LLVM_DISTRIBUTION_COMPONENTS
#   ROOTS       libraries a consumer names, with `;` between them: then only what they reach is built, in place of the
#               `*-libraries` components; KEEP_LIBRARIES and DROP_LIBRARIES are globs (llvm-config/closure.py)
#   GOAL        `distribution`, or the ninja targets of a partial layer
#   JOBS, LINK_JOBS
# Reads /src/llvm and /recipe, keeps its tree in /build and the compiler cache in /ccache, writes /out.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/build/home
# A sentinel that the tool's progress reader looks for; a person sees a plain count.
export NINJA_STATUS='@ninja %f/%t %r %e@ '
export CCACHE_DIR=/ccache CCACHE_COMPILERCHECK=content CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-20G}"
# pch_defines and time_macros: what ccache asks for before it caches files that use a precompiled header.
# Ninja asks for dependency files anyway: with them ccache need not preprocess what it has not seen.
export CCACHE_DEPEND=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

test -f /src/llvm/mlir/CMakeLists.txt || {
  echo "toolchain: the LLVM source has no mlir/ folder" >&2
  exit 41
}
mkdir -p "$HOME"
launcher='sh;/recipe/llvm-config/pch-launcher.sh'
if command -v ccache >/dev/null; then launcher="$launcher;ccache"; fi
if command -v clang >/dev/null && command -v clang++ >/dev/null; then cc=clang cxx=clang++; else cc=gcc cxx=g++; fi
linker=
if command -v ld.lld >/dev/null && [ "$cc" = clang ]; then linker=lld; fi
flags='-ffile-prefix-map=/src/llvm=. -ffile-prefix-map=/build=.'

echo "@step configure"
# Everything that shapes the configuration. A tree of another one is configured anew; its objects come from ccache.
# The file that names LLVM's version lies elsewhere before LLVM 19; what is missing does not count.
stamp=$(
  printf '%s\n' "${INPUT_DIGEST:-}" "$PREFIX" "$ARCH" "$PROJECTS" "$COMPONENTS" "${PCH:-ON}" "${CMAKE_EXTRA:-}" \
    "${ROOTS:-}" "${KEEP_LIBRARIES:-}" "${DROP_LIBRARIES:-}"
  "$cxx" --version
  sha256sum /src/llvm/cmake/Modules/LLVMVersion.cmake /src/llvm/llvm/CMakeLists.txt /recipe/llvm-config/*.cmake 2>/dev/null || :
)
if [ ! -f /build/build.ninja ] || [ "$(cat /build/toolchain-stamp 2>/dev/null)" != "$stamp" ]; then
  # A cached value would win over the same one from -C.
  rm -rf /build/CMakeCache.txt /build/CMakeFiles/[0-9]*
  # shellcheck disable=SC2086  # CMAKE_EXTRA is a list of options
  cmake -G Ninja -S /src/llvm/llvm -B /build \
    -C /recipe/llvm-config/common.cmake -C "/recipe/llvm-config/targets/$ARCH.cmake" \
    -DLLVM_ENABLE_PROJECTS="$PROJECTS" -DLLVM_DISTRIBUTION_COMPONENTS="$COMPONENTS" \
    -DCMAKE_INSTALL_PREFIX="$PREFIX" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" ${linker:+-DLLVM_USE_LINKER=$linker} \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_ASM_FLAGS="$flags" \
    -DTOOLCHAIN_PCH="${PCH:-ON}" \
    -DLLVM_PARALLEL_LINK_JOBS="${LINK_JOBS:-1}" ${CMAKE_EXTRA:-}
  if [ -n "${ROOTS:-}" ]; then
    # The packages that this configuration wrote know what each library links; the second one, which takes seconds,
    # leaves out what nothing reaches.
    # shellcheck disable=SC2046  # the roots are words
    reached=$(
      python3 /recipe/llvm-config/closure.py /build "${KEEP_LIBRARIES:-}" "${DROP_LIBRARIES:-}" $(echo "$ROOTS" | tr ';' ' ')
    )
    others=$(echo "$COMPONENTS" | tr ';' '\n' | grep -v -e '-libraries$' | tr '\n' ';')
    cmake -DLLVM_DISTRIBUTION_COMPONENTS="$others$reached" /build
  fi
  printf '%s\n' "$stamp" >/build/toolchain-stamp
fi

echo "@step compile"
# shellcheck disable=SC2086  # GOAL is a list of targets
ninja -C /build ${JOBS:+-j"$JOBS"} $GOAL
times >/build/times
echo "CPU of this run, user and system: $(tail -n 1 /build/times)"

echo "@step install"
rm -rf /out
if [ "$GOAL" = distribution ]; then
  DESTDIR=/out ninja -C /build install-distribution-stripped
  # CMake strips programs, not archives. What goes: names of local symbols and address-significance tables, which no
  # link needs; every global symbol and every relocation stays.
  if command -v llvm-objcopy >/dev/null; then
    find "/out$PREFIX/lib" -name '*.a' -exec \
      llvm-objcopy --enable-deterministic-archives --strip-unneeded --remove-section=.llvm_addrsig --remove-section=.comment {} ';'
  fi
  python3 /recipe/llvm-config/archive_index.py "/out$PREFIX/lib"
  # Generated definitions are what the libraries were compiled from; whoever includes them again defines it all twice.
  # The headers for LLVM's own unit tests are of no use without the libraries for them, which are not here.
  find "/out$PREFIX/include" \( -name '*.cpp.inc' -o -name IntrinsicImpl.inc \) -delete
  rm -rf "/out$PREFIX/include/llvm/Testing"
else
  mkdir -p "/out$PREFIX/bin"
  for tool in $GOAL; do install -s -m 0755 "/build/bin/$tool" "/out$PREFIX/bin/$tool"; done
fi
mkdir -p "/out$PREFIX/share/licenses"
for project in llvm mlir lld clang; do
  case ";llvm;$PROJECTS;" in *";$project;"*) ;; *) continue ;; esac
  if [ -f "/src/llvm/$project/LICENSE.TXT" ]; then
    install -D -m 0644 "/src/llvm/$project/LICENSE.TXT" "/out$PREFIX/share/licenses/$project/LICENSE.TXT"
  fi
done
echo "@step done"
