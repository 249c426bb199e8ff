# A CMake toolchain file: the content of /sysroot decides for which system, TOOLCHAIN_ARCH for which machine.
# clang and lld know every machine; only headers, libc and libstdc++ are the other system's own.
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
# As uname says it.
set(CMAKE_SYSTEM_PROCESSOR "${machine_${TOOLCHAIN_ARCH}}")
string(REPLACE "powerpc64le" "ppc64le" CMAKE_SYSTEM_PROCESSOR "${CMAKE_SYSTEM_PROCESSOR}")
set(CMAKE_SYSROOT /sysroot)
foreach(language IN ITEMS C CXX ASM)
  set(CMAKE_${language}_COMPILER_TARGET "${triple}")
endforeach()
set(CMAKE_LIBRARY_ARCHITECTURE "${triple}")

# GNU's own know one machine.
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
# A layer is outside of the system it is for.
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
