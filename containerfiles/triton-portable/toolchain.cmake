# A CMake toolchain file that compiles Triton against the old system in /sysroot, for this machine or TOOLCHAIN_ARCH, on an
# LLVM layer outside of that system.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TOOLCHAIN_ARCH)
if(TOOLCHAIN_ARCH)
  include(/recipe/llvm-config/cross.cmake)
  # The emulator runs programs that the build makes for itself.
  set(CMAKE_CROSSCOMPILING_EMULATOR /emulator/emulator -L /sysroot)
else()
  include(/recipe/llvm-config/portable.cmake)
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
