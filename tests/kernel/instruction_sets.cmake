# The kernel tests once more for every instruction set the headers know: the globbed build is the compiler's default (SSE2
# on x86-64). One executable has one instruction set; a machine that lacks it skips the test, at run time.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  return()
endif()
add_executable(kernel_run_if_supported kernel/run_if_supported.cpp)
qkflow_program(kernel_run_if_supported)

add_custom_target(tests_kernel_instruction_sets)
add_dependencies(tests_kernel_instruction_sets kernel_run_if_supported)

set(flags_scalar -DQKFLOW_SCALAR_KERNELS)
set(flags_avx2 -mavx2 -mfma)
set(flags_avx512 -mavx512f -mavx512cd -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns about the deliberately undefined registers in its own AVX-512 intrinsics, through Eigen too.
  list(APPEND flags_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(supports_scalar "")
set(supports_avx2 avx2 fma)
set(supports_avx512 avx512f avx512cd avx512dq avx512bw avx512vl fma)

file(GLOB kernel_sources RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "kernel/*_test.cpp")
foreach(source IN LISTS kernel_sources)
  get_filename_component(name "${source}" NAME_WE)
  foreach(set IN ITEMS scalar avx2 avx512)
    set(target kernel_${name}_${set})
    add_executable(${target} "${source}")
    target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(${target} PRIVATE Catch2::Catch2WithMain)
    qkflow_program(${target})
    target_compile_options(${target} PRIVATE ${flags_${set}} -g0)
    add_test(NAME kernel/${name}_${set}
             COMMAND kernel_run_if_supported ${supports_${set}} -- $<TARGET_FILE:${target}>)
    set_tests_properties(kernel/${name}_${set} PROPERTIES LABELS kernel_instruction_sets TIMEOUT 600 SKIP_RETURN_CODE 77)
    add_dependencies(tests_kernel_instruction_sets ${target})
  endforeach()
endforeach()
