# A CMake toolchain file for the system in /sysroot and the machine TOOLCHAIN_ARCH. clang and lld support every machine, so
# only the headers, libc and libstdc++ come from /sysroot.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TOOLCHAIN_ARCH)
set(machine_arm64 aarch64)
set(machine_amd64 x86_64)
set(machine_ppc64le powerpc64le)
set(machine_s390x s390x)
if(NOT DEFINED "machine_${TOOLCHAIN_ARCH}")
  message(FATAL_ERROR "no machine is known for the architecture '${TOOLCHAIN_ARCH}'")
endif()
set(triple "${machine_${TOOLCHAIN_ARCH}}-linux-gnu")

set(CMAKE_SYSTEM_NAME Linux)
# The name that uname prints on that machine.
set(CMAKE_SYSTEM_PROCESSOR "${machine_${TOOLCHAIN_ARCH}}")
string(REPLACE "powerpc64le" "ppc64le" CMAKE_SYSTEM_PROCESSOR "${CMAKE_SYSTEM_PROCESSOR}")
set(CMAKE_SYSROOT /sysroot)
foreach(language IN ITEMS C CXX ASM)
  set(CMAKE_${language}_COMPILER_TARGET "${triple}")
endforeach()
set(CMAKE_LIBRARY_ARCHITECTURE "${triple}")

# GNU's tools support one machine only.
foreach(kind IN ITEMS EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-fuse-ld=lld")
endforeach()
foreach(tool IN ITEMS AR RANLIB STRIP NM OBJCOPY OBJDUMP READELF)
  string(TOLOWER "llvm-${tool}" name)
  find_program(CMAKE_${tool} "${name}")
endforeach()

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# Packages may also be in a layer, which is outside of /sysroot.
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
