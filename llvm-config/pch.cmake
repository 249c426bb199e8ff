# Precompiled headers for LLVM, MLIR and lld, without a patch.
#
# CMake includes this file right after LLVM's project() call. The work is deferred to the end of the top folder, because
# every target exists then. Each static or object library and each table generator gets the PCH of its tier:
#
#   support   no generated header; the table generators and the libraries that they link use it
#   ir        LLVM IR and analyses; needs the intrinsics
#   codegen   ir and the code generator's headers
#   sema      clang's AST and semantic analysis
#   mlir      MLIR's IR, interfaces and rewriting
#   dialects  mlir, and the dialects that most of MLIR's dialects, conversions and translations include
#   devices   dialects, and the large dialects of GPUs and accelerators
#
# The tiers exist because a library that a table generator links must not use a PCH with a generated header: the graph
# would have a cycle. Such libraries use `support`.
#
# A PCH is valid for one set of compiler flags, so each tier has one owner target for each set of flags.
#
# LLVM declares its own precompiled headers from version 23 on. LLVM's and most of clang's targets keep them, because ours
# are not cheaper there. clang's parser, semantic analysis, frontend and serialization get ours, which take two fifths off
# their CPU time: LLVM's have only the AST, and the parser's target, which CMake reads before that of the AST, does not even
# get these. MLIR's targets would reuse a header of LLVM's. They get ours, until MLIR declares its own.

# CMake has one hook for each project, so this file includes the edits. They replace sources before the sources get headers.
include("${CMAKE_CURRENT_LIST_DIR}/edits.cmake")

if(NOT TOOLCHAIN_PCH OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_VERSION VERSION_LESS 3.20)
  return()
endif()
# Instantiate templates once in each PCH instead of in each source that uses it. This saves a quarter of LLVM's CPU time.
# An object has the same symbols as before, but the order of functions and the numbers of private labels can change. So the
# archives differ from those of a build without PCH; they are the same in every build.
set(CMAKE_PCH_INSTANTIATE_TEMPLATES ON)
# LLVM switches its own precompiled headers off when it knows the compiler launcher.
set(CMAKE_DISABLE_PRECOMPILE_HEADERS OFF)

