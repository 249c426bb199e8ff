# shellcheck shell=sh
# Functions that prepare a build by Triton's setup.py. The build.sh of triton and of triton-portable source this file. Both
# set PREFIX, DROP and REPLACE, and set TRITON_APPEND_CMAKE_ARGS before they run setup.py.

# lay_source: copy the source to /build/src, because Triton's build writes links and generated files into it, and apply DROP
# and REPLACE to the copy. The copy keeps time stamps, so ninja does not compile everything again.
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
  # The unit tests would clone googletest. Trees without TRITON_BUILD_UT have no option to leave them out.
  if [ -f /build/src/unittest/CMakeLists.txt ] && ! grep -q TRITON_BUILD_UT /build/src/CMakeLists.txt; then
    : >/build/src/unittest/CMakeLists.txt
  fi
}

# prepare_setup PYTHON: set `setup` to the folder of setup.py, and set variables by which this setup.py downloads nothing and
# builds in TRITON_BUILD_DIR. PYTHON runs setup.py.
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
  # Only the profiler uses JSON_SYSPATH, and it is switched off, but newer trees require the variable.
  export JSON_SYSPATH=/build/empty
  if ! knows TRITON_OFFLINE_BUILD; then
    # Any value of such a variable suppresses the download of the program or headers that it names.
    # shellcheck disable=SC2013  # names without blanks
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
  # The setup.py of 2024 lists the profiler as a package also if it is not built.
  if grep -q '"triton/profiler"' "$setup/setup.py"; then mkdir -p "$setup/triton/profiler"; fi
  rm -f /build/tools/cmake
  if ! knows TRITON_APPEND_CMAKE_ARGS; then
    # Only the call that configures has a first argument that is not an option.
    real=$(command -v cmake)
    # shellcheck disable=SC2016  # the text of a script
    printf '#!/bin/sh\ncase ${1:-} in -*) ;; *) eval "set -- \\"\\$@\\" $TRITON_APPEND_CMAKE_ARGS" ;; esac\nexec %s "$@"\n' \
      "$real" >/build/tools/cmake
    chmod 0755 /build/tools/cmake
  fi
}

# knows WORD: test whether the tree's build files contain a word.
knows() {
  for file in "$setup/setup.py" /build/src/python/build_helpers.py; do
    if [ -f "$file" ] && grep -q "$1" "$file"; then return 0; fi
  done
  return 1
}
