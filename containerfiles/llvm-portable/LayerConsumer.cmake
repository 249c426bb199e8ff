# Facts and checks for consumers of these archives. LLVMConfig.cmake includes this file.

# The oldest glibc on which programs that use these archives link and run.
set(LLVM_LAYER_GLIBC "@GLIBC@")

include_guard(GLOBAL)

# Set `out` to ON if the command line in `words` defines NDEBUG by its last -DNDEBUG or -UNDEBUG.
function(_llvm_layer_defines_ndebug words out)
  set(${out} OFF PARENT_SCOPE)
  string(REGEX MATCHALL "(^|[ ;])[-/][DU] ?NDEBUG([ ;=]|$)" found "${words}")
  if(found)
    list(POP_BACK found last)
    if(last MATCHES "[-/]D")
      set(${out} ON PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Warn if the project compiles without NDEBUG, because LLVM's headers then declare some types with more members than the
# archives have.
function(_llvm_layer_check_ndebug)
  if("${LLVM_LAYER_NDEBUG_WARNING}" STREQUAL "OFF" OR NOT CMAKE_CXX_COMPILER_LOADED)
    return()
  endif()
  get_directory_property(definitions COMPILE_DEFINITIONS)
  get_directory_property(options COMPILE_OPTIONS)
  if("${definitions}" MATCHES "(^|[;:])NDEBUG([;=>]|$)")
    return()
  endif()
  set(types "${CMAKE_BUILD_TYPE}")
  if(CMAKE_CONFIGURATION_TYPES)
    set(types "${CMAKE_CONFIGURATION_TYPES}")
  elseif(NOT types)
    set(types "(none)")
  endif()
  set(without "")
  foreach(type IN LISTS types)
    string(TOUPPER "${type}" upper)
    # Two blanks between words let the pattern match adjacent words, because a match consumes one blank at either end.
    string(REGEX REPLACE "[ ;]+" "  " words "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${upper}} ${options}")
    _llvm_layer_defines_ndebug("${words}" defined)
    if(NOT defined)
      list(APPEND without "${type}")
    endif()
  endforeach()
  if(without)
    list(JOIN without ", " without)
    message(WARNING
      "LLVM in ${LLVM_INSTALL_PREFIX} was compiled with NDEBUG, and this project's build type ${without} compiles without "
      "it. LLVM's headers then declare some types with other members than the archives have (llvm::MCSchedClassDesc is "
      "one), and programs read them wrongly. Compile with NDEBUG: -DCMAKE_BUILD_TYPE=Release; for Triton set "
      "TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release. -DLLVM_LAYER_NDEBUG_WARNING=OFF silences this.")
  endif()
endfunction()

# Check at the end of the folder that called find_package(LLVM), because its flags are complete there.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  if(CMAKE_VERSION VERSION_LESS 3.19)
    _llvm_layer_check_ndebug()
  else()
    cmake_language(DEFER CALL _llvm_layer_check_ndebug)
  endif()
endif()
