# Tests of the built program: tests/program/*_test.cpp run it as a user would. They need QKFLOW_BUILD_EXAMPLES.
file(GLOB program_test_sources RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "program/*_test.cpp")
foreach(source IN LISTS program_test_sources)
  get_filename_component(name "${source}" NAME_WE)
  if(TARGET qkflow_program_target)
    add_dependencies(program_${name} qkflow_program_target)
    target_compile_definitions(program_${name} PRIVATE QKFLOW_PROGRAM="$<TARGET_FILE:qkflow_program_target>"
                                                       QKFLOW_PROGRAM_TESTS="${CMAKE_CURRENT_SOURCE_DIR}/program")
  else()
    set_tests_properties(program/${name} PROPERTIES DISABLED TRUE)
  endif()
endforeach()
