# -ffast-math compiles every NaN guard away in silence. The umbrella, and every header that holds such a guard, must refuse
# it, and say why. Preprocessing is enough to see that.
file(GLOB_RECURSE headers RELATIVE "${SOURCE}/include" "${SOURCE}/include/qkflow/*.hpp")
set(checked 0)
foreach(header IN LISTS headers)
  file(READ "${SOURCE}/include/${header}" text)
  if(NOT header STREQUAL "qkflow/qkflow.hpp" AND NOT text MATCHES "isfinite|isnan|isinf")
    continue()
  endif()
  math(EXPR checked "${checked} + 1")
  execute_process(COMMAND "${CXX}" -std=c++20 -E -ffast-math -x c++ "-I${SOURCE}/include" "-isystem${EIGEN}"
                          "${SOURCE}/include/${header}"
                  RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE errors)
  if(result EQUAL 0)
    message(SEND_ERROR "${header} compiles with -ffast-math: include qkflow/version.hpp")
  elseif(NOT errors MATCHES "qkflow: -ffast-math .* build without it")
    message(SEND_ERROR "${header} fails under -ffast-math, but not with qkflow's own message:\n${errors}")
  endif()
endforeach()
if(checked LESS 2)
  message(FATAL_ERROR "only ${checked} header was checked: the list is broken")
endif()
message(STATUS "${checked} headers refuse -ffast-math")
