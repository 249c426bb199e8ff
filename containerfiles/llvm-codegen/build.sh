#!/bin/sh
# Builds an LLVM of one target inside the base against the old system in /sysroot, by containerfiles/llvm-portable/build.sh,
# whose settings it has but for PROJECTS and GOAL. Besides them:
#   TARGETS     LLVM_TARGETS_TO_BUILD: the GPU's alone, without the machine's own
set -eu
case ${TARGETS:-} in
*[!A-Za-z0-9\;]* | '')
  echo "toolchain: TARGETS must name the code generators of this LLVM" >&2
  exit 43
  ;;
esac
# It comes behind the architecture's own list, and the last setting wins. Utilities are built only where a component names
# them, and none does.
CMAKE_EXTRA="-DLLVM_TARGETS_TO_BUILD=$TARGETS -DLLVM_BUILD_UTILS=OFF ${CMAKE_EXTRA:-}"
PROJECTS='' GOAL=distribution
export CMAKE_EXTRA PROJECTS GOAL
sh /recipe/containerfiles/llvm-portable/build.sh

# The package must name the requested targets: an older cache or a later list could have changed them.
said=$(sed -n 's/^set(LLVM_TARGETS_TO_BUILD "*\([A-Za-z0-9;]*\)"*)$/\1/p' "/out$PREFIX/lib/cmake/llvm/LLVMConfig.cmake")
if [ "$said" != "$TARGETS" ]; then
  echo "toolchain: this LLVM was configured for the targets '$said', not '$TARGETS'" >&2
  exit 44
fi
