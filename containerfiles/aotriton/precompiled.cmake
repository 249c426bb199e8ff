# Precompiles the headers that nearly every source of the library includes. CMake includes this file after AOTriton's
# project() call. The library has two thousand small tables, and these headers took three quarters of the time of a table.
# The objects do not change.
function(toolchain_precompile)
  foreach(header IN ITEMS runtime.h util.h cpp_tune.h _internal/kernel_cluster.h _internal/lazy_tensor_internal.h
                          _internal/log.h _internal/triton_kernel.h)
    if(TARGET aotriton_v2 AND EXISTS "${CMAKE_SOURCE_DIR}/include/aotriton/${header}")
      target_precompile_headers(aotriton_v2 PRIVATE "<aotriton/${header}>")
    endif()
  endforeach()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL toolchain_precompile)
