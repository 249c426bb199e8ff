# Edits of LLVM's sources without which a build's bytes depend on the machine. LLVM's tree stays as it is: the target
# compiles an edited copy, which is written here. CMake includes this file right after LLVM's project() call.
#
# A row is FILE|TARGET|TEXT|OTHER TEXT. FILE is below LLVM's top folder. An LLVM whose FILE does not hold TEXT needs no edit.
set(TOOLCHAIN_EDITS
  # The order of a set of pointers decided the numbers of functional units, so R600's table depended on the heap
  # (llvm#206904). LLVM 23 has the same change.
  "llvm/utils/TableGen/DFAPacketizerEmitter.cpp|llvm-tblgen|std::set<const Record *> ProcItinList|std::set<const Record *, LessRecord> ProcItinList"
  # The same in LLVM 17 and 18.
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
  # A new time stamp would compile the file again.
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
