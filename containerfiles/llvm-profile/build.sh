#!/bin/sh
# Builds LLVM inside the base by containerfiles/llvm-portable/build.sh, whose settings it has. With /profile/llvm-triton.profdata
# it is optimised by that; without, every function counts what runs.
set -eu
profile=/profile/llvm-triton.profdata
if [ -e "$profile" ]; then
  # Counters are matched by a hash of each function as this compiler sees it.
  if [ "$(clang --version | head -n 1)" != "$(cat /profile/clang)" ]; then
    echo "toolchain: this profile is of $(cat /profile/clang), and the base has $(clang --version | head -n 1)" >&2
    exit 46
  fi
  CMAKE_EXTRA="-DLLVM_PROFDATA_FILE=$profile ${CMAKE_EXTRA:-}"
else
  CMAKE_EXTRA="-DLLVM_BUILD_INSTRUMENTED=IR ${CMAKE_EXTRA:-}"
fi
# The build's own programs are instrumented too, and what they run is no kernel.
export CMAKE_EXTRA LLVM_PROFILE_FILE=/dev/null
sh /recipe/containerfiles/llvm-portable/build.sh
