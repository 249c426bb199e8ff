#!/bin/sh
# Builds LLVM inside the base. The Containerfile in this folder runs it. It reads these environment variables:
#   PREFIX      install prefix of the layer, e.g. /usr/lib64/llvm-triton-10dc3a8e
#   ARCH        amd64, arm64, ppc64le, s390x (llvm-config/targets/). LLVM for another machine than this one is
#               cross-compiled against the headers and libraries in /sysroot
#   PROJECTS    LLVM_ENABLE_PROJECTS
#   COMPONENTS  LLVM_DISTRIBUTION_COMPONENTS
#   ROOTS       libraries that a consumer names, separated by `;`: only these and what they link are built, instead of the
#               `*-libraries` components; KEEP_LIBRARIES and DROP_LIBRARIES are globs (llvm-config/closure.py)
#   GOAL        `distribution`, or the programs of a partial layer
#   HEADERS     folders and files below include/ to install in addition to those of the components
#   NATIVE      programs that a build for another machine runs; they are built for this machine first
#   CONTRACT    OFF skips llvm-config/contract/rehearse.sh after configuring
#   JOBS, LINK_JOBS
# It reads /src/llvm and /recipe, keeps the build tree in /build and the compiler cache in /ccache, and writes /out.
set -eu
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC HOME=/build/home
# The compiler asks for large pages, which saves a twelfth of its CPU time. A glibc before 2.35 ignores this.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
# The tool parses these lines to show progress.
export NINJA_STATUS='@ninja %f/%t %r %e@ '
export CCACHE_DIR=/ccache CCACHE_CONFIGPATH=/recipe/containerfiles/ccache.conf

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
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) machine=$(uname -m) ;;
esac
# No file of the layer may contain these paths.
folders='/build /src/llvm /sysroot'
tree=/build
if [ "$ARCH" != "$machine" ]; then
  tree=/build/$ARCH
  if [ ! -e /sysroot/usr/include/stdlib.h ] || [ "$cc" != clang ] || [ -z "$linker" ]; then
    echo "toolchain: LLVM for $ARCH is built on $machine with clang, lld and a system for $ARCH in /sysroot" >&2
    exit 42
  fi
fi

# configure TREE MACHINE FLAGS OPTION...
configure() {
  to=$1 cpu=$2 with=$3
  shift 3
  # A cached value would override the value from -C.
  rm -rf "$to/CMakeCache.txt" "$to"/CMakeFiles/[0-9]*
  # shellcheck disable=SC2086  # CMAKE_EXTRA is a list of options
  cmake -G Ninja -S /src/llvm/llvm -B "$to" \
    -C /recipe/llvm-config/common.cmake -C "/recipe/llvm-config/targets/$cpu.cmake" \
    -DLLVM_ENABLE_PROJECTS="$PROJECTS" -DLLVM_DISTRIBUTION_COMPONENTS="$COMPONENTS" \
    -DCMAKE_INSTALL_PREFIX="$PREFIX" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" ${linker:+-DLLVM_USE_LINKER=$linker} \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
    -DCMAKE_C_FLAGS="$with" -DCMAKE_CXX_FLAGS="$with" -DCMAKE_ASM_FLAGS="$with" \
    -DTOOLCHAIN_PCH="${PCH:-ON}" \
    -DLLVM_PARALLEL_LINK_JOBS="${LINK_JOBS:-1}" ${CMAKE_EXTRA:-} "$@"
}

