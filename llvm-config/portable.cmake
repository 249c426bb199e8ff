# A CMake toolchain file for this machine's clang with the headers, libc and libstdc++ of the old system in /sysroot.
# This is not a cross build, because the programs run here with this system's newer libc.
set(CMAKE_SYSROOT /sysroot)
add_compile_options(-ffile-prefix-map=/sysroot=)

# Use lld, because GNU ld searches outside of the sysroot for the loader that a linker script names.
foreach(kind IN ITEMS EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-fuse-ld=lld")
endforeach()

# CMake must not find libraries, headers and packages of this system.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind IN ITEMS LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
