# Included by CMake after AOTriton's project(): compiles once what nearly every file of the library includes. It has two
# thousand small tables, and of a table's time three quarters went into these headers; its object is the same.
function(toolchain_precompile)
  foreach(header IN ITEMS runtime.h util.h cpp_tune.h _internal/kernel_cluster.h _internal/lazy_tensor_internal.h
                          _internal/log.h _internal/triton_kernel.h)
    if(TARGET aotriton_v2 AND EXISTS "${CMAKE_SOURCE_DIR}/include/aotriton/${header}")
      target_precompile_headers(aotriton_v2 PRIVATE "<aotriton/${header}>")
    endif()
  endforeach()
endfunction()
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL toolchain_precompile)
