# Use pch.cmake for a build of MLIR's table generator alone.
#
# The PCH also has the generator's own headers, with their templates instantiated. On 24 of its objects this saves three
# tenths of the CPU time.

include("${CMAKE_CURRENT_LIST_DIR}/pch-instantiated.cmake")
if(NOT COMMAND _tpch_apply)
  return()
endif()

# None of these headers includes a generated one. Older versions of LLVM do not have all of them.
foreach(header IN ITEMS
    llvm/Support/FileSystem.h llvm/Support/JSON.h llvm/Support/Process.h llvm/Support/Program.h llvm/Support/Signals.h
    llvm/Support/Threading.h llvm/Support/WithColor.h llvm/Support/YAMLTraits.h
    llvm/TableGen/Error.h llvm/TableGen/Main.h llvm/TableGen/Record.h llvm/TableGen/TableGenBackend.h
    mlir/TableGen/Attribute.h mlir/TableGen/Class.h mlir/TableGen/CodeGenHelpers.h mlir/TableGen/Dialect.h
    mlir/TableGen/Format.h mlir/TableGen/GenInfo.h mlir/TableGen/Interfaces.h mlir/TableGen/Operator.h
    mlir/TableGen/Pattern.h mlir/TableGen/Trait.h)
  string(REGEX MATCH "^[a-z]+" project "${header}")
  if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/../${project}/include/${header}")
    list(APPEND TOOLCHAIN_PCH_HEADERS_support "<${header}>")
  endif()
endforeach()

# Add MLIR's headers to the owner targets, which pch.cmake creates at the end of the top folder.
function(_tpch_find_mlir)
  get_property(owners DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER owners INCLUDE REGEX "^toolchain-pch-support-")
  foreach(owner IN LISTS owners)
    target_include_directories("${owner}" PRIVATE "${CMAKE_SOURCE_DIR}/../mlir/include")
  endforeach()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _tpch_find_mlir)
