# The documentation shows only code that is compiled and output that was printed: tests/docs/documentation_test.cpp compares.
target_compile_definitions(docs_documentation_test PRIVATE "QKFLOW_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\""
                                                        "QKFLOW_EXAMPLES_DIR=\"${PROJECT_BINARY_DIR}/examples\"")
if(QKFLOW_BUILD_EXAMPLES)
  target_compile_definitions(docs_documentation_test PRIVATE QKFLOW_HAS_EXAMPLES)
  get_property(example_targets DIRECTORY "${PROJECT_SOURCE_DIR}/examples" PROPERTY BUILDSYSTEM_TARGETS)
  if(example_targets)
    add_dependencies(docs_documentation_test ${example_targets})
  endif()
endif()
