# shellcheck shell=sh
# How a tree of Triton is built, asked of the tree itself. Sourced by the build.sh beside it and by triton-portable's.
# What both set: PREFIX, DROP, REPLACE, and TRITON_APPEND_CMAKE_ARGS before setup.py runs.

# Copies the source to /build/src: Triton's build writes links and generated files beside its sources. Times are kept, and
# with them ninja's idea of what is done. DROP and REPLACE are applied to the copy.
lay_source() {
  cp -a /src/triton /build/src
  (
    IFS=';'
    for file in ${DROP:-}; do rm -f "/build/src/$file"; done
    for pair in ${REPLACE:-}; do
      file=${pair%%=*}
      found=
      unset IFS
      # shellcheck disable=SC2086  # a glob
      for candidate in ${pair#*=}; do [ -f "$candidate" ] && found=$candidate; done
      IFS=';'
      if [ -z "$found" ]; then
        echo "toolchain: the base has nothing to put in place of $file (looked for ${pair#*=})" >&2
        exit 43
      fi
      cp --remove-destination "$found" "/build/src/$file"
      echo "replaced $file by the base's $found"
    done
  )
  # googletest is cloned for the unit tests. Before TRITON_BUILD_UT nothing else leaves them out.
  if [ -f /build/src/unittest/CMakeLists.txt ] && ! grep -q TRITON_BUILD_UT /build/src/CMakeLists.txt; then
    : >/build/src/unittest/CMakeLists.txt
  fi
}

# prepare_setup PYTHON: sets `setup` to the folder of setup.py, and what that setup.py reads so that it downloads nothing
# and builds in TRITON_BUILD_DIR. PYTHON runs setup.py.
prepare_setup() {
  setup=
  for folder in /build/src/python /build/src; do
    if [ -f "$folder/setup.py" ]; then setup=$folder; fi
  done
  if [ -z "$setup" ]; then
    echo "toolchain: Triton has neither setup.py nor python/setup.py" >&2
    exit 49
  fi
  export TRITON_OFFLINE_BUILD=1 TRITON_BUILD_PROTON=OFF TRITON_HOME=/build/home
  mkdir -p /build/empty/include /build/tools
  # Only the profiler reads it, and that is off; newer trees insist on it nevertheless.
  export JSON_SYSPATH=/build/empty
  if ! knows TRITON_OFFLINE_BUILD; then
    # A variable that is set, to whatever, suppresses the download of the program or headers that it names.
    # shellcheck disable=SC2013  # words of letters
    for name in $(grep -o 'TRITON_[A-Z0-9_]*_PATH' "$setup/setup.py" | sort -u); do
      export "$name=/build/empty"
    done
  fi
  if knows PYBIND11_SYSPATH && ! grep -q '^import pybind11' "$setup/setup.py"; then
    PYBIND11_SYSPATH=$("$1" -c 'import os, pybind11; print(os.path.dirname(pybind11.get_include()))')
    export PYBIND11_SYSPATH
  fi
  if ! knows TRITON_BUILD_DIR; then
    build_link=$setup/build/$("$1" -c 'import sys, sysconfig
print(f"cmake.{sysconfig.get_platform()}-{sys.implementation.name}-{sysconfig.get_python_version()}")')
    mkdir -p "$setup/build" "$TRITON_BUILD_DIR"
    rm -rf "$build_link"
    ln -s "$TRITON_BUILD_DIR" "$build_link"
  fi
  # In 2024 setup.py lists the profiler as a package whether it is built or not.
  if grep -q '"triton/profiler"' "$setup/setup.py"; then mkdir -p "$setup/triton/profiler"; fi
  rm -f /build/tools/cmake
  if ! knows TRITON_APPEND_CMAKE_ARGS; then
    # Configuring is the one call whose first word is not an option.
    real=$(command -v cmake)
    # shellcheck disable=SC2016  # for the program that is written
    printf '#!/bin/sh\ncase ${1:-} in -*) ;; *) eval "set -- \\"\\$@\\" $TRITON_APPEND_CMAKE_ARGS" ;; esac\nexec %s "$@"\n' \
      "$real" >/build/tools/cmake
    chmod 0755 /build/tools/cmake
  fi
}

# knows WORD: whether the tree's build files read a setting.
knows() {
  for file in "$setup/setup.py" /build/src/python/build_helpers.py; do
    if [ -f "$file" ] && grep -q "$1" "$file"; then return 0; fi
  done
  return 1
}
