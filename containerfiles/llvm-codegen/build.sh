#!/bin/sh
# Builds an LLVM of one target inside the base against the old system in /sysroot, by containerfiles/llvm-portable/build.sh.
# It reads the same environment variables except PROJECTS and GOAL, and in addition
#   TARGETS     LLVM_TARGETS_TO_BUILD: the GPU's target, without that of the machine
set -eu
case ${TARGETS:-} in
*[!A-Za-z0-9\;]* | '')
  echo "toolchain: TARGETS must name the code generators of this LLVM" >&2
  exit 43
  ;;
esac
# This list follows the architecture's list and overrides it, because the last setting wins. Utilities are switched off,
# because no component names one.
CMAKE_EXTRA="-DLLVM_TARGETS_TO_BUILD=$TARGETS -DLLVM_BUILD_UTILS=OFF ${CMAKE_EXTRA:-}"
PROJECTS='' GOAL=distribution
export CMAKE_EXTRA PROJECTS GOAL
sh /recipe/containerfiles/llvm-portable/build.sh

# Check the targets in the package, because an older cache or a later option can change them.
said=$(sed -n 's/^set(LLVM_TARGETS_TO_BUILD "*\([A-Za-z0-9;]*\)"*)$/\1/p' "/out$PREFIX/lib/cmake/llvm/LLVMConfig.cmake")
if [ "$said" != "$TARGETS" ]; then
  echo "toolchain: this LLVM was configured for the targets '$said', not '$TARGETS'" >&2
  exit 44
fi
