# What a consumer of these archives should know; LLVMConfig.cmake includes it.

# The oldest glibc that programs with these archives link and run with.
set(LLVM_LAYER_GLIBC "@GLIBC@")

include_guard(GLOBAL)

# Whether the words of a command line, in `words`, define NDEBUG; the last -D or -U of it counts. In `out`.
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

# LLVM's headers give some types more members where NDEBUG is not defined; the archives were compiled with it.
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
    # A blank between any two words, or one word's end would be the next one's beginning.
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

# At the end of the folder that asked for LLVM, where its flags are complete.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  if(CMAKE_VERSION VERSION_LESS 3.19)
    _llvm_layer_check_ndebug()
  else()
    cmake_language(DEFER CALL _llvm_layer_check_ndebug)
  endif()
endif()
