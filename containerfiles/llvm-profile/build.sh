#!/bin/sh
# Builds LLVM inside the base by containerfiles/llvm-portable/build.sh, whose settings it has. With /profile/llvm-triton.profdata
# the libraries of llvm-config/profiled-llvm.cmake are optimised by that; without, their functions count what runs.
set -eu
profile=/profile/llvm-triton.profdata
if [ -e "$profile" ]; then
  # Counters are matched by a hash of each function as this compiler sees it.
  if [ "$(clang --version | head -n 1)" != "$(cat /profile/clang)" ]; then
    echo "toolchain: this profile is of $(cat /profile/clang), and the base has $(clang --version | head -n 1)" >&2
    exit 46
  fi
else
  profile=count
fi
CMAKE_EXTRA="-DCMAKE_PROJECT_LLVM_INCLUDE=/recipe/llvm-config/profiled-llvm.cmake -DTOOLCHAIN_PROFILE=$profile ${CMAKE_EXTRA:-}"
# The build's own programs link the counters, and what they run is not a kernel.
export CMAKE_EXTRA LLVM_PROFILE_FILE=/dev/null
sh /recipe/containerfiles/llvm-portable/build.sh
