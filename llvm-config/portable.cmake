# A CMake toolchain file: this machine's own clang, but an old system's headers, libc and libstdc++, which are in /sysroot.
# The system has the same name, so it is not a cross build: what is compiled runs here, against this system's newer libc.
set(CMAKE_SYSROOT /sysroot)
add_compile_options(-ffile-prefix-map=/sysroot=)

# GNU ld looks for the loader that a linker script names outside of the sysroot. CMake's own probes link, too.
foreach(kind IN ITEMS EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-fuse-ld=lld")
endforeach()

# What this system has and the old one has not must not be found.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind IN ITEMS LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
