# Compiles what runs while Triton makes a kernel so that it counts, or by a profile that was counted so.
#
#   TOOLCHAIN_PROFILE        `count`, or the file of a profile
#   TOOLCHAIN_PROFILED_TOP   the folder that the next ones are relative to
#   TOOLCHAIN_PROFILED       folders whose libraries are meant, not those below them
#
# All else keeps its command, so the compiler cache knows it from a build without a profile.

set(TOOLCHAIN_PROFILE count CACHE STRING "`count`, or the file of a profile")
if(TOOLCHAIN_PROFILE STREQUAL "count")
  set(TOOLCHAIN_PROFILE_FLAGS -fprofile-generate)
  # Whatever links a library that counts needs the compiler's own for it.
  add_link_options(-fprofile-generate)
else()
  # What the profile does not know, or knows in another form, is compiled as without it; no warning of that is an error.
  set(TOOLCHAIN_PROFILE_FLAGS "-fprofile-use=${TOOLCHAIN_PROFILE}"
    -Wno-profile-instr-out-of-date -Wno-profile-instr-unprofiled -Wno-backend-plugin)
endif()

function(_tprof_visit dir)
  file(RELATIVE_PATH name "${TOOLCHAIN_PROFILED_TOP}" "${dir}")
  if(name IN_LIST TOOLCHAIN_PROFILED)
    get_property(targets DIRECTORY "${dir}" PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
      get_target_property(type "${target}" TYPE)
      if(type MATCHES "^(STATIC|OBJECT)_LIBRARY$")
        target_compile_options("${target}" PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${TOOLCHAIN_PROFILE_FLAGS}>")
        set_property(GLOBAL APPEND PROPERTY toolchain_profiled "${name}")
      endif()
    endforeach()
  endif()
  get_property(below DIRECTORY "${dir}" PROPERTY SUBDIRECTORIES)
  foreach(sub IN LISTS below)
    _tprof_visit("${sub}")
  endforeach()
endfunction()

function(_tprof_apply)
  _tprof_visit("${CMAKE_SOURCE_DIR}")
  get_property(found GLOBAL PROPERTY toolchain_profiled)
  list(LENGTH found count)
  message(STATUS "toolchain: ${count} libraries with a profile (${TOOLCHAIN_PROFILE})")
  # An older or newer source may have moved some; one that has none is not what this was written for.
  set(lacking ${TOOLCHAIN_PROFILED})
  if(found)
    list(REMOVE_ITEM lacking ${found})
  endif()
  if(lacking)
    message(STATUS "toolchain: no library in ${lacking}")
  endif()
  if(count EQUAL 0)
    message(FATAL_ERROR "toolchain: this source has none of the libraries that a profile is for")
  endif()
endfunction()

cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _tprof_apply)
