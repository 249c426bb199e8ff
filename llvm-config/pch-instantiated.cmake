# Use pch.cmake and instantiate templates once in each PCH instead of in each source that uses them.
#
# This saves a quarter of LLVM's CPU time. An object holds the same functions as before, but one object in eight has them in
# another order. So the archives differ from those of a build without precompiled headers; they are the same in every build.

include("${CMAKE_CURRENT_LIST_DIR}/pch.cmake")
set(CMAKE_PCH_INSTANTIATE_TEMPLATES ON)
