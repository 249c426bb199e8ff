# Edits of LLVM's sources that make a build's bytes independent of the machine. This file writes an edited copy into the
# build tree, and the target compiles the copy, so LLVM's own tree is not changed. pch.cmake includes this file.
#
# A row is FILE|TARGET|TEXT|OTHER TEXT. FILE is relative to LLVM's top folder. A FILE without TEXT is not edited.
set(TOOLCHAIN_EDITS
  # The emitter numbers functional units in the order of a set of pointers, so R600's table depends on the heap
  # (llvm#206904). LLVM 23 has the same change.
  "llvm/utils/TableGen/DFAPacketizerEmitter.cpp|llvm-tblgen|std::set<const Record *> ProcItinList|std::set<const Record *, LessRecord> ProcItinList"
  # LLVM 17 and 18 declare the same set without const.
  "llvm/utils/TableGen/DFAPacketizerEmitter.cpp|llvm-tblgen|std::set<Record *> ProcItinList|std::set<Record *, LessRecord> ProcItinList"
)

function(_toolchain_edit file target text other)
  set(path "${CMAKE_SOURCE_DIR}/../${file}")
  if(NOT EXISTS "${path}" OR NOT TARGET "${target}")
    return()
  endif()
  file(READ "${path}" content)
  string(FIND "${content}" "${text}" found)
  if(found EQUAL -1)
    return()
  endif()
  string(REPLACE "${text}" "${other}" content "${content}")
  set(copy "${CMAKE_BINARY_DIR}/toolchain-edits/${file}")
  set(before "")
  if(EXISTS "${copy}")
    file(READ "${copy}" before)
  endif()
  # Keep the time stamp of an unchanged copy, because ninja would compile it again.
  if(NOT before STREQUAL content)
    file(WRITE "${copy}" "${content}")
  endif()
  get_filename_component(name "${file}" NAME)
  get_target_property(sources "${target}" SOURCES)
  list(TRANSFORM sources REPLACE "^(.*/)?${name}$" "${copy}")
  set_property(TARGET "${target}" PROPERTY SOURCES "${sources}")
  message(STATUS "toolchain: ${target} is built from an edited ${name}")
endfunction()

function(_toolchain_edit_all)
  foreach(row IN LISTS TOOLCHAIN_EDITS)
    string(REPLACE "|" ";" row "${row}")
    _toolchain_edit(${row})
  endforeach()
endfunction()

cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _toolchain_edit_all)