echo "@step configure"
# The stamp holds every input of the configuration. A tree with another stamp is configured anew; ccache has its objects.
# LLVM 18 and older keep the version in another file, so sha256sum may miss one of the files.
stamp=$(
  printf '%s\n' "${INPUT_DIGEST:-}" "$PREFIX" "$ARCH" "$PROJECTS" "$COMPONENTS" "${PCH:-ON}" "${CMAKE_EXTRA:-}" \
    "${ROOTS:-}" "${KEEP_LIBRARIES:-}" "${DROP_LIBRARIES:-}" "${NATIVE:-}"
  "$cxx" --version
  sha256sum /src/llvm/cmake/Modules/LLVMVersion.cmake /src/llvm/llvm/CMakeLists.txt /recipe/llvm-config/*.cmake 2>/dev/null || :
)
if [ ! -f "$tree/build.ninja" ] || [ "$(cat "$tree/toolchain-stamp" 2>/dev/null)" != "$stamp" ]; then
  set --
  if [ "$tree" != /build ]; then
    mkdir -p "$tree"
    if [ -n "${NATIVE:-}" ]; then
      # The same tree and options as in a build for this machine let ccache find the objects of such a build.
      configure /build "$machine" "$flags"
      tools=
      for tool in $NATIVE; do
        # Older LLVMs do not have all of these programs, and clang's exist only with clang.
        if ninja -C /build -t query "$tool" >/dev/null 2>&1; then tools="$tools $tool"; fi
      done
      # shellcheck disable=SC2086  # TOOLS is a list of targets
      ninja -C /build ${JOBS:+-j"$JOBS"} $tools
      set -- -DLLVM_NATIVE_TOOL_DIR=/build/bin
    fi
    flags="$flags -ffile-prefix-map=$tree=. -ffile-prefix-map=/sysroot="
    set -- "$@" -DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/cross.cmake -DTOOLCHAIN_ARCH="$ARCH"
  fi
  configure "$tree" "$ARCH" "$flags" "$@"
  if [ -n "${ROOTS:-}" ]; then
    # The CMake packages that the first configuration wrote name what each library links. The second configuration takes
    # seconds and leaves out the libraries that no root needs.
    # shellcheck disable=SC2046  # the roots are words
    reached=$(
      python3 /recipe/llvm-config/closure.py "$tree" "${KEEP_LIBRARIES:-}" "${DROP_LIBRARIES:-}" $(echo "$ROOTS" | tr ';' ' ')
    )
    others=$(echo "$COMPONENTS" | tr ';' '\n' | grep -v -e '-libraries$' | tr '\n' ';')
    cmake -DLLVM_DISTRIBUTION_COMPONENTS="$others$reached" "$tree"
    case ";$PROJECTS;${CONTRACT:-ON}" in
    *';mlir;'*ON)
      lld=OFF
      case ";$ROOTS;" in *';lldELF;'*) lld=ON ;; esac
      if [ "$tree" = /build ]; then cross=; else cross=$ARCH; fi
      LIBRARIES="$ROOTS" LLD=$lld CROSS=$cross FORBIDDEN="$folders" sh /recipe/llvm-config/contract/rehearse.sh "$tree" "$PREFIX"
      ;;
    esac
  fi
  printf '%s\n' "$stamp" >"$tree/toolchain-stamp"
fi

echo "@step compile"
# The launcher leaves an empty file for headers that it could not precompile. A continued build tries them again.
find "$tree" -name 'cmake_pch.hxx*.pch' -empty -delete
if [ -e /build/pch-fallbacks ]; then sed -i '/\.pch$/d' /build/pch-fallbacks; fi
# shellcheck disable=SC2086  # GOAL is a list of targets
ninja -C "$tree" ${JOBS:+-j"$JOBS"} $GOAL
if [ -s /build/pch-fallbacks ]; then
  sort -u /build/pch-fallbacks | sed -n 's/.*\.pch$/headers that clang did not precompile: &/p'
  echo "sources that clang refused to compile with a precompiled header: $(sort -u /build/pch-fallbacks | grep -vc '\.pch$')"
fi
times >/build/times
echo "CPU of this run, user and system: $(tail -n 1 /build/times)"

echo "@step install"
rm -rf /out
if [ "$GOAL" = distribution ]; then
  DESTDIR=/out ninja -C "$tree" install-distribution-stripped
  # CMake strips programs but not archives. This removes the names of local symbols and the address-significance tables,
  # because no link needs them. All global symbols and relocations stay.
  if command -v llvm-objcopy >/dev/null; then
    # `find` ignores the status of a command that ends with ';'.
    # shellcheck disable=SC2016  # the inner shell expands $archive
    find "/out$PREFIX/lib" -name '*.a' -exec sh -euc 'for archive; do
        llvm-objcopy --enable-deterministic-archives --strip-unneeded --remove-section=.llvm_addrsig --remove-section=.comment "$archive"
      done' sh {} +
  fi
  python3 /recipe/llvm-config/archive_index.py "/out$PREFIX/lib"
  # shellcheck disable=SC2086  # FOLDERS is a list
  if [ -d "/out$PREFIX/lib/cmake" ]; then python3 /recipe/llvm-config/packages.py "/out$PREFIX/lib/cmake" $folders; fi
  # The libraries contain the generated definitions, so a consumer that included them would define everything twice.
  # The headers for LLVM's unit tests need libraries that the layer does not have.
  if [ -d "/out$PREFIX/include" ]; then # a part of LLVM has none
    find "/out$PREFIX/include" \( -name '*.cpp.inc' -o -name IntrinsicImpl.inc \) -delete
    rm -rf "/out$PREFIX/include/llvm/Testing"
  fi
else
  mkdir -p "/out$PREFIX/bin"
  # This machine's strip cannot read the programs of another machine.
  strip=
  if [ "$tree" != /build ]; then strip=--strip-program=llvm-strip; fi
  for tool in $GOAL; do install -s $strip -m 0755 "$tree/bin/$tool" "/out$PREFIX/bin/$tool"; done
fi
for part in ${HEADERS:-}; do
  for from in /src/llvm/llvm/include "$tree/include"; do
    if [ -e "$from/$part" ]; then
      # shellcheck disable=SC2016  # the inner shell expands these variables
      (cd "$from" && find "$part" -type f '(' -name '*.h' -o -name '*.def' -o -name '*.inc' ')' \
        -exec sh -euc 'to=$1; shift; for file; do install -D -m 0644 "$file" "$to/$file"; done' sh "/out$PREFIX/include" {} +)
    fi
  done
done
mkdir -p "/out$PREFIX/share/licenses"
for project in llvm mlir lld clang; do
  case ";llvm;$PROJECTS;" in *";$project;"*) ;; *) continue ;; esac
  if [ -f "/src/llvm/$project/LICENSE.TXT" ]; then
    install -D -m 0644 "/src/llvm/$project/LICENSE.TXT" "/out$PREFIX/share/licenses/$project/LICENSE.TXT"
  fi
done
echo "@step done"
