# What a user of the package meets: each header alone, the umbrella in two translation units, the installed package, the
# sources as a subdirectory, and the refusal of -ffast-math.
set(packaging_dir "${CMAKE_CURRENT_LIST_DIR}")
set(packaging_work "${CMAKE_CURRENT_BINARY_DIR}/packaging")
file(GLOB_RECURSE public_headers RELATIVE "${PROJECT_SOURCE_DIR}/include" CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/include/qkflow/*.hpp")
list(FILTER public_headers EXCLUDE REGEX "/detail/|^qkflow/qkflow\\.hpp$")

# Each header alone. A test that includes its own header before anything else proves that already; every other header gets a
# translation unit of its own. Nothing is instantiated there, so neither optimization nor debug information is worth its
# seconds.
set(alone_sources "")
foreach(header IN LISTS public_headers)
  string(REGEX REPLACE "^qkflow/(.*)\\.hpp$" "${PROJECT_SOURCE_DIR}/tests/\\1_test.cpp" test "${header}")
  if(EXISTS "${test}")
    file(STRINGS "${test}" first_include LIMIT_COUNT 1 REGEX "^#include")
    if(first_include STREQUAL "#include \"${header}\"")
      continue()
    endif()
  endif()
  string(REGEX REPLACE "[/.]" "_" name "${header}")
  set(source "${packaging_work}/alone/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n#include \"${header}\"  // and twice\n")
  list(APPEND alone_sources "${source}")
endforeach()
add_library(packaging_headers_alone OBJECT ${alone_sources})
qkflow_program(packaging_headers_alone)
target_compile_options(packaging_headers_alone PRIVATE -O0 -g0)

# The umbrella in two translation units of one program: a function that forgot `inline` is defined twice.
# The first unit is also where clang-tidy, in the preset of that name, sees every header at once.
add_library(packaging_unit_two OBJECT "${packaging_dir}/unit_two.cpp")
add_executable(packaging_two_units "${packaging_dir}/unit_one.cpp" $<TARGET_OBJECTS:packaging_unit_two>)
set_target_properties(packaging_two_units PROPERTIES CXX_CLANG_TIDY "$CACHE{CMAKE_CXX_CLANG_TIDY}")
foreach(target packaging_unit_two packaging_two_units)
  qkflow_program(${target})
  target_compile_options(${target} PRIVATE -O0 -g0)
endforeach()
add_test(NAME packaging/two_units COMMAND packaging_two_units)

# A CMake script as a test. Everything a script needs is handed to it by name.
function(packaging_script name)
  add_test(NAME packaging/${name}
           COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DBUILD=${PROJECT_BINARY_DIR}"
                   "-DWORK=${packaging_work}/${name}" "-DVERSION=${PROJECT_VERSION}" "-DGENERATOR=${CMAKE_GENERATOR}"
                   "-DCXX=${CMAKE_CXX_COMPILER}" "-DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" ${ARGN})
  set_tests_properties(packaging/${name} PROPERTIES TIMEOUT 300)
endfunction()
packaging_script(umbrella_lists_every_header -P "${packaging_dir}/umbrella_lists_every_header.cmake")
packaging_script(arrows -P "${packaging_dir}/arrows.cmake")
get_target_property(eigen_include_dirs Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
packaging_script(refuses_fast_math "-DEIGEN=${eigen_include_dirs}" -P "${packaging_dir}/refuses_fast_math.cmake")
packaging_script(subdirectory -DHOW=subdirectory -P "${packaging_dir}/consume.cmake")
if(QKFLOW_INSTALL)
  packaging_script(installed -DHOW=installed -P "${packaging_dir}/consume.cmake")
endif()

set(packaging_tests two_units umbrella_lists_every_header arrows refuses_fast_math subdirectory)
if(QKFLOW_INSTALL)
  list(APPEND packaging_tests installed)
endif()
list(TRANSFORM packaging_tests PREPEND "packaging/")
set_tests_properties(${packaging_tests} PROPERTIES LABELS packaging)
