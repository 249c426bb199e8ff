# Use pch.cmake for a build of MLIR's table generator alone.
#
# The generator gets a PCH that also has its own headers. On 24 of its objects this saves
# three tenths of the CPU time. LLVMSupport keeps the PCH that it has in a whole LLVM, so ccache finds its objects in both.

# A build id depends on the order of the linker's symbol table, which depends on the sources that are left out.
add_link_options(-Wl,--build-id=none)
# linked-sources.cmake is included first, because it removes sources, and pch.cmake gives precompiled headers to those that
# remain.
if(TOOLCHAIN_LINKED_ONLY)
  include("${CMAKE_CURRENT_LIST_DIR}/linked-sources.cmake")
endif()
include("${CMAKE_CURRENT_LIST_DIR}/pch.cmake")
if(NOT COMMAND _tpch_apply)
  return()
endif()

set(TOOLCHAIN_PCH_HEADERS_programs "${TOOLCHAIN_PCH_HEADERS_support}")
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
    list(APPEND TOOLCHAIN_PCH_HEADERS_programs "<${header}>")
  endif()
endforeach()

# Give the generators and the libraries that they link, except LLVMSupport, the PCH of the tier `programs`.
function(_tpch_programs)
  _tpch_closure(targets llvm-min-tblgen mlir-tblgen)
  list(FILTER targets EXCLUDE REGEX "LLVM(Support|Demangle)$")
  foreach(target IN LISTS targets)
    get_target_property(reused "${target}" PRECOMPILE_HEADERS_REUSE_FROM)
    if(reused MATCHES "^toolchain-pch-support-")
      _tpch_owner(programs "${target}" owner)
      target_include_directories("${owner}" PRIVATE "${CMAKE_SOURCE_DIR}/../mlir/include")
      set_property(TARGET "${target}" PROPERTY PRECOMPILE_HEADERS_REUSE_FROM "${owner}")
    endif()
  endforeach()
endfunction()
# This call runs after that of pch.cmake.
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _tpch_programs)