include("${CMAKE_CURRENT_LIST_DIR}/pch-headers.cmake")
# Leave out headers that this version of LLVM does not have.
foreach(tier IN ITEMS support ir codegen sema mlir dialects devices)
  set(there "")
  foreach(header IN LISTS TOOLCHAIN_PCH_HEADERS_${tier})
    string(REGEX MATCH "^<((llvm|clang|mlir)/.*)>$" ours "${header}")
    if(NOT ours OR EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/../${CMAKE_MATCH_2}/include/${CMAKE_MATCH_1}")
      list(APPEND there "${header}")
    endif()
  endforeach()
  set(TOOLCHAIN_PCH_HEADERS_${tier} "${there}")
endforeach()

# Set `out` to every target below `dir`.
function(_tpch_targets dir out)
  get_property(found DIRECTORY "${dir}" PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY "${dir}" PROPERTY SUBDIRECTORIES)
  foreach(sub IN LISTS below)
    _tpch_targets("${sub}" more)
    list(APPEND found ${more})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# Set `out` to the targets in ARGN and all targets that they link, directly or indirectly.
function(_tpch_closure out)
  set(seen "")
  set(todo ${ARGN})
  while(todo)
    list(POP_FRONT todo name)
    if(name IN_LIST seen OR NOT TARGET "${name}")
      continue()
    endif()
    list(APPEND seen "${name}")
    if(TARGET "obj.${name}")
      list(APPEND todo "obj.${name}")
    endif()
    foreach(property IN ITEMS LINK_LIBRARIES INTERFACE_LINK_LIBRARIES SOURCES MANUALLY_ADDED_DEPENDENCIES)
      get_target_property(linked "${name}" ${property})
      if(NOT linked)
        continue()
      endif()
      if(property STREQUAL "SOURCES")
        string(REGEX MATCHALL "TARGET_OBJECTS:[^>]+" linked "${linked}")
      endif()
      foreach(item IN LISTS linked)
        string(REGEX REPLACE "^(TARGET_OBJECTS:|\\$<LINK_ONLY:)([^>]+)>?$" "\\2" item "${item}")
        list(APPEND todo "${item}")
      endforeach()
    endforeach()
  endwhile()
  set(${out} ${seen} PARENT_SCOPE)
endfunction()

# Set `out` to the COMPILE_FLAGS of the C++ sources of `target`. LLVM 17 to 21 set -fno-exceptions and -fno-rtti there: at the
# target, or at its sources if some of them are C.
function(_tpch_flags target out)
  get_target_property(flags "${target}" COMPILE_FLAGS)
  if(NOT flags)
    set(flags "")
    get_target_property(sources "${target}" SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    if(sources)
      list(GET sources 0 source)
      get_target_property(where "${target}" SOURCE_DIR)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${where}")
      get_property(flags SOURCE "${source}" TARGET_DIRECTORY "${target}" PROPERTY COMPILE_FLAGS)
    endif()
  endif()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

# Set `out` to the target that owns the PCH of `tier` for the flags of `target`. Create it on first use.
function(_tpch_owner tier target out)
  get_target_property(options "${target}" COMPILE_OPTIONS)
  _tpch_flags("${target}" own_flags)
  get_target_property(visibility "${target}" CXX_VISIBILITY_PRESET)
  get_target_property(inlines "${target}" VISIBILITY_INLINES_HIDDEN)
  get_target_property(where "${target}" SOURCE_DIR)
  get_directory_property(flags DIRECTORY "${where}" DEFINITION CMAKE_CXX_FLAGS)
  # A PCH can be used with other warning options than it was compiled with.
  string(REGEX REPLACE "(^| )-W[a-z][^ ]*" "" key_flags "${flags}")
  string(REGEX REPLACE " +" " " key_flags "${key_flags}")
  # clang's headers depend on its definitions.
  set(definitions "")
  if(tier STREQUAL "sema")
    get_target_property(definitions "${target}" COMPILE_DEFINITIONS)
  endif()
  string(SHA256 key "${options}|${own_flags}|${visibility}|${inlines}|${key_flags}|${definitions}")
  string(SUBSTRING "${key}" 0 8 key)
  set(owner "toolchain-pch-${tier}-${key}")
  if(NOT TARGET "${owner}")
    set(source "${CMAKE_BINARY_DIR}/toolchain-pch/${owner}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// Owns a precompiled header.\n")
    add_library("${owner}" OBJECT EXCLUDE_FROM_ALL "${source}")
    if(options)
      set_property(TARGET "${owner}" PROPERTY COMPILE_OPTIONS "${options}")
    endif()
    if(own_flags)
      set_property(TARGET "${owner}" PROPERTY COMPILE_FLAGS "${own_flags}")
    endif()
    if(visibility)
      set_property(TARGET "${owner}" PROPERTY CXX_VISIBILITY_PRESET "${visibility}")
    endif()
    if(inlines)
      set_property(TARGET "${owner}" PROPERTY VISIBILITY_INLINES_HIDDEN "${inlines}")
    endif()
    if(tier MATCHES "^(mlir|dialects|devices)$")
      target_include_directories("${owner}" PRIVATE
        "${LLVM_MAIN_SRC_DIR}/../mlir/include" "${CMAKE_BINARY_DIR}/tools/mlir/include")
    elseif(tier STREQUAL "sema")
      target_include_directories("${owner}" PRIVATE
        "${LLVM_MAIN_SRC_DIR}/../clang/include" "${CMAKE_BINARY_DIR}/tools/clang/include")
    endif()
    if(definitions)
      set_property(TARGET "${owner}" PROPERTY COMPILE_DEFINITIONS "${definitions}")
    endif()
    target_precompile_headers("${owner}" PRIVATE ${TOOLCHAIN_PCH_HEADERS_${tier}})
    # Without time stamps the same headers give the same PCH, so ccache finds the objects on another day.
    target_compile_options("${owner}" PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
    foreach(dependency IN LISTS TOOLCHAIN_PCH_DEPENDS_${tier})
      if(TARGET "${dependency}")
        add_dependencies("${owner}" "${dependency}")
      endif()
    endforeach()
  endif()
  set(${out} "${owner}" PARENT_SCOPE)
endfunction()

# Compile the sources that pch-scan.py names without a PCH. `every` has one path on each line.
function(_tpch_leave_out every)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(list "${CMAKE_BINARY_DIR}/toolchain-pch/sources")
  file(CONFIGURE OUTPUT "${list}" CONTENT "${every}" @ONLY)
  get_filename_component(top "${LLVM_MAIN_SRC_DIR}/.." ABSOLUTE)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/pch-scan.py" "${list}"
      "${LLVM_MAIN_SRC_DIR}/include" "${top}/mlir/include" "${top}/lld/include" "${top}/clang/include"
      "${CMAKE_BINARY_DIR}/include"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" found "${found}")
  foreach(source IN LISTS found)
    string(SHA256 key "${source}")
    get_property(targets GLOBAL PROPERTY "tpch_${key}")
    foreach(target IN LISTS targets)
      set_property(SOURCE "${source}" TARGET_DIRECTORY "${target}" PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    endforeach()
  endforeach()
  list(LENGTH found count)
  message(STATUS "toolchain: ${count} sources go without a precompiled header")
endfunction()

function(_tpch_apply)
  _tpch_targets("${CMAKE_SOURCE_DIR}" all)
  _tpch_closure(generators llvm-min-tblgen llvm-tblgen mlir-tblgen mlir-src-sharder clang-tblgen lldb-tblgen)
  set(count 0)
  set(every "")
  set(sema_folders "/clang/lib/(Frontend|Parse|Sema|Serialization)(/|$)")
  # The tiers of the parts of LLVM that declare precompiled headers of their own.
  set(declared "")
  foreach(target IN LISTS all)
    get_target_property(own "${target}" PRECOMPILE_HEADERS)
    get_target_property(where "${target}" SOURCE_DIR)
    if(own AND where MATCHES "/mlir/")
      list(APPEND declared mlir dialects devices)
    elseif(own AND where MATCHES "${sema_folders}")
      list(APPEND declared sema)
    endif()
  endforeach()
  foreach(target IN LISTS all)
    get_target_property(type "${target}" TYPE)
    # Among the programs only the table generators are large enough to profit.
    if(NOT type MATCHES "^(STATIC|OBJECT)_LIBRARY$" AND NOT (type STREQUAL "EXECUTABLE" AND target IN_LIST generators))
      continue()
    endif()
    get_target_property(sources "${target}" SOURCES)
    get_target_property(where "${target}" SOURCE_DIR)
    if(NOT sources MATCHES "\\.(cpp|cc)(;|$)")
      continue()
    endif()
    get_target_property(options "${target}" COMPILE_OPTIONS)
    if("${options}" MATCHES "-fexceptions")
      continue()
    endif()
    if(target IN_LIST generators)
      set(tier support)
    elseif(where MATCHES "/mlir/lib(/(Conversion|Dialect|Target)/|$)")
      set(tier dialects)
      if(target MATCHES "AMDGPU|NVGPU|NVVM|OpenACC|OpenMP|ROCDL|RegisterAll|SPIRV|Tosa")
        set(tier devices)
      endif()
    elseif(where MATCHES "/mlir/")
      set(tier mlir)
    elseif(where MATCHES "/llvm/lib/(CodeGen|Target)(/|$)")
      set(tier codegen)
    elseif(where MATCHES "${sema_folders}")
      set(tier sema)
    elseif(where MATCHES "/clang/")
      set(tier ir)
    elseif(where MATCHES "/(llvm/lib|lld)(/|$)")
      set(tier ir)
    else()
      continue()
    endif()
    get_target_property(own "${target}" PRECOMPILE_HEADERS)
    get_target_property(reused "${target}" PRECOMPILE_HEADERS_REUSE_FROM)
    # MLIR and clang's semantic analysis only reuse headers of other libraries, until they declare some.
    if((own OR reused) AND (tier IN_LIST declared OR NOT tier MATCHES "^(mlir|dialects|devices|sema)$"))
      continue()
    endif()
    _tpch_owner(${tier} "${target}" owner)
    set_property(TARGET "${target}" PROPERTY PRECOMPILE_HEADERS)
    target_precompile_headers("${target}" REUSE_FROM "${owner}")
    # The PCH is C++, so C sources are compiled without it.
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${where}")
      if(source MATCHES "\\.(c|S)$")
        set_property(SOURCE "${source}" TARGET_DIRECTORY "${target}" PROPERTY SKIP_PRECOMPILE_HEADERS ON)
      elseif(source MATCHES "\\.(cpp|cc)$")
        string(SHA256 key "${source}")
        set_property(GLOBAL APPEND PROPERTY "tpch_${key}" "${target}")
        string(APPEND every "${source}\n")
      endif()
    endforeach()
    math(EXPR count "${count} + 1")
  endforeach()
  _tpch_leave_out("${every}")
  message(STATUS "toolchain: precompiled headers for ${count} targets")
endfunction()

cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL _tpch_apply)
